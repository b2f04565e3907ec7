"""Check an installation from inside the cluster: ``python -m controller.install.check``.

`helm test` runs it. It prints one line for each check. It changes nothing: the one object that it sends is a
dry run.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Sequence

from controller import names
from controller.kube.client import Api, Object
from controller.kube.connect import connect
from controller.kube.connection import NoCredentials
from controller.kube.errors import ApiError, NotFound, Refused
from controller.kube.resources import DEPLOYMENTS, LEASES, RLHFJOBS
from controller.policy.wording import agreeing, counted

LEASE = names.OPERATOR
_HTTP_TIMEOUT_S = 10.0


class CheckFailed(Exception):
    """A check found a fault; the message says what is wrong, and what to do."""


async def schema(api: Api, namespace: str) -> str:
    """Return a sentence if RLHFJobs are served with the schema of this version, which refuses a wrong one.

    Raises:
        CheckFailed: they are not.
    """
    wrong = {
        "apiVersion": names.API_VERSION,
        "kind": RLHFJOBS.kind,
        "metadata": {"name": "evalstop-check", "namespace": namespace},
        "spec": {"pool": "none"},
    }
    try:
        await api.create(RLHFJOBS, wrong, dry_run=True)
    except NotFound:
        raise CheckFailed(
            f"{RLHFJOBS} is not served: install the definitions (crds.install, or kubectl apply -f crds)"
        ) from None
    except Refused as error:
        if error.status == 422:
            return "rlhfjobs are served, and a wrong one is refused"
        raise CheckFailed(f"a dry run of an RLHFJob: {error}") from None
    raise CheckFailed(
        "an RLHFJob without metrics and workload was accepted: the definition is not this version's"
    )


async def deployment(api: Api, namespace: str, name: str) -> str:
    """Return how many pods of a Deployment are ready; `CheckFailed` if fewer than it wants."""
    found = await api.get(DEPLOYMENTS, name, namespace)
    wanted, ready = found["spec"].get("replicas", 1), (found.get("status") or {}).get("readyReplicas", 0)
    if ready < wanted:
        raise CheckFailed(
            f"{ready} of {counted(wanted, 'pod')} {agreeing(ready, 'is', 'are')} ready: kubectl -n "
            f"{namespace} describe pods -l app.kubernetes.io/name={name}"
        )
    return f"{ready} of {counted(wanted, 'pod')} {agreeing(ready, 'is', 'are')} ready"


async def leader(api: Api, namespace: str) -> str:
    """Return which replica of the operator leads; `CheckFailed` if none does."""
    try:
        lease: Object = await api.get(LEASES, LEASE, namespace)
    except NotFound:
        raise CheckFailed(
            f"there is no Lease {LEASE} in {namespace}: no operator has ever led here"
        ) from None
    holder = (lease.get("spec") or {}).get("holderIdentity")
    if not holder:
        raise CheckFailed("nobody holds the Lease: no operator acts")
    return f"{holder} leads"


async def answers(url: str) -> str:
    """Return the status code of a service; `CheckFailed` if it does not answer with success."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ask() -> str:
        try:
            with direct.open(url, timeout=_HTTP_TIMEOUT_S) as answer:
                return f"answers {answer.status}"
        except urllib.error.HTTPError as error:
            raise CheckFailed(
                f"answers {error.code}: {error.read(500).decode(errors='replace').strip()}"
            ) from None
        except OSError as error:
            raise CheckFailed(f"{error}: is a NetworkPolicy in the way?") from None

    return await asyncio.to_thread(ask)


async def run(checks: Sequence[tuple[str, Callable[[], Awaitable[str]]]]) -> bool:
    """Print the result of each check; return whether all have passed."""
    passed = True
    for name, check in checks:
        try:
            print(f"ok    {name}: {await check()}")
        except (CheckFailed, ApiError) as error:
            passed = False
            print(f"FAIL  {name}: {error}")
    return passed


async def _main(given: argparse.Namespace) -> bool:
    connection = await connect()
    async with Api(connection, user_agent="evalstop-check") as api:
        space = given.namespace
        checks: list[tuple[str, Callable[[], Awaitable[str]]]] = [
            ("definitions", lambda: schema(api, space)),
            ("leader", lambda: leader(api, space)),
        ]
        checks += [(name, lambda n=name: deployment(api, space, n)) for name in given.deployment]  # type: ignore[misc]
        checks += [(url, lambda u=url: answers(u)) for url in given.url]  # type: ignore[misc]
        return await run(checks)


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code. 0: all checks passed; 1: one failed; 2: wrong arguments or credentials."""
    parser = argparse.ArgumentParser(prog="python -m controller.install.check", description=__doc__)
    parser.add_argument("--namespace", required=True, help="of the release")
    parser.add_argument("--deployment", action="append", default=[], help="whose pods must be ready")
    parser.add_argument("--url", action="append", default=[], help="that must answer")
    try:
        return 0 if asyncio.run(_main(parser.parse_args(arguments))) else 1
    except NoCredentials as error:
        print(f"FAIL  credentials: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
