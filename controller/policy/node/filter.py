"""The extender's filter: decide by reserved GPUs whether a pod may run on a node.

Whether a pod fits is kube-scheduler's to say, which alone knows the pods it has placed and not yet bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import StrEnum

from controller.frozen import dataclass
from controller.policy.node.ledger import SIGNATURE, Gang, GpuLedger, PodRequest
from controller.policy.types import JobKey

NOT_SEEN_YET = "not seen yet"
STILL_READING = "the extender is still reading the cluster"


class Refusal(StrEnum):
    """Reason why nodes were refused; it decides whether waiting can help, and for what."""

    NOT_READY = "NotReady"  # the ledger is not filled yet
    NOT_SEEN = "NotSeen"  # the pod's admission has not been seen yet
    OVER = "Over"  # the pod's admission is over, it will be deleted
    NOT_PLANNED = "NotPlanned"  # its gang is planned on other nodes
    KEPT = "Kept"  # GPUs of the node are kept for a gang that is not this pod's, or held by one


@dataclass(frozen=True, slots=True)
class Judgement:
    """``passed`` in the order asked; ``refused``: node -> sentence; ``reason`` of the refusals, if any."""

    passed: list[str]
    refused: dict[str, str] = field(default_factory=dict)
    reason: Refusal | None = None

    @property
    def final(self) -> bool:
        """Killing other pods of a refused node would not help this pod."""
        return self.reason in (Refusal.OVER, Refusal.NOT_PLANNED, Refusal.KEPT)


def judge(ledger: GpuLedger, request: PodRequest, nodes: Sequence[str], now: float) -> Judgement:
    """Return which of ``nodes`` this pod may have at ``now`` (s).

    A rollout actor: the node that its entry names, before which nobody knows where it belongs. A member of a
    gang: its planned node and no other; nothing at all before its admission is seen, for then
    nobody here knows where it belongs. Any other pod: every node on which nothing is kept for a gang. What
    such a node could spare is not shared out: pods that kube-scheduler has placed and not bound yet cannot be
    seen from here, and two of them could take together what one would have left. A pod without GPUs takes
    nothing from anybody.
    """
    if request.gpus == 0 or not nodes:
        return Judgement(list(nodes))
    if request.gang is None:
        return _judge_other(ledger, request, nodes, now)
    if request.actor is not None:
        return _judge_actor(ledger, request.gang, request.actor, nodes)
    gang = ledger.gang(request.gang)
    if gang is None or gang.admission < request.admission:
        seen = "none" if gang is None else str(gang.admission)
        why = f"admission {request.admission} of {request.gang} {NOT_SEEN_YET} (the newest seen: {seen})"
        return _none(nodes, why, Refusal.NOT_SEEN)
    if gang.admission > request.admission:
        why = f"admission {request.admission} of {request.gang} is over: the present one is {gang.admission}"
        return _none(nodes, why, Refusal.OVER)
    if not gang.nodes:  # a pool that nobody queues for: kube-scheduler chooses, the extender has no plan
        return _judge_other(ledger, request, nodes, now)
    return _judge_member(ledger, request, gang, nodes, now)


def not_ready(nodes: Sequence[str]) -> Judgement:
    """Return all refused: what is kept for whom is not known yet."""
    return _none(nodes, STILL_READING, Refusal.NOT_READY)


def spare(
    ledger: GpuLedger, request: PodRequest, victims: Mapping[str, Sequence[str]], now: float
) -> dict[str, list[str]]:
    """Candidates for preemption that may stay: node -> uids of its victims, all of them.

    Left out: nodes that the pod may not have anyway (killing there would be in vain), nodes on which a
    member of a gang would die (only the pool preempts gangs, at a checkpoint), and nodes without a victim,
    which kube-scheduler takes for an error.
    """
    may = set(judge(ledger, request, list(victims), now).passed)
    return {
        node: list(uids)
        for node, uids in victims.items()
        if node in may and uids and not any(ledger.pod(uid) for uid in uids)
    }


def _none(nodes: Sequence[str], why: str, reason: Refusal) -> Judgement:
    return Judgement([], dict.fromkeys(nodes, SIGNATURE + why), reason if nodes else None)


def _judge_actor(ledger: GpuLedger, job: JobKey, number: int, nodes: Sequence[str]) -> Judgement:
    node = ledger.actor_node(job, number)
    if node is None:
        return _none(nodes, f"rollout actor {number} of {job} {NOT_SEEN_YET}", Refusal.NOT_SEEN)
    passed = [one for one in nodes if one == node]
    why = f"{SIGNATURE}rollout actor {number} of {job} is planned on {node}"
    refused = {one: why for one in nodes if one != node}
    return Judgement(passed, refused, Refusal.NOT_PLANNED if refused else None)


def _judge_member(
    ledger: GpuLedger, request: PodRequest, gang: Gang, nodes: Sequence[str], now: float
) -> Judgement:
    allowed = frozenset(ledger.planned(request))
    member = "a member" if request.member is None else f"member {request.member}"
    places = ", ".join(sorted(allowed)) or "no node that is left"
    plain = f"{SIGNATURE}{member} of {gang.key} (admission {gang.admission}) is planned on {places}"
    passed = [node for node in nodes if node in allowed]
    kept_for = ledger.reserved_for(nodes, now, _namespace(request))
    refused = {node: sentence or plain for node, sentence in zip(nodes, kept_for, strict=True)}
    for node in passed:
        refused.pop(node, None)
    return Judgement(passed, refused, Refusal.NOT_PLANNED if refused else None)


def _judge_other(ledger: GpuLedger, request: PodRequest, nodes: Sequence[str], now: float) -> Judgement:
    passed: list[str] = []
    refused: dict[str, str] = {}
    reader = _namespace(request)
    for node in nodes:
        if ledger.untouched(node):
            passed.append(node)
        elif sentence := ledger.kept(node, now, reader)[1]:
            refused[node] = sentence
        elif (left := ledger.left_by_gangs(node)) is not None and request.gpus > left:
            # It fits, or nobody would ask: kube-scheduler knows of an end that is still to be seen here, and
            # the reservation that was written before it may be, too.
            refused[node] = f"{SIGNATURE}gangs hold all but {left} GPUs, as far as it is known until now"
        else:
            passed.append(node)
    return Judgement(passed, refused, Refusal.KEPT if refused else None)


def _namespace(request: PodRequest) -> str:
    """Return whose sentences these are: what a pod is refused with, all who may read it see."""
    return request.name.partition("/")[0]
