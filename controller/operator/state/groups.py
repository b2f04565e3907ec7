"""Reports of worker groups, and what they come to: of each resident how it stands, of kinds of jobs how
their turns went.

In memory, by group; what has to last is in the WorkerGroup's status, in the jobs' and in the pool's. A
report is of one start: it counts as long as that start is the present one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from controller import names
from controller.api import convert
from controller.api.gpupool import GPUPool
from controller.api.status import PROFILES_MAX
from controller.api.workergroup import group_record
from controller.kube.cache import Cache, key_of
from controller.kube.packed import Stored
from controller.kube.resources import GPUPOOLS, JOBS, PODS, RLHFJOBS, WORKERGROUPS, Resource
from controller.objects import controller_of, controller_uid, is_terminal
from controller.policy.group_types import (
    LOST_IN_ROW,
    MAX_SLOWDOWN_PERCENT,
    SILENT,
    STAYS,
    KindProfile,
    LosesTurns,
    MeasuredSlowness,
    group_key,
    slowdown_limit,
)
from controller.policy.job import LAST_WORDS, GroupSeen, JobRecord, ResidencyRecord, residency
from controller.policy.pool import GroupRecord, profile_of, unready
from controller.policy.sharing import Pace, Paces, ReportedTurn, Slowness, TurnsOf, due, gpu_seconds, look
from controller.policy.types import JobKey
from controller.untrusted_text import one_line
from controller.web.group_report import GroupReport, ReportedResident
from controller.workloads.group_jobs import group_job_name, template_digest

Object = Mapping[str, Any]


@dataclass(slots=True)
class _Group:
    number: int
    report: GroupReport | None = None
    reported: float = 0.0  # when it was got (s)
    problem: str = ""  # why the newest question brought none
    unanswered: float | None = None  # since when questions bring none (s)
    paces: Paces = field(default_factory=Paces)


class Groups:
    """See the module.

    Args:
        cache: of the cluster.
        changed: called with a group's name when what jobs say of it changed.
        touch: called with a job's key when what its group says of it changed.
        pool_changed: called with a pool's name when a group of it is gone.
    """

    def __init__(
        self,
        cache: Cache,
        changed: Callable[[str], None],
        touch: Callable[[JobKey], None],
        pool_changed: Callable[[str], None],
    ) -> None:
        self._cache, self._changed, self._touch = cache, changed, touch
        self._pool_changed = pool_changed
        self._groups: dict[str, _Group] = {}
        self._jobs: dict[str, set[JobKey]] = {}  # by group: jobs that name a residency in it
        self._profiles: dict[str, KindProfile] = {}  # by kind: those known
        self._looked: dict[str, float] = {}  # by kind: when it was last measured (s)
        self._limits: dict[str, int] = {}  # by uid of residents' jobs: `slowdown_limit`
        self._uids: dict[JobKey, str] = {}  # of these
        cache.subscribe(self._on_change)

    # -- who is a resident -----------------------------------------------------------------------------------

    def residents(self, name: str) -> list[Object]:
        """Return the RLHFJobs that name a residency in a group."""
        return [stored.open() for stored in self.stored_residents(name)]

    def stored_residents(self, name: str) -> list[Stored]:
        """Return the same as the cache holds them."""
        found = (self._cache.find(RLHFJOBS, key) for key in sorted(self._jobs.get(name, ())))
        return [stored for stored in found if stored is not None]

    def of_pool(self, pool: str) -> list[Object]:
        """Return a pool's WorkerGroups, by name."""
        found = (obj for obj in self._cache.values(WORKERGROUPS) if obj["spec"]["pool"] == pool)
        return sorted(found, key=lambda obj: str(obj["metadata"]["name"]))

    def pods(self, obj: Object) -> list[Object]:
        """Return the pods of a WorkerGroup that have not ended, of whatever start.

        Those are among them whose Job was deleted and is gone before them, as after `kubectl delete job`.
        """
        opened = (stored.open() for stored in self._cache.of_job(JOBS, key_of(obj)))
        uid = str(obj["metadata"]["uid"])
        ours = {str(job["metadata"]["uid"]): controller_uid(job) == uid for job in opened}

        def is_ours(pod: Object) -> bool:
            owner = controller_of(pod) or {}
            head, _, number = str(owner.get("name")).rpartition("-")
            mine = head == str(obj["metadata"]["name"]) and number.isdecimal()
            left = mine and owner.get("kind") == "Job"
            return bool(ours.get(str(owner.get("uid")), left))

        pods = (stored.open() for stored in self._cache.of_job(PODS, key_of(obj)))
        return [pod for pod in pods if is_ours(pod) and not is_terminal(pod)]

    def _on_change(self, resource: Resource, old: Object | None, new: Object | None) -> None:
        if resource == WORKERGROUPS:
            obj = new or old
            assert obj is not None
            name = str(obj["metadata"]["name"])
            self._changed(name)
            if new is None:
                self._groups.pop(name, None)
                self._pool_changed(str(obj["spec"]["pool"]))
            for key in sorted(self._jobs.get(name, ())):
                self._touch(key)
        elif resource == GPUPOOLS and new is None and old is not None:
            for found in self.of_pool(str(old["metadata"]["name"])):
                self._changed(str(found["metadata"]["name"]))
        elif resource == RLHFJOBS:
            before, after = _residency(old), _residency(new)
            key = key_of(new or old or {})
            self._note_limit(key, new if after.get("group") else None)
            if before == after and (old is None) == (new is None):
                return
            for group in {str(one) for one in (before.get("group"), after.get("group")) if one}:
                mine = self._jobs.setdefault(group, set())
                if after.get("group") == group:
                    mine.add(key)
                else:
                    mine.discard(key)
                    if not mine:
                        del self._jobs[group]
                self._changed(group)

    # -- reports --------------------------------------------------------------------------------------------

    def take(self, name: str, number: int, report: GroupReport, at: float) -> bool:
        """Take in a group's report of a start, got ``at`` (s). Returns whether its pool has news by it: a
        kind of jobs has another profile now, or the group answers again."""
        known = self._groups.get(name)
        again = known is not None and known.unanswered is not None
        failed, slow = self.failing(name, number), _too_slow(known)
        before = self.report(name, number)
        if known is None or known.number != number:
            newest = report.residents[-1].name if report.residents else ""
            # After a start that this process has seen its residents begin anew, from their checkpoints.
            before_us = {} if known is not None and known.report is not None else self._stored(name)
            known = self._groups[name] = _Group(number, report, paces=Paces(newest, before_us))
        known.report, known.reported, known.problem, known.unanswered = report, at, "", None
        known.paces = known.paces.after([self._turns(one) for one in report.residents])
        if again or _facts(before) != _facts(report) or slow != _too_slow(known):
            for key in sorted(self._jobs.get(name, ())):
                self._touch(key)
        return self._learn(known, at) or again or failed != self.failing(name, number)

    def failed(self, name: str, why: str, at: float) -> bool:
        """Note why the newest question to a group brought no report, at a time (s). Returns whether it is the
        first one since the group answered: its pool and its jobs go by that."""
        known = self._groups.setdefault(name, _Group(0))
        known.problem = why
        if known.unanswered is not None:
            return False
        known.unanswered = at
        for key in sorted(self._jobs.get(name, ())):
            self._touch(key)
        return True

    def unanswered(self, name: str, record: GroupRecord) -> float | None:
        """Return since when questions to a group bring no report (s); None: the newest did, or the group was
        never ready. Before this process has a report of it, what was written of it counts, too."""
        known = self._groups.get(name)
        if record.ready_at is None:
            return None
        if known is not None and known.report is not None and known.number == record.number:
            return known.unanswered
        asked = known.unanswered if known is not None else None
        return record.unanswered if record.unanswered is not None else asked

    def silent(self, name: str, now: float) -> bool:
        """Return whether the questions of this process have brought no report for so long that it counts."""
        known = self._groups.get(name)
        return known is not None and known.unanswered is not None and now >= known.unanswered + SILENT

    def reported(self, name: str) -> float | None:
        """Return when a group's newest report was got (s); None: there is none."""
        known = self._groups.get(name)
        return known.reported if known is not None and known.report is not None else None

    def problem(self, name: str) -> str:
        """Return why the newest question to a group brought no report; "": it brought one."""
        known = self._groups.get(name)
        return known.problem if known is not None else ""

    def measures(self, name: str) -> bool:
        """Return whether a group's only resident is of a kind that is still being measured."""
        residents = _residents(self._groups.get(name))
        return len(residents) == 1 and residents[0].kind not in self._profiles

    def report(self, name: str, number: int) -> GroupReport | None:
        """Return the newest report of a group's start; None: there is none."""
        known = self._groups.get(name)
        return known.report if known is not None and known.number == number else None

    def heard(self, name: str) -> tuple[Any, ...]:
        """Return what of a group's newest report decides something, and the start that it is of."""
        known = self._groups.get(name)
        return (known.number, *_facts(known.report)) if known is not None else ()

    def failing(self, name: str, number: int) -> tuple[str, ...]:
        """Return the residencies of a group's start of which it loses each turn, as last reported."""
        report = self.report(name, number)
        return tuple(who for who, _ in lost_turns(report)) if report is not None else ()

    def outdated(self, obj: Object, record: GroupRecord, pool: object) -> bool:
        """Return whether a group's present start was made from a template that its family has no more.

        Of a Job that does not tell its template, as an earlier version made it, that is not known.
        """
        job = self._cache.get(JOBS, group_key(group_job_name(obj["metadata"]["name"], record.number)))
        made = ((job or {}).get("metadata", {}).get("annotations") or {}).get(names.ANNOTATION_TEMPLATE)
        sharing = pool.spec.sharing if isinstance(pool, GPUPool) else None
        if made is None or sharing is None:
            return False
        present = (one for one in sharing.families if one.name == obj["spec"]["family"])
        return all(template_digest(one.template.model_dump()) != made for one in present)

    def charged(self, name: str, number: int) -> dict[str, float]:
        """Return the GPU-seconds of each residency in a group's start, as last reported."""
        report = self.report(name, number)
        return {one.name: float(gpu_seconds(one.charge)) for one in (report.residents if report else ())}

    def seen(self, uid: str, record: JobRecord) -> GroupSeen | None:
        """Return what a job's group says of it; None: it has no residency."""
        known = record.residency
        if known is None or not known.group:
            return None
        obj = self._cache.get(WORKERGROUPS, group_key(known.group))
        if obj is None:
            return GroupSeen(known.group, gone=True)
        name = residency.name_of(uid, known.number)
        group: GroupRecord = group_record(obj)
        entry = group.resident(name)
        reported = self._groups.get(known.group)
        if reported is not None and reported.number != group.number:
            reported = None
        if entry is None:
            # It is taken out of the group's record once worker and state are gone, and never put in again.
            return GroupSeen(known.group, gone=known.leaving, charged=known.charged)
        pace = reported.paces.of.get(name) if reported is not None else None
        slow = pace.slowness if pace is not None else Slowness(known.took, known.alone, known.above)
        loses = _loses(reported, name) if reported is not None else _lost_before(known)
        kind = next((one.kind for one in _residents(reported) if one.name == name), None)
        charged = (
            entry.charged + self.charged(known.group, group.number).get(name, 0.0)
            if reported
            else known.charged
        )
        return GroupSeen(
            known.group,
            joined=entry.joined,
            charged=max(charged, known.charged),
            slowness=MeasuredSlowness(slow.took, slow.alone, slow.above),
            unanswered=self.unanswered(known.group, group),
            problem=self.problem(known.group),
            profiled=kind in self._profiles or known.profiled,
            loses=loses,
            trouble=group.trouble,
            unready=unready(group),
        )

    # -- what is measured -----------------------------------------------------------------------------------

    def profiles(self, stored: Iterable[KindProfile], group_names: Iterable[str]) -> tuple[KindProfile, ...]:
        """Return the profiles of a pool's kinds, newest last: those stored, and those of residents of its
        groups that are enough by now.

        Args:
            stored: in the pool's status.
            group_names: of its groups.
        """
        found = {one.kind: one for one in stored}
        self._profiles = found | self._profiles
        for name in group_names:
            for one in _residents(self._groups.get(name)):
                if (profile := self._profiles.get(one.kind)) is not None:
                    found[profile.kind] = profile
        return tuple(found.values())[-PROFILES_MAX:]

    def _learn(self, known: _Group, now: float) -> bool:
        """Take up what residents' turns say of their kinds; return whether one has another profile now."""
        residents, news = _residents(known), False
        for one in residents:
            before = self._profiles.get(one.kind)
            alone, looked = len(residents) == 1, self._looked.get(one.kind)
            if one.kind and due(before is not None, alone, looked, now):
                news |= self._take_up(one, before, now)
        return news

    def _take_up(self, one: ReportedResident, before: KindProfile | None, now: float) -> bool:
        kind, stored = one.kind, profile_of(before) if before is not None else None
        found = look(kind, stored, [ReportedTurn(*turn) for turn in one.turns], one.loads, one.offloads)
        if found.enough:
            self._looked[kind] = now
        profile = found.profile
        if profile is None:
            return False
        pairs = tuple((turn.away, turn.held) for turn in profile.turns)
        self._profiles[kind] = KindProfile(
            kind, pairs, profile.per_step, profile.lag, profile.loads, profile.offloads
        )
        return True

    def _turns(self, one: ReportedResident) -> TurnsOf:
        return TurnsOf(one.name, one.released, one.turns, self._limit(one.name))

    def _note_limit(self, key: JobKey, obj: Object | None) -> None:
        """Keep by how much a resident's steps may take longer; None: it is none. Asked at every report."""
        self._limits.pop(self._uids.pop(key, ""), None)
        if obj is not None:
            uid = self._uids[key] = str(obj["metadata"]["uid"])
            self._limits[uid] = slowdown_limit((obj.get("spec") or {}).get("sharing") or {})

    def _limit(self, resident: str) -> int:
        """Return by how much (percent) a resident's steps may take longer."""
        return self._limits.get(resident.rpartition("-")[0], MAX_SLOWDOWN_PERCENT)

    def _stored(self, name: str) -> dict[str, Pace]:
        """Return how slow a group's residents are by their jobs' statuses, before a report was seen."""
        found = {}
        for obj in self.residents(name):
            known: ResidencyRecord | None = convert.field(obj.get("status"), "residency")
            if known is not None:
                resident = residency.name_of(obj["metadata"]["uid"], known.number)
                found[resident] = Pace(Slowness(known.took, known.alone, known.above))
        return found


