"""Check whether nodes of a job's pool match what the workload's template asks of them, and have room."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from controller.api.gpupool import GPUPool
from controller.cli import pool_checks, room_checks
from controller.cli.cluster import CallerApi
from controller.cli.doctor.findings import Finding, as_cure, ok, unknown, wrong
from controller.kube.node_selection import Requirement, labels, refusing, requirements
from controller.operator.state.nodes import selects
from controller.policy.job import Desired
from controller.policy.wording import agreeing, counted, some

Object = Mapping[str, Any]

NAMED = 3


async def matching(
    api: CallerApi, pool: GPUPool, asked: Desired, pod: Object, path: str
) -> AsyncIterator[Finding]:
    """Yield which nodes of the pool a pod of the template may go to, and whether the gang has room there.

    Args:
        api: of the caller.
        pool: of the job.
        asked: the job.
        pod: spec of the template's pods.
        path: where it is.
    """
    needs, name = requirements(pod), pool.metadata.name
    listed = await pool_checks.nodes(api)
    if listed is None:
        if needs:
            text = f"you may not list nodes: whether one of pool {name!r} has {_all(needs)} was not looked at"
            yield unknown("nodes", text, "somebody with more rights can look")
        return
    selector = {one.key: one.value for one in pool.spec.node_selector}
    mine = [node for node in listed if selects(selector, node)]
    if not mine:
        return  # which its own check tells
    fit = [node for node in mine if all(one.met(node) for one in needs)]
    if not fit:
        yield _unmatched(name, mine, needs, path)
        return
    free = [node for node in fit if not refusing(node, pod)]
    if not free:
        taints = some(sorted({taint for node in fit for taint in refusing(node, pod)}), NAMED)
        every = agreeing(len(fit), "the one node", f"all {counted(len(fit), 'node')}")
        which = f"{every} of pool {name!r}"
        which += f" with {_all(needs)}" if needs else ""
        text = (
            f"{path}.tolerations: {which} {agreeing(len(fit), 'has', 'have')} a taint that it lacks: {taints}"
        )
        yield wrong("nodes", text, as_cure("tolerate that taint in the template, or name another pool"))
        return
    if len(free) == len(mine) and not needs:
        return
    names = some(sorted(str(node["metadata"]["name"]) for node in free), NAMED)
    match = agreeing(len(free), "matches", "match")
    which = f"{len(free)} of {counted(len(mine), 'node')} of pool {name!r} {match} ({names})"
    if (told := _without_room(pool, asked, free, mine)) is not None:
        text = f"{which} {_fields(needs, path)}, and the gang does not fit there: {told}"
        yield wrong("nodes", text, as_cure("ask less of the nodes, or take a smaller gang"))
        return
    yield ok("nodes", f"{which} {_fields(needs, path)}")


def _unmatched(pool: str, nodes: Sequence[Object], needs: Sequence[Requirement], path: str) -> Finding:
    """Return that no node has all that is asked for: what none has, else that none has it together."""
    for one in needs:
        if not any(one.met(node) for node in nodes):
            there = {labels(node).get(one.key) for node in nodes} if one.key else set()
            values = sorted(str(value) for value in there if value is not None)
            has = f"those there have {one.key}={some(values, NAMED)}" if values else ""
            its = agreeing(len(nodes), "its node lacks", f"its {counted(len(nodes), 'node')} lack")
            lack = f"{its} that label"
            by_name = one.field.endswith("matchFields") or not one.key
            names = some(sorted(str(node["metadata"]["name"]) for node in nodes), NAMED)
            why = f"its nodes: {names}" if by_name else has or lack
            text = f"no node of pool {pool!r} has {one.text} ({path}.{one.field}): {why}"
            break
    else:
        text = f"no node of pool {pool!r} has all that {_fields(needs, path)} asks for: {_all(needs)}"
    return wrong(
        "nodes", text, as_cure("correct it, have nodes of the pool labelled so, or name another pool")
    )


def _without_room(
    pool: GPUPool, asked: Desired, free: Sequence[Object], mine: Sequence[Object]
) -> str | None:
    """Return why the gang could never run on the nodes that match alone; None: it could, or would not on all
    either."""
    if len(free) == len(mine) or not asked.gpus or asked.sharing is not None:
        return None
    asked = replace(asked, rollout=None)  # actors have a template of their own
    every, matched = room_checks.nodes_among(mine), room_checks.nodes_among(free)
    if every is None or matched is None or room_checks.why_not(pool, asked, every) is not None:
        return None
    told = room_checks.why_not(pool, asked, matched)
    return told.message if told is not None and told.reason == room_checks.TOO_LARGE else None


def _all(needs: Sequence[Requirement]) -> str:
    return some([one.text for one in needs], NAMED)


def _fields(needs: Sequence[Requirement], path: str) -> str:
    fields = list(dict.fromkeys(one.field.partition("[")[0] for one in needs)) or ["tolerations"]
    return " and ".join(f"{path}.{field}" for field in fields)
