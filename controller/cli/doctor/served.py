"""Checks of what the operator leaves as it is: namespaces that it does not serve, statuses that it cannot
write."""

from __future__ import annotations

import difflib
import time
from collections import Counter
from collections.abc import AsyncIterator

from controller import names
from controller.cli.cluster import CallerApi, refusal, written_in_a_term
from controller.cli.doctor.findings import Finding, note, wrong
from controller.cli.doctor.installation import UPGRADE
from controller.kube.errors import ApiError
from controller.kube.lease import served, unwritten
from controller.kube.resources import LEASES, NAMESPACES, RLHFJOBS
from controller.policy.wording import counted, some

SETTING = "EVALSTOP_WATCH_NAMESPACES"
UNKNOWN_FIELD = 'unknown field "status.'  # as the API server says it of a definition of an older version


def cure_of(told: str, otherwise: str) -> str:
    """Return what mends that statuses are refused for the reason in ``told``."""
    return UPGRADE if UNKNOWN_FIELD in told else otherwise


async def statuses(api: CallerApi, namespace: str) -> AsyncIterator[Finding]:
    """Yield whose statuses the API server refuses to take from the operator in ``namespace``."""
    try:
        found = unwritten(await api.get(LEASES, names.OPERATOR, namespace))
    except ApiError:
        return
    if found is not None:
        log = f"kubectl -n {namespace} logs deployment/{names.OPERATOR} --tail=50"
        yield wrong("statuses", refusal(found, time.time()), cure_of(found.why, log))


async def namespaces(api: CallerApi, namespace: str) -> AsyncIterator[Finding]:
    """Yield whether every RLHFJob is in a namespace that the operator serves, and each of those is there.

    ``namespace``: the operator's. What the caller may not look at is passed over.
    """
    try:
        lease = await api.get(LEASES, names.OPERATOR, namespace)
    except ApiError:
        return
    among = served(lease)
    if among is None:
        return
    cure = (
        f"kubectl -n {namespace} set env deployment/{names.OPERATOR} {SETTING}=NAMESPACE,NAMESPACE   "
        "(or the chart's operator.watchNamespaces, which also makes its rights there)"
    )
    found = False
    try:
        there = {str(one["metadata"]["name"]) for one in (await api.list(NAMESPACES, None))[0]}
    except ApiError:
        there = set(among)
    for name in sorted(among - there):
        found = True
        near = difflib.get_close_matches(name, there, 1)
        hint = f"; {near[0]} is" if near else ""
        yield wrong("namespaces", f"{SETTING} names {name}, which is not there{hint}", cure)
    try:
        jobs, _ = await api.list(RLHFJOBS, None)
    except ApiError:
        jobs = []
    left = Counter(str(job["metadata"]["namespace"]) for job in jobs)
    for name in among:
        left.pop(name, None)
    if left:
        found = True
        which = some([f"{name} ({counted(count, 'RLHFJob')})" for name, count in sorted(left.items())], 4)
        known = any(written_in_a_term(j) for j in jobs if j["metadata"]["namespace"] in left)
        frozen = ", and what is shown of it is of before" if known else ""
        yield wrong(
            "namespaces",
            f"not served: {which}; {SETTING} names {some(sorted(among), 4)} alone, so nothing there is "
            f"watched or stopped{frozen}, and GPUs that pods hold there look free",
            cure,
        )
    if not found:
        yield note("namespaces", f"the operator serves {some(sorted(among), 4)} alone ({SETTING})")