def _residents(known: _Group | None) -> tuple[ReportedResident, ...]:
    return known.report.residents if known is not None and known.report is not None else ()


def _too_slow(known: _Group | None) -> set[str]:
    """Return the residencies that have been slower than they allow for so long that somebody has to leave."""
    paces = known.paces.of if known is not None else {}
    return {name for name, pace in paces.items() if pace.slowness.above >= STAYS}


def _facts(report: GroupReport | None) -> tuple[Any, ...]:
    """Return what of a report jobs wait for: figures are written with their evals."""
    if report is None:
        return ()
    lost = [name for name, _ in lost_turns(report)]
    return report.ready, [one.name for one in report.residents], report.gone, lost


def lost_turns(report: GroupReport) -> tuple[tuple[str, str], ...]:
    """Return the residencies of which a group loses each turn, and how it lost the newest of each."""
    return tuple(
        (one.name, one_line(one.why_lost, LAST_WORDS) or "it does not say why")
        for one in report.residents
        if one.lost_in_row >= LOST_IN_ROW
    )


def _loses(known: _Group, name: str) -> LosesTurns | None:
    """Return since when a group loses each turn of a residency, by its newest report; None: it does not."""
    report = known.report
    why = dict(lost_turns(report)).get(name) if report is not None else None
    one = report.resident(name) if report is not None else None
    if report is None or one is None or why is None:
        return None
    return LosesTurns(known.reported - max(0, report.now - one.failing) / 1e6, why)


def _lost_before(known: ResidencyRecord) -> LosesTurns | None:
    """Return the same as it was written, until there is a report of the present start."""
    return None if known.lost_since is None else LosesTurns(known.lost_since, known.lost_why)


def _residency(obj: Object | None) -> Mapping[str, Any]:
    found: Mapping[str, Any] = ((obj or {}).get("status") or {}).get("residency") or {}
    return {name: found.get(name) for name in ("group", "number", "leaving")}
