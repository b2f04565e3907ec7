"""What must be true of every history, told from the truth alone: what trainers evaluated and wrote.

Of the product it uses a stop rule's fold, and reads what the product says of itself only to hold it to that.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from controller.policy.jobs import JobRecord, Kept, ScrapeOutcome, ScrapeView
from controller.policy.stopping import make_rule
from controller.policy.types import Admission, EvalPoint, Mode, PolicySpec, Verb
from tests.faults.cluster import Job
from tests.faults.trainer import Eval, Life, Saved, fingerprint, read

if TYPE_CHECKING:
    from tests.faults.shell import Thought
    from tests.faults.world import World

WINDOW = 240.0  # s: a scrape interval, two access Jobs one after the other, a retry, and as much again
FRESH = 45.0  # s by which what an operator knows of a trainer may be old when it suspends it
SETTLE, STILL = 400, 25  # rounds of 20 s until all has to be at rest, and for how many it has to be
STOPS_WITHIN = 1500.0  # s until a user's stop has suspended, while an operator runs
LOST_EVALS = 2  # evals after which a checkpoint that is not there is not still being written
LOST_AFTER = 300.0  # s until a best whose checkpoint is gone has to be given up for the next best


class Violation(AssertionError):
    """What must never be: the invariant's name first."""


@dataclass
class Owed:
    """A best eval whose checkpoint must be in safety from now on."""

    eval: Eval
    saved: Saved
    at: float


@dataclass
class Case:
    """What the oracle knows of one RLHFJob."""

    owed: list[Owed] = field(default_factory=list)
    specs: list[tuple[float, dict[str, Any]]] = field(default_factory=list)  # when, the spec from then on
    desired: list[tuple[float, Any]] = field(default_factory=list)
    evaluators: list[str] = field(default_factory=lambda: ["1"])
    baseline: int = 0  # lives before this one count for no stop
    wrong: dict[str, float] = field(default_factory=dict)  # since when something is as it must not stay
    resumed_best: float | None = None
    ended: bool = False
    stopping: float = 0.0  # s for which its user's stop has not suspended it
    asked_to_go_on: bool = False  # its user resumed it after its end
    shown: ScrapeView | None = None  # the page that was last read
    fooled: bool = False  # a page that does not say whose it is may have been another's


