"""Status of an RLHFJob and of a GPUPool: what the brain remembers, and beside it what is for people.

Written by the operator only, through the status subresource. The schema (`controller.api.schema`) and the
codec (`controller.api.codec`) are made from the declarations here and in the brain. Numbers that are not
whole are decimal strings that read back as the very same double. Lists are atomic: one writer.
"""

from __future__ import annotations

from typing import Annotated

from controller.frozen import dataclass
from controller.policy.actor_types import Reserved
from controller.policy.fleet import ALL_KEPT as FALLS_KEPT
from controller.policy.fleet import NOISE_KEPT, STOPS_KEPT
from controller.policy.job import ConditionList, JobRecord
from controller.policy.pool import HANDOVERS_KEPT, RESERVATIONS_MAX, Handover
from controller.policy.sharing import MOST_STEPS, MOST_TURNS
from controller.policy.stored import AtMost, Count, Form, Path, Step, Time, Within, Word
from controller.policy.types import MetricNoise, PastStop, Reservation, SharedFall

NODE_SIZES_MAX = 32
QUOTAS_MAX = 32
QUOTA_NAMESPACES_MAX = 8
PROFILES_MAX = 64

Microseconds = Annotated[int, Within(0, None, "int64")]
Generation = Annotated[Count | None, "Generation of the spec last looked at."]
Epoch = Annotated[
    Count | None,
    "Term of office of the operator that wrote this last; it only grows. The API server refuses what a "
    "leader of an earlier term still writes.",
]


@dataclass(frozen=True, slots=True)
class Printed:
    """Short texts for kubectl's columns, made from the rest of the status; nothing reads them back."""

    reason: Annotated[Word | None, "Why it is in its state, as a CamelCase code."] = None
    gpus: Annotated[Word | None, "GPUs held and wanted, as in 4/4."] = None
    step: Annotated[Step | None, "Step of the newest eval."] = None
    eval: Annotated[Word | None, "Newest score, rounded."] = None
    best: Annotated[
        Word | None,
        "Best score, rounded; (lost): its checkpoint is no longer to be had; (alone): it was compared with "
        "no other eval, for all before were scored otherwise.",
    ] = None
    streak: Annotated[Word | None, "The rule's statistic and threshold, as in 2/3."] = None


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The operator's record of a job: observations, decisions, acts."""

    record: Annotated[JobRecord, Form.INLINE]
    observed_generation: Generation = None
    epoch: Epoch = None
    summary: Annotated[Word | None, "The condition that matters most now, in one word."] = None
    printed: Annotated[Printed | None, "Short texts for kubectl's columns."] = None
    pins_folder: Annotated[Path | None, "The folder that relative paths of pins are in."] = None


@dataclass(frozen=True, slots=True)
class NodeSize:
    """Nodes with the same number of GPUs."""

    gpus: Annotated[Count, "GPUs of each, as found."]
    nodes: Annotated[Count, "Number of such nodes."]


@dataclass(frozen=True, slots=True)
class Stops:
    """Stops by rules so far, against spec.stopLimits."""

    last_hour: Annotated[Count | None, "Stops granted in the last hour."] = None
    today: Annotated[Count | None, "Stops granted on this day (UTC)."] = None
    breaker_since: Annotated[
        Time | None, "Since when some namespace's breaker has been open; absent: none is."
    ] = None
    granted: Annotated[
        tuple[PastStop, ...],
        AtMost(STOPS_KEPT),
        "Stops of the last hour and of this day (UTC), newest last.",
    ] = ()


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """GPUs in use under an entry of spec.quotas."""

    namespaces: Annotated[
        tuple[Annotated[str, AtMost(63)], ...], AtMost(QUOTA_NAMESPACES_MAX), "Its namespaces."
    ]
    guaranteed: Annotated[Count, "GPUs guaranteed to them."]
    used: Annotated[Count, "GPUs of their gangs, from admission until they are off them."]
    borrowed: Annotated[Count, "Part of used above guaranteed."]
    waiting: Annotated[Count, "GPUs that their waiting gangs ask for."]
    limit: Annotated[Count | None, "The most GPUs they may have; absent: no limit."] = None


