"""The fit of a job into a group beside its residents; if there is none, the reason.

Asked in this order, the cheap questions first: does the group take newcomers, is it of the family and the
namespace, is nobody being measured alone, is there a residency, are duties small enough, is there memory,
and would nobody get slower than it allows (`overlap.slowdowns`).

Memory of a member. Host: one state for each resident and a spare, into which the next version is written
beside the present one: the sum of all states and the largest once more. Device: one state, and what each
other resident keeps there while it sleeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum

from controller.frozen import dataclass
from controller.policy.group_types import times_allowed
from controller.policy.sharing.overlap import player, slowdowns
from controller.policy.sharing.types import Family, Resident, SharingSettings, WorkerGroup

GB = 1e9


class Misfit(StrEnum):
    """Reasons for which a job does not fit into a group."""

    CLOSED = "Closed"
    FAMILY = "OtherFamily"
    NAMESPACE = "OtherNamespace"
    LEFT_BEFORE = "LeftBefore"
    UNMEASURED = "Unmeasured"
    RESIDENTS = "NoResidency"
    DUTY = "DutyTooHigh"
    HOST_MEMORY = "HostMemoryFull"
    DEVICE_MEMORY = "DeviceMemoryFull"
    SLOWDOWN = "SlowdownTooHigh"


@dataclass(frozen=True, slots=True)
class Fit:
    """The answer to: does this job fit into this group?

    Args:
        group: the group's name.
        misfit: None: it fits.
        message: why not, with the numbers; empty if it fits.
        slowdowns: predicted, of each resident by key and of the job; empty if that was not asked.
    """

    group: str
    misfit: Misfit | None = None
    message: str = ""
    slowdowns: tuple[tuple[str, float], ...] = ()

    @property
    def fits(self) -> bool:
        return self.misfit is None


def fit_into(job: Resident, group: WorkerGroup, family: Family, settings: SharingSettings) -> Fit:
    """Return whether a job fits beside a group's residents."""
    for ask in _QUESTIONS:
        for misfit, message in ask(job, group, family, settings):
            return Fit(group.name, misfit, f"{message} in {group.name}")
    everybody = (*group.residents, job)
    predicted = _predicted(everybody, settings)
    for one, slowdown in zip(everybody, predicted, strict=True):
        allowed = times_allowed(one.max_slowdown_percent)
        if slowdown > allowed:
            message = f"{one.key} would be {slowdown:.2f} times as slow, {allowed:.2f} is allowed"
            found = tuple((r.key, s) for r, s in zip(everybody, predicted, strict=True))
            return Fit(group.name, Misfit.SLOWDOWN, f"{message} in {group.name}", found)
    return Fit(group.name, slowdowns=tuple((r.key, s) for r, s in zip(everybody, predicted, strict=True)))


def alone(job: Resident, family: Family) -> Fit:
    """Return whether a job fits into a group of its own: by memory alone."""
    empty = WorkerGroup("a group of its own", family.name)
    for misfit, message in _memory(job, empty, family, SharingSettings()):
        return Fit(empty.name, misfit, f"{message} in {empty.name}")
    return Fit(empty.name)


Question = Callable[[Resident, WorkerGroup, Family, SharingSettings], Iterator[tuple[Misfit, str]]]


def _who(
    job: Resident, group: WorkerGroup, family: Family, settings: SharingSettings
) -> Iterator[tuple[Misfit, str]]:
    if group.closed:
        yield Misfit.CLOSED, f"no newcomers ({group.closed})"
    if not job.family == family.name == group.family:
        yield Misfit.FAMILY, f"family {job.family}, not {group.family},"
    for one in group.residents[:1]:
        if one.namespace != job.namespace:
            yield Misfit.NAMESPACE, f"residents are of another namespace than {job.namespace}"
    if group.name in job.not_in:
        yield Misfit.LEFT_BEFORE, "a resident was too slow beside it"


def _measured(
    job: Resident, group: WorkerGroup, family: Family, settings: SharingSettings
) -> Iterator[tuple[Misfit, str]]:
    if group.residents and not job.known:
        yield Misfit.UNMEASURED, f"{job.key} is of a kind that has to be measured alone first, not"
    for one in group.residents:
        if not one.known:
            yield Misfit.UNMEASURED, f"{one.key} is being measured alone"


def _room(
    job: Resident, group: WorkerGroup, family: Family, settings: SharingSettings
) -> Iterator[tuple[Misfit, str]]:
    if len(group.residents) >= settings.max_residents:
        yield Misfit.RESIDENTS, f"{len(group.residents)} of {settings.max_residents} residents"
    duties = [one.profile.duty for one in group.residents if one.profile is not None]
    own = job.profile.duty if job.profile is not None else 0.0
    most = settings.max_duty_percent / 100.0
    if group.residents and sum(duties) + own > most:
        terms = " + ".join(f"{duty:.2f}" for duty in (*duties, own))
        yield Misfit.DUTY, f"duty {terms} > {most:.2f}"


def _memory(
    job: Resident, group: WorkerGroup, family: Family, settings: SharingSettings
) -> Iterator[tuple[Misfit, str]]:
    states = [one.state_bytes for one in (*group.residents, job)]
    host = sum(states) + max(states)
    if host > family.host_bytes:
        terms = " + ".join(f"{size / GB:.1f}" for size in (*states, max(states)))
        yield (
            Misfit.HOST_MEMORY,
            f"host memory {terms} > {family.host_bytes / GB:.1f} GB (a spare of the largest state)",
        )
    device = max(states) + (len(states) - 1) * family.residual_bytes
    if device > family.device_bytes:
        sleeping = f"{len(states) - 1} x {family.residual_bytes / GB:.1f}"
        yield (
            Misfit.DEVICE_MEMORY,
            f"device memory {max(states) / GB:.1f} + {sleeping} > {family.device_bytes / GB:.1f} GB",
        )


_QUESTIONS: tuple[Question, ...] = (_who, _measured, _room, _memory)


def _predicted(everybody: Sequence[Resident], settings: SharingSettings) -> tuple[float, ...]:
    if len(everybody) == 1:
        return (1.0,)
    players = tuple(
        player(one.profile, one.state_bytes) for one in everybody if one.profile is not None
    )  # all are known by now
    return slowdowns(players, settings.consecutive)
