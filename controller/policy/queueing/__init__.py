"""Queue policies by name: the only entrance for operator, simulator and API.

A new policy is one file with its params dataclass and one entry in `POLICIES`.

May import: nothing of the other rooms.
Tests: tests/policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from controller.frozen import dataclass
from controller.policy.params import ParamError, build
from controller.policy.queueing.ageing import Ageing, AgeingParams
from controller.policy.queueing.base import EventKind, QueueDecision, QueueEvent, QueueJob, QueuePolicy, Room
from controller.policy.queueing.evalstop import EvalStop
from controller.policy.queueing.fair_share import FairShare, FairShareParams
from controller.policy.queueing.fifo import Fifo, FifoParams
from controller.policy.queueing.las import Las, LasParams
from controller.policy.queueing.quotas import Quotas
from controller.policy.queueing.slaq import Slaq, SlaqParams
from controller.policy.queueing.srtf import Srtf, SrtfParams
from controller.policy.queueing.srtf_est import SrtfEst, SrtfEstParams
from controller.policy.types import PolicySpec, Quota

__all__ = [
    "MAX_WAIT",
    "POLICIES",
    "AgeingParams",
    "EvalStop",
    "EventKind",
    "PolicyType",
    "QueueDecision",
    "QueueEvent",
    "QueueJob",
    "QueuePolicy",
    "Quotas",
    "Room",
    "Srtf",
    "SrtfEst",
    "make_policy",
]


# A parameter that every policy takes: the bound on waits (`ageing`). Without it there is none.
MAX_WAIT = "max_wait"


@dataclass(frozen=True, slots=True)
class PolicyType:
    """A registered queue policy: its params dataclass and how to make it."""

    name: str
    params: type[Any]
    make: Callable[..., QueuePolicy]
    doc: str


POLICIES: Mapping[str, PolicyType] = {
    policy.name: policy
    for policy in (
        PolicyType(Fifo.name, FifoParams, Fifo, "in the order of submission, within priorities"),
        PolicyType(Srtf.name, SrtfParams, Srtf, "shortest remaining time first, preemptive"),
        PolicyType(
            SrtfEst.name, SrtfEstParams, SrtfEst, "shortest estimated remaining time first, preemptive"
        ),
        PolicyType(Las.name, LasParams, Las, "least attained service first, in queues, preemptive"),
        PolicyType(Slaq.name, SlaqParams, Slaq, "where the loss is expected to fall most, preemptive"),
        PolicyType(FairShare.name, FairShareParams, FairShare, "who is furthest below its share first"),
    )
}


def make_policy(spec: PolicySpec, quotas: Sequence[Quota] = ()) -> QueuePolicy:
    """Return the queue policy a spec names, with its bound on waits and within quotas if it has any, without
    EvalStop around it.

    Raises:
        ParamError: unknown policy or parameter, or a value out of bounds; the message names it.
    """
    if spec.name not in POLICIES:
        raise ParamError("queuePolicy", spec.name, "one of " + ", ".join(POLICIES))
    policy = POLICIES[spec.name]
    own = {name: value for name, value in spec.params.items() if name != MAX_WAIT}
    base = policy.make(build(policy.params, own, spec.name))
    if MAX_WAIT in spec.params:
        base = Ageing(base, build(AgeingParams, {MAX_WAIT: spec.params[MAX_WAIT]}, spec.name))
    return Quotas(base, quotas) if quotas else base
