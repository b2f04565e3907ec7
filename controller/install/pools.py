"""Makes the GPUPools that the chart's values name: ``python -m controller.install.pools FILE``.

A hook Job of the chart runs it. Helm cannot make them itself in the release that brings their definition: it
looks up every kind before it makes the first object.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from controller import names
from controller.kube.client import Api, Object
from controller.kube.connect import connect
from controller.kube.connection import NoCredentials
from controller.kube.errors import ApiError, NotFound, Unavailable
from controller.kube.resources import GPUPOOLS

MANAGER = "evalstop-chart"  # field manager: what values no longer set is taken back, what others set is not
PATIENCE_S = 60.0  # for the definition to be served, and for an API server that is restarting
_PAUSE_S = 1.0


def pools(text: str) -> list[Object]:
    """GPUPools from a list of ``{name, labels, spec}``.

    Raises:
        ValueError: not such a list.
    """
    found = yaml.safe_load(text) or []
    if not isinstance(found, list):
        raise ValueError(f"expected a list of pools, got {type(found).__name__}")
    result = []
    for index, pool in enumerate(found):
        if not isinstance(pool, dict) or not pool.get("name") or not isinstance(pool.get("spec"), dict):
            raise ValueError(f"pool {index}: expected name and spec, got {pool!r}")
        metadata = {"name": pool["name"], "labels": dict(pool.get("labels") or {})}
        result.append(
            {
                "apiVersion": names.API_VERSION,
                "kind": GPUPOOLS.kind,
                "metadata": metadata,
                "spec": pool["spec"],
            }
        )
    return result


async def make(
    api: Api,
    wanted: Sequence[Object],
    echo: Callable[[str], None] = print,
    patience: float = PATIENCE_S,
    sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
    now: Callable[[], float] = time.monotonic,
) -> None:
    """Apply each pool, server-side. ``patience``: seconds for a definition that is not served yet.

    Raises:
        ApiError: refused, or not to be had in that time.
    """
    deadline = now() + patience
    for pool in wanted:
        while True:
            try:
                await api.apply(GPUPOOLS, pool)
                break
            except (NotFound, Unavailable) as error:
                if now() > deadline:
                    raise
                echo(f"GPUPool {pool['metadata']['name']}: {error}; trying again")
                await sleep(_PAUSE_S)
        echo(f"GPUPool {pool['metadata']['name']}: applied")


async def _run(wanted: Sequence[Object]) -> None:
    connection = await connect()
    async with Api(connection, user_agent="evalstop-chart", manager=MANAGER) as api:
        await make(api, wanted)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0: all applied; 1: the API server said no; 2: wrong arguments, file or credentials."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if len(given) != 1:
        print("usage: python -m controller.install.pools FILE", file=sys.stderr)
        return 2
    try:
        asyncio.run(_run(pools(Path(given[0]).read_text())))
    except (OSError, ValueError, yaml.YAMLError, NoCredentials) as error:
        print(f"{given[0]}: {error}", file=sys.stderr)
        return 2
    except ApiError as error:
        print(f"GPUPools: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