@dataclass(frozen=True, slots=True)
class KindMeasured:
    """Measured turns of a kind of jobs that share worker groups, alone in a group."""

    kind: Annotated[str, AtMost(253), "The kind: namespace, family, and a digest of labels and template."]
    turns: Annotated[
        tuple[Microseconds, ...],
        AtMost(2 * MOST_STEPS * MOST_TURNS),
        "Microseconds of each turn: away from the group, then held, one after the other.",
    ]
    per_step: Annotated[Count, "Turns of one step."] = 1
    lag: Annotated[Count, "Steps by which training may be behind rollouts."] = 0
    loads: Annotated[tuple[Microseconds, ...], AtMost(MOST_STEPS), "Microseconds of the newest loads."] = ()
    offloads: Annotated[
        tuple[Microseconds, ...], AtMost(MOST_STEPS), "Microseconds of the newest off-loads."
    ] = ()


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """The pool's GPUs and the jobs that have them."""

    conditions: Annotated[ConditionList, "Aspects of the pool's state."] = ()
    observed_generation: Generation = None
    epoch: Epoch = None
    node_sizes: Annotated[
        tuple[NodeSize, ...],
        AtMost(NODE_SIZES_MAX),
        "GPUs per usable node as found, and on how many; the largest first.",
    ] = ()
    capacity: Annotated[Count | None, "GPUs of its usable nodes."] = None
    free: Annotated[Count | None, "GPUs that nobody has requested and nobody is kept."] = None
    held: Annotated[
        Count | None,
        "GPUs kept for admitted gangs whose pods have no node yet, or reserved for a job.",
    ] = None
    foreign: Annotated[Count | None, "GPUs that pods of no RLHFJob of the pool have requested."] = None
    actors: Annotated[Count | None, "GPUs of rollout actors; absent: no job has any."] = None
    lent: Annotated[
        Count | None, "GPUs of base actors that were let go, for others to have; absent: no job has actors."
    ] = None
    recalled: Annotated[
        tuple[Reserved, ...],
        AtMost(RESERVATIONS_MAX),
        "GPUs of rollout actors that were recalled, and for whom they are kept.",
    ] = ()
    shared: Annotated[Count | None, "GPUs of worker groups; absent: the pool has none."] = None
    running: Annotated[Count | None, "Jobs that hold GPUs."] = None
    queued: Annotated[Count | None, "Jobs that wait."] = None
    reservations: Annotated[
        tuple[Reservation, ...],
        AtMost(RESERVATIONS_MAX),
        "GPUs on their way from one job to another.",
    ] = ()
    quotas: Annotated[tuple[QuotaUse, ...], AtMost(QUOTAS_MAX), "How each entry of spec.quotas stands."] = ()
    last_handovers: Annotated[
        tuple[Handover, ...],
        AtMost(HANDOVERS_KEPT),
        "The newest stops and who got their GPUs, newest last.",
    ] = ()
    stops: Annotated[Stops | None, "Stops against their limits."] = None
    noise: Annotated[
        tuple[MetricNoise, ...], AtMost(NOISE_KEPT), "The usual noise of each namespace's metrics."
    ] = ()
    shared_falls: Annotated[
        tuple[SharedFall, ...],
        AtMost(FALLS_KEPT),
        "Sudden falls that jobs share, the newest of each namespace's metrics.",
    ] = ()
    next_group: Annotated[
        Count | None, "Number of the next worker group's name; absent: none was opened."
    ] = None
    profiles: Annotated[
        tuple[KindMeasured, ...], AtMost(PROFILES_MAX), "Kinds of jobs that were measured, newest last."
    ] = ()
