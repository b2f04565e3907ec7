"""Check of a GPUPool's nodes before it is applied: whether another pool selects the same."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from controller.cli.cluster import CallerApi
from controller.cli.doctor.findings import Finding, as_cure, note, wrong
from controller.kube.errors import ApiError
from controller.kube.resources import GPUPOOLS, NODES
from controller.operator.state.nodes import selector_of, selects
from controller.policy.wording import agreeing, counted

Object = Mapping[str, Any]

_APART = "let the selectors not overlap: a node is in one pool only, the older one"


async def overlaps(
    api: CallerApi, manifest: Object, together: Mapping[str, Object]
) -> AsyncIterator[Finding]:
    """Yield each other GPUPool, there or applied with it, that selects nodes of this one.

    Args:
        api: of the caller.
        manifest: the GPUPool.
        together: the pools that are applied with it, by name.
    """
    name, mine = str(manifest["metadata"]["name"]), selector_of(manifest)
    there = {str(pool["metadata"]["name"]): pool for pool in (await api.list(GPUPOOLS))[0]}
    listed = await nodes(api)
    for other, pool in sorted({**there, **together}.items()):
        theirs = selector_of(pool)
        if other == name or not theirs or any(mine.get(k, v) != v for k, v in theirs.items()):
            continue
        ours = [node for node in listed or () if selects(mine, node)]
        shared = [node for node in ours if selects(theirs, node)]
        also = f"spec.nodeSelector: GPUPool {other!r}"
        if listed is None:
            yield note("nodes", f"{also} may select nodes of it, too", as_cure(_APART))
        elif len(shared) == len(ours) and shared and name not in there:
            text = f"{also} selects {_all(len(ours))} too, so none is left for it"
            yield wrong("nodes", text, as_cure(_APART))
        elif shared:
            text = f"{also} selects {len(shared)} of its {counted(len(ours), 'node')} too"
            yield note("nodes", text, as_cure(_APART))
        elif set(theirs.items()) <= set(mine.items()):
            yield note("nodes", f"{also} selects each node that this one would select", as_cure(_APART))


def _all(count: int) -> str:
    return agreeing(count, "its only node", f"all of its {counted(count, 'node')}")


async def nodes(api: CallerApi) -> list[Object] | None:
    """Return all nodes; None: the caller may not list them."""
    try:
        return list((await api.list(NODES))[0])
    except ApiError as error:
        if error.status != 403:
            raise
        return None
