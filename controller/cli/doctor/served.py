"""Checks of the namespaces that the operator serves, where it does not serve all."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import AsyncIterator

from controller import names
from controller.cli.cluster import CallerApi, written_in_a_term
from controller.cli.doctor.findings import Finding, note, wrong
from controller.kube.errors import ApiError
from controller.kube.lease import served
from controller.kube.resources import LEASES, NAMESPACES, RLHFJOBS
from controller.policy.wording import counted, some

SETTING = "EVALSTOP_WATCH_NAMESPACES"


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