class Oracle:
    def __init__(self, world: World) -> None:
        self.world = world
        self.cases: dict[str, Case] = {}
        self.dirty = True
        self.read: dict[str, int] = {}  # at which number of changes by the trainer
        self.settled = False  # nothing new has happened for long
        self.kept: dict[str, list[tuple[str, Saved | None]]] = {}  # by uid, until files may have changed

    def fail(self, invariant: str, job: Job, text: str) -> None:
        raise Violation(f"{invariant} {job.name}: {text}")

    def case(self, job: Job) -> Case:
        found = self.cases.get(job.uid)
        if found is None:
            found = self.cases[job.uid] = Case()
        return found

    # -- what is told to it --------------------------------------------------------------------------------

    def submitted(self, job: Job) -> None:
        self.case(job).specs.append((self.world.now, job.obj["spec"]))

    def edited(self, job: Job, fields: dict[str, Any]) -> None:
        if job.trained and fields.get("resume"):
            self.case(job).asked_to_go_on = True
        if any(path.startswith("metrics") for path in fields):
            self.case(job).owed.clear()

    def deleted(self, job: Job) -> None:
        self.case(job).ended = True

    def planned(self, thought: Thought) -> None:
        known = self.case(thought.job).desired
        if not known or known[-1][1] is not thought.desired:
            known.append((self.world.now, thought.desired))

    def scraped(self, job: Job, view: ScrapeView) -> None:
        life, case = job.life, self.case(job)
        if life is None or view.outcome is not ScrapeOutcome.OK or case.shown is view:
            return
        case.shown = view
        shown = {(str(p.attempt), p.step, p.score) for p in view.points}
        branch = {id(e) for e in life.branch}
        for e in (e for other in job.lives for e in other.evals):
            e.left = e.left or id(e) not in branch
        # What came on one page with the news of another evaluator may be the old one's.
        known = next((e for e in reversed(life.evals) if e.shown is not None), None)
        doubtful = known is not None and known.evaluator != life.evaluator
        for e in life.page():
            if e.shown is None and (life.text, e.step, e.score) in shown:
                e.shown, e.doubtful = self.world.now, doubtful

    def born(self, job: Job, life: Life, source: Saved | None) -> None:
        if not job.names_itself and len(job.lives) > 1:
            self.case(job).fooled = True  # without a name a new process is not known before its first eval
        if job.trained:
            self.fail("S3", job, f"trained again: it had ended ({job.trained}), process {life.text} starts")

    def resumed(self, job: Job, life: Life, path: str, source: Saved | None) -> None:
        if source is None:
            self.fail(
                "S5",
                job,
                f"process {life.text} resumes from {path}, which is no whole checkpoint of its trainer",
            )
        if job.spec("resume.from") != "Best":
            return
        kept = [s for where, s in self.contents(job) if s is not None and "/retained/" in where]
        values = [v for s in kept if (v := self.value(job, s, job.lives[-1].evaluator)) is not None]
        chosen = self.value(job, source, job.lives[-1].evaluator)
        if chosen is not None and values and chosen < max(values) - 1e-9:
            self.fail(
                "S5", job, f"resumes from a checkpoint worth {chosen:.3f}; {max(values):.3f} is retained"
            )

    def written(self, job: Job, before: JobRecord, after: JobRecord) -> None:
        if before.secured != after.secured or before.retained != after.retained:
            self.dirty = True

    # -- S1 ------------------------------------------------------------------------------------------------

    def sign(self, job: Job) -> float:
        return 1.0 if job.spec("metrics")[0].get("direction", "Maximize") == "Maximize" else -1.0

    def worth(self, job: Job, e: Eval) -> float:
        return self.sign(job) * e.score

    def tick(self, seconds: float, up: bool) -> None:
        world = self.world
        for job in world.jobs.values():
            if job.gone:
                continue
            case = self.case(job)
            if up:
                self._owe(job, case, seconds)
                self._stops_in_time(job, case, seconds)
        if self.dirty:
            self.dirty = False
            for job in world.jobs.values():
                self.look(job)

    def watched(self, job: Job) -> bool:
        """Whether all that is needed to bring a best checkpoint to safety works now."""
        world = self.world
        record = world.operator.record(job.obj)
        view = world.operator.scrapes.get(job.key)
        return (
            job.spec("mode", "Enforce") == "Enforce"
            and job.spec("runState", "Run") == "Run"
            and "deletionTimestamp" not in job.obj["metadata"]
            and job.life is not None
            and not job.trained
            and job.child is not None
            and not job.child.suspended
            and record.finished is None
            and world.now >= world.out_until
            and world.now >= world.no_space_until
            and view is not None
            and view.outcome is ScrapeOutcome.OK
            and not world.pages.get(job.key)
            and not self._unclaimed(job)
            and not any(self._slow(job, a) for a in job.access.values())
        )

    def _unclaimed(self, job: Job) -> bool:
        """Whether the folder is still its predecessor's, because claims fail or did until a while ago."""
        owner = job.files.folder / ".evalstop" / "owner.json"
        if self.world.now > self.world.claims_out_until + 700.0 or not owner.exists():
            return False
        return json.loads(owner.read_text())["uid"] != job.uid

    def _slow(self, job: Job, access: Any) -> bool:
        if access.operation == "pin" or (access.operation == "claim" and job.files.records):
            return False  # nothing that is owed may wait for it; without save records it tells what is whose
        return access.hangs or access.ends - access.created > 30.0

    def _owe(self, job: Job, case: Case, seconds: float) -> None:
        if not self.watched(job):
            return
        life = job.life
        assert life is not None
        evals = [
            e
            for e in life.branch
            if e.shown is not None
            and e.fault in ("", "outlier")
            and not e.doubtful
            and not e.left
            and e.evaluator == life.evaluator
            and e.life in job.lives
        ]
        patience = 0.0
        for e in sorted(evals, key=lambda e: -self.worth(job, e)):
            saved = self._checkpoint(job, e)
            lags = saved is not None and saved.step < e.step and (life.checkpoint_step or 0) < e.step
            if lags and not any(later.step > e.step for later in evals):
                return  # its own checkpoint may still come
            if saved is None or not saved.lies:
                # The operator looks for this one first: while it may still be written, and then for a while.
                if sum(1 for later in evals if later.step > e.step) < LOST_EVALS and e.life is life:
                    return
                patience += LOST_AFTER
                since = case.wrong.setdefault(f"lost {e.life.text} {e.step}", self.world.now)
                if self.world.now - since < patience:
                    return
                continue
            if e.fault or e.jumps:
                continue  # it may count for nothing; the operator may keep it beside the best
            if all(o.eval is not e for o in case.owed):
                saved.good += seconds
                if saved.good > WINDOW:
                    case.owed.append(Owed(e, saved, self.world.now))
                    self.world.saw("S1: a checkpoint is owed")
                    self.dirty = True
            return

    def _checkpoint(self, job: Job, e: Eval) -> Saved | None:
        """The checkpoint that stands for an eval: of its step, or at most the lag earlier on its branch."""
        lag = job.spec("checkpoints.maxStepLag", 0) or 0
        found = [
            s
            for s in job.files.saved
            if s.life.pod and e.step - lag <= s.step <= e.step and self._on_the_way(e, s)
        ]
        return max(found, key=lambda s: (s.lies, s.step, len(job.files.saved)), default=None)

    def contents(self, job: Job) -> list[tuple[str, Saved | None]]:
        """(path, whose content it is) of all that is pinned or retained; None: of no save that returned."""
        known = self.kept.get(job.uid)
        if known is not None and job.files.changes == self.read.get(job.uid):
            return known
        by_print = {s.print: s for s in job.files.saved}
        found: list[tuple[str, Saved | None]] = []
        pins = job.files.folder / ".evalstop" / job.uid
        kept = self.world.root / "retained" / "team" / f"{job.name}-{job.uid[:5]}"
        for place in (pins, kept):
            if place.is_dir():
                for path in sorted(place.iterdir()):
                    if path.is_dir() and not path.name.startswith((".", "resume")):
                        found.append((str(path), by_print.get(fingerprint(read(path)))))
        self.kept[job.uid], self.read[job.uid] = found, job.files.changes
        return found

    def changed(self, job: Job) -> None:
        """An access Job may change what is in safety."""
        self.dirty = True
        self.kept.pop(job.uid, None)

    def look(self, job: Job) -> None:
        """Compare what is in safety with what has to be."""
        case = self.case(job)
        if job.gone or case.ended or case.fooled:
            return
        there = self.contents(job)
        case.owed = [o for o in case.owed if not (o.saved.spoilt and not self._retained(there, o.saved))]
        recent = list(dict.fromkeys(e.evaluator for life in job.lives for e in life.evals))[-2:]
        case.owed = [o for o in case.owed if o.eval.evaluator in recent]  # one former scale's best is kept
        safe = [s for _, s in there if s is not None]
        for evaluator in {o.eval.evaluator for o in case.owed}:
            owed = max(
                (o for o in case.owed if o.eval.evaluator == evaluator), key=lambda o: self.worth(job, o.eval)
            )
            values = [v for s in safe if (v := self.value(job, s, evaluator)) is not None]
            if not values or max(values) < self.worth(job, owed.eval) - 1e-9:
                has = (
                    f"the best in safety is worth {max(values):.3f}"
                    if values
                    else "nothing of it is in safety"
                )
                self.fail(
                    "S1",
                    job,
                    f"best eval {owed.eval.score:.3f} at step {owed.eval.step} of {owed.eval.life.text}: "
                    + has,
                )
        self._word(job, there)

    def _retained(self, there: list[tuple[str, Saved | None]], saved: Saved) -> bool:
        return any(s is saved and "/retained/" in path for path, s in there)

    def value(self, job: Job, saved: Saved, evaluator: str) -> float | None:
        """The best true eval that a checkpoint stands for."""
        lag = job.spec("checkpoints.maxStepLag", 0) or 0
        found = [
            self.worth(job, e)
            for life in job.lives
            for e in life.evals
            if not e.fault
            and e.evaluator == evaluator
            and saved.step <= e.step <= saved.step + lag
            and self._on_the_way(e, saved)
        ]
        return max(found, default=None)

    def _word(self, job: Job, there: list[tuple[str, Saved | None]]) -> None:
        """What the record says is in safety: it is there, whole, and of the eval that it names."""
        record = self.world.operator.record(job.obj)
        contents = dict(there)
        root = str(self.world.root / "retained")
        for what, kept in [("pinned", record.secured), *(("retained", k) for k in record.retained)]:
            if kept is None:
                continue
            path = (
                kept.path.replace("/retained", root, 1) if kept.path.startswith("/retained/") else kept.path
            )
            saved = contents.get(path)
            if saved is None:
                if any(s.spoilt for s in job.files.saved if s.step == kept.step) or not kept.path:
                    continue
                if path in contents:
                    self.fail(
                        "S1",
                        job,
                        f"{what} as whole for step {kept.best_step}: no save ever had these files, {path}",
                    )
                if not self.settled:
                    continue  # the pin may have been let go by the Job whose answer comes next
                self.fail("S1", job, f"{what} for step {kept.best_step} by the record, but not there: {path}")
            elif not saved.spoilt:
                self._names_right(job, what, kept, saved)

    def _names_right(self, job: Job, what: str, kept: Kept, saved: Saved) -> None:
        if saved.life not in job.lives and not any(life.resumed == saved.step for life in job.lives):
            self.fail(
                "S1",
                job,
                f"{what} for step {kept.best_step} is step {saved.step} that lay there before the job",
            )
        evals = [
            e
            for life in job.lives
            for e in life.evals
            if e.step == kept.best_step and (kept.score is None or abs(e.score - kept.score) < 1e-9)
        ]
        right = [e for e in evals if self._on_the_way(e, saved)]
        if what == "pinned" and any(s.spoilt for s in job.files.saved if s.step == saved.step):
            return  # a pin shares its bytes with files that the trainer wrote into again
        if evals and not right:
            self.fail(
                "S1",
                job,
                f"{what} for the eval {kept.score} at step {kept.best_step}, but the files are of step "
                f"{saved.step} of {saved.life.text}, another branch",
            )
        if not evals and kept.score is not None:
            self.fail(
                "S1", job, f"{what} with score {kept.score} at step {kept.best_step}: no eval ever had it"
            )

    @staticmethod
    def _on_the_way(e: Eval, saved: Saved) -> bool:
        life, most = e.life, e.step
        while True:
            if life is saved.life:
                return saved.step <= most
            if life.source is None:
                return False
            if life.source is saved:
                return True
            life, most = life.source.life, min(most, life.source.step)

    # -- S5: while it goes on --------------------------------------------------------------------------------

    def _stops_in_time(self, job: Job, case: Case, seconds: float) -> None:
        """A user's stop suspends after a bounded time, whatever becomes of the retention."""
        runs = job.child is not None and not job.child.suspended and job.child.finished is None
        if job.spec("runState", "Run") != "Stopped" or not runs:
            case.stopping = 0.0
            return
        case.stopping += seconds
        if case.stopping > STOPS_WITHIN and "deletionTimestamp" not in job.obj["metadata"]:
            self.fail("S5", job, f"its user stopped it {STOPS_WITHIN:.0f} s ago, and it still runs")

    # -- S2 ------------------------------------------------------------------------------------------------

    def suspending(self, job: Job, thought: Thought, reason: str) -> None:
        decision = thought.record.decision
        if decision is None or decision.mode is not Mode.ENFORCE or decision.by == "User":
            return
        if thought.record.preempting is not None or decision.suspended_at is not None:
            return
        world, case = self.world, self.case(job)
        world.saw("S2: a rule's stop is carried out")
        old = [d for at, d in case.desired if at <= world.now]
        recent = [
            d
            for i, (at, d) in enumerate(case.desired)
            if i == len(case.desired) - 1 or case.desired[i + 1][0] > world.now - FRESH
        ]
        spec = job.obj["spec"]
        if all(d.mode is not Mode.ENFORCE for d in recent) and old:
            self.fail("S2", job, f"stopped by {decision.by} though its mode is {spec.get('mode', 'Enforce')}")
        if not any(self.says_stop(job, d) for d in recent):
            scores = [f"{e.score:.3f}" for e in self.true_evals(job, world.now)]
            self.fail("S2", job, f"stopped by {decision.by} ({reason}); its true evals {scores} say no stop")

    def true_evals(self, job: Job, until: float) -> list[Eval]:
        life = job.lives[-1] if job.lives else None
        if life is None:
            return []
        counted = {id(known) for known in job.lives[self.case(job).baseline :]}
        return [
            e
            for e in life.branch
            if e.at <= until and e.evaluator == life.evaluator and id(e.life) in counted
        ]

    def says_stop(self, job: Job, desired: Any) -> bool:
        """Whether the rule, shown the true evals, asks for a stop at some moment that is fresh."""
        now = self.world.now
        evals = self.true_evals(job, now)
        plain = tuple(m for m in desired.modifiers if m.name != "gate")
        # Without a gate, or without a scale for it, an eval that says nothing counts like any other.
        gated = len(plain) < len(desired.modifiers) and self.world.config["stderr"] is not None
        readings = [[e for e in evals if not e.fault]]
        if not gated:
            readings.append([e for e in evals if e.fault in ("", "outlier")])
        sign = self.sign(job)
        moments = sorted({now - FRESH, *(e.at for e in evals if e.at > now - FRESH), now})
        for reading in readings:
            for moment in moments:
                seen = [(e, sign * e.score) for e in reading if e.at <= moment]
                if any(self._folds(desired.rule, m, seen) for m in (desired.modifiers, plain)):
                    return True
        for moment in moments:
            seen = [e for e in evals if e.at <= moment and e.fault != "nothing"]
            for guardrail in desired.guardrails:
                sense = 1.0 if str(guardrail.direction) == "Maximize" else -1.0
                pairs = [(e, sense * e.guard) for e in seen if e.guard is not None]
                if any(self._folds(guardrail.rule, m, pairs) for m in (desired.modifiers, plain)):
                    return True
        return False

    def _folds(
        self, rule: PolicySpec, modifiers: tuple[PolicySpec, ...], evals: list[tuple[Eval, float]]
    ) -> bool:
        made = make_rule(rule, modifiers)
        state, verdict = made.initial(), None
        for e, score in evals:
            state, verdict = made.observe(state, EvalPoint(e.step, score, stderr=e.stderr))
        return verdict is not None and verdict.verb is Verb.STOP

    # -- S3 ------------------------------------------------------------------------------------------------

    def admitting(self, job: Job, admission: Admission) -> None:
        """GPUs are granted: nobody else may have them, nor have been promised them."""
        nodes = self.world.cluster.nodes
        used = dict.fromkeys(nodes, 0)
        for other in self.world.jobs.values():
            if other.gone:
                planned: tuple[str, ...] = ()
            else:
                record = self.world.operator.record(other.obj)
                planned = record.admission.nodes if record.admission is not None and other is not job else ()
            bound = [p for p in other.live_pods if p.node]
            for pod in bound:
                used[pod.node or ""] = used.get(pod.node or "", 0) + pod.gpus
            comes = other.child is not None and other.child.finished is None and not other.trained
            for node in planned[len(bound) :] if comes else ():
                used[node] = used.get(node, 0) + other.gpus
        for node in admission.nodes:
            used[node] = used.get(node, 0) + job.gpus
        over = [n for n in admission.nodes if n in nodes and nodes[n].ready and used[n] > nodes[n].gpus]
        if over and self.world.operator.stale == 0:
            self.fail("S3", job, f"admitted to GPUs of {over} that others have")

    def starting(self, job: Job) -> None:
        if job.trained and self.case(job).asked_to_go_on:
            job.trained = None
        if job.trained:
            self.fail("S3", job, f"started again though its training ended ({job.trained})")
        if job.lives:
            record = self.world.operator.record(job.obj)
            if record.resume_id and record.restored is None and record.rule is not None and not record.evals:
                self.case(job).baseline = len(job.lives)

    # -- S4, S5: in the end ----------------------------------------------------------------------------------

    def settle(self) -> None:
        """Without new faults: everything comes to rest in a bounded number of passes, and nothing is owed."""
        world = self.world
        world.out_until = world.no_space_until = world.down_until = 0.0
        world.operator.fuse, world.operator.stale = None, 0
        world.pages.clear()
        world.next_access.clear()
        world.claims_out_until = 0.0
        world.cluster.stuck.clear()
        for node in world.cluster.nodes.values():
            node.ready = True
        if world.pool is None:
            world.tick(4)
        for job in world.jobs.values():
            for access in job.access.values():
                access.ends = min(access.ends, world.now + 60.0)
                if access.hangs:
                    access.hangs, access.ran, access.failed = False, True, "Killed"
        still, before = 0, None
        for _ in range(SETTLE):
            if still < 6:
                world.tick(4)
            else:
                world.tick(1, 20.0)
            now = self._state()
            still = still + 1 if now == before else 0
            before = now
            if still >= STILL:
                break
        else:
            raise Violation(f"S4 all: not at rest after {SETTLE * 20} s: {before}")
        self.settled = True
        for job in world.jobs.values():
            self.look(job)
            if not job.gone:
                self._user_acts(job)
        self._idle_gpus()

    def _state(self) -> list[object]:
        found: list[object] = []
        for job in self.world.jobs.values():
            record = self.world.operator.record(job.obj)
            d = record.decision
            found.append(
                (
                    job.gone,
                    record.attempt,
                    record.admission is not None,
                    d and (d.at, d.retained_at, d.suspended_at, d.pods_gone_at),
                    record.secured,
                    record.retained,
                    [k.step for k in record.pinned],
                    record.finished,
                    record.resume_id,
                    len(job.live_pods),
                    job.child,
                    len(job.lives),
                )
            )
        return found

    def _user_acts(self, job: Job) -> None:
        record = self.world.operator.record(job.obj)
        running = job.child is not None and not job.child.suspended and job.child.finished is None
        refused = (c := record.condition("Accepted")) is not None and not c.status
        if "deletionTimestamp" in job.obj["metadata"]:
            self.fail("S5", job, "deleted by its user, but it is still there")
        if job.spec("runState", "Run") == "Stopped" and (running or job.live_pods):
            self.fail("S5", job, "runState is Stopped, but it runs")
        if job.spec("runState", "Run") == "Run" and not job.trained and record.finished is None:
            d = record.decision
            if d is not None and d.by == "User" and not refused:
                self.fail("S5", job, "runState is Run, but its user's stop stands")
        resume = job.spec("resume")
        if (
            resume
            and record.resume_id != resume["id"]
            and not refused
            and job.spec("runState", "Run") == "Run"
        ):
            said = record.condition("Resumed")
            if said is None or said.status:
                self.fail("S5", job, f"resume {resume['id']}: neither carried out nor refused")
        wanted = job.spec("checkpoints.pins") or ()
        pinned = record.condition("CheckpointsPinned")
        if wanted and pinned is None and job.lives and not refused:
            self.fail("S5", job, f"pins {wanted}: nothing is said of them")
        admits = job.spec("mode", "Enforce") == "Enforce" and not refused and self.world.pool is not None
        if running and record.admission is None and record.finished is None and admits:
            self.fail("S3", job, "it runs, but nobody has admitted it")
        if job.trained and record.finished is None and record.condition("Failed") is None:
            said = sorted((c.type, c.reason) for c in record.conditions if not c.status)
            if not any("End" in reason or "Lost" in reason or "Gone" in reason for _, reason in said):
                self.fail("S3", job, f"its training ended ({job.trained}), and nothing says so: {said}")

    def _idle_gpus(self) -> None:
        """Nobody waits for GPUs that are free, and none are kept for who is gone."""
        world = self.world
        if world.pool is None or not isinstance(world.operator._pool(), object):
            return
        if isinstance(world.operator._pool(), tuple):
            return
        free = {n.name: n.gpus - world.cluster.used(n.name) for n in world.cluster.nodes.values()}
        for job in world.jobs.values():
            if job.gone:
                continue
            record = world.operator.record(job.obj)
            said = record.condition("Admitted")
            accepted = record.condition("Accepted")
            if (
                record.admission is None
                and record.decision is None
                and record.finished is None
                and not job.trained
                and job.child is not None
                and job.spec("runState", "Run") == "Run"
                and accepted is not None
                and accepted.status
                and sum(max(0, f) // job.gpus for f in free.values()) >= job.replicas
                and (said is None or said.reason not in ("BackingOff",))
            ):
                self.fail("S3", job, f"GPUs are free ({free}), it waits: {said and said.reason}")
