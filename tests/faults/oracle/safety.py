"""S1: the best checkpoint is in safety, and what the record says of it is so."""

from __future__ import annotations

import json

from controller.policy.job.record import ProtectedCheckpoint
from controller.policy.job.types import ScrapeOutcome
from tests.faults.cluster import Access, Job
from tests.faults.oracle.base import Case, Knowledge, Owed, borne_out
from tests.faults.trainer import Eval, Saved, fingerprint, read

WINDOW = 240.0  # s: a scrape interval, two access Jobs one after the other, a retry, and as much again
LOST_EVALS = 2  # evals after which a checkpoint that is not there is not still being written
LOST_AFTER = 300.0  # s of an operator's until a best whose checkpoint is gone gives way to the next best


class Safety(Knowledge):
    def watched(self, job: Job) -> bool:
        """Whether all that is needed to bring a best checkpoint to safety works now."""
        world = self.world
        record = world.operator.record(job.obj)
        view = world.operator.scrapes.get(job.key)
        return (
            job.spec("mode", "Enforce") == "Enforce"
            and world.cap == "Enforce"
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
            and not any(self._slow(a) for a in job.access.values())
        )

    def _unclaimed(self, job: Job) -> bool:
        """Whether the folder is still its predecessor's, or nobody can know whose checkpoint its process
        started from, because claims fail or did until a while ago."""
        owner = job.files.folder / ".evalstop" / "owner.json"
        if self.world.now > self.world.claims_out_until + 700.0 or not owner.exists():
            return False
        life = job.life
        if life is not None and life.source is not None and not life.claimed:
            seen = [e.step for e in life.source.life.branch if e.shown is not None]
            if max(seen, default=0) < life.source.step:
                return True
        return bool(json.loads(owner.read_text())["uid"] != job.uid)

    def _slow(self, access: Access) -> bool:
        if access.operation in ("pin", "claim"):
            return False  # nothing that is owed may wait for it: save records tell what is whose
        return access.hangs or access.ends - access.created > 30.0

    def _owe(self, job: Job, case: Case, seconds: float) -> None:
        if not self.watched(job):
            return
        life = job.life
        assert life is not None
        known = [
            e
            for e in life.branch
            if e.shown is not None
            and e.fault in ("", "outlier")
            and not e.left
            and e.evaluator == life.evaluator
            and e.life in job.lives
            and e.life.number > 0
            and not e.life.by_hand
        ]
        evals = [e for e in known if not e.doubtful]
        patience, agree = 0.0, borne_out(life.branch)
        # Those that came with the news of another evaluator may count: their checkpoints are looked for.
        unknown = [*self._left_unseen(job), *(e for e in known if e.doubtful)]
        for e in sorted([*evals, *unknown], key=lambda e: -self.worth(job, e)):
            saved = self._checkpoint(job, e)
            if saved is not None and saved.step < e.step and self._measured_again(job, e, evals):
                continue
            if self._waited_when_measured_again(e, evals):
                continue
            if e in unknown and saved is not None and saved.lies:
                continue  # it may well be pinned, and is not owed
            lags = saved is not None and saved.step < e.step and (life.checkpoint_step or 0) < e.step
            if lags and not any(later.step > e.step for later in evals):
                return  # its own checkpoint may still come
            if saved is None or not saved.lies:
                # The operator looks for this one first: while it may still be written, and then for a while.
                if sum(1 for later in evals if later.step > e.step) < LOST_EVALS and e.life is life:
                    return
                patience += LOST_AFTER
                # A process that goes back may make another the best for a while: then the tries begin anew.
                since = case.wrong.setdefault(f"lost {e.life.text} {e.step} {life.text}", case.operated)
                if case.operated - since < patience:
                    return
                continue
            if id(e) in agree:
                return  # nobody can tell that it is not the best
            if e.fault or e.jumps or e.follows:
                continue  # it may count for nothing; the operator may keep it beside the best
            if any(s.spoilt for s in job.files.saved if s.step == saved.step and self.on_the_way(e, s)):
                return  # what lies there now is not what was scored: once that is seen, the next best is owed
            if all(o.eval is not e for o in case.owed):
                # Of this very job: what lay there before it was its predecessor's to bring to safety.
                lain = f"{e.life.text} {e.step}, {saved.life.text} {saved.step}"
                case.good[lain] = case.good.get(lain, 0.0) + seconds
                if case.good[lain] > WINDOW:
                    case.owed.append(Owed(e, saved, self.world.now))
                    self.world.saw("S1: a checkpoint is owed")
                    self.dirty = True
            return

    def _left_unseen(self, job: Job) -> list[Eval]:
        """Evals of a branch that was left, where only the files tell that: the operator takes them for the
        present one's, and looks for their checkpoints first."""
        *former, life = job.lives
        found: list[Eval] = []
        least = life.resumed
        for one in reversed(former):
            found += [e for e in one.evals if e.left and e.shown is not None and e.step <= least]
            if one.read:
                least = min(least, one.resumed)
        return [e for e in found if e.fault in ("", "outlier") and e.evaluator == life.evaluator]

    def _measured_again(self, job: Job, e: Eval, evals: list[Eval]) -> bool:
        """Whether a process that started from an eval's very step has evaluated it once more, and the former
        one was not the best then: one eval of a step counts, the last. Its own checkpoint is still owed."""
        before = [o for o in evals if o.step < e.step]
        again = self._evaluated_again(e, evals)
        return again and any(self.worth(job, o) >= self.worth(job, e) for o in before)

    def _waited_when_measured_again(self, e: Eval, evals: list[Eval]) -> bool:
        """Whether a gate knew no other eval when a process evaluated the very step that it started from once
        more: nothing had borne the former one out, and of the two only the last counts."""
        gated = self.world.config["gate"] or self.world.config["rule"] == "default"
        alone = e.young and not any(o.step < e.step for o in evals)
        return bool(gated and alone and self._evaluated_again(e, evals))

    @staticmethod
    def _evaluated_again(e: Eval, evals: list[Eval]) -> bool:
        """Whether a process that started from an eval's very step has evaluated it once more."""
        return any(o.step == e.step and o.life is not e.life and o.life.resumed == e.step for o in evals)

    def _checkpoint(self, job: Job, e: Eval) -> Saved | None:
        """The checkpoint that stands for an eval: of its step, or at most the lag earlier on its branch."""
        lag = job.spec("checkpoints.maxStepLag", 0) or 0
        found = [
            s
            for s in job.files.saved
            if s.life.pod and e.step - lag <= s.step <= e.step and self.on_the_way(e, s)
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
        # What a trainer wrote over was in safety in place of all that was worth less.
        spoilt = [s for s in job.files.saved if s.spoilt and not self._retained(there, s)]
        worth = [v for s in spoilt for e in ("1", "2", "3") if (v := self.value(job, s, e)) is not None]
        case.owed = [o for o in case.owed if not any(self.worth(job, o.eval) <= v for v in worth)]
        # So are outliers that bear each other out.
        agree = {found for life in job.lives for found in borne_out(life.branch)}
        worth = [self.worth(job, e) for life in job.lives for e in life.evals if id(e) in agree]
        case.owed = [o for o in case.owed if not any(self.worth(job, o.eval) <= v for v in worth)]
        recent = list(dict.fromkeys(e.evaluator for life in job.lives for e in life.evals))[-2:]
        case.owed = [o for o in case.owed if o.eval.evaluator in recent]  # one former scale's best is kept
        # The one after a first eval lay far from it: a gate drops the one of the two that is not borne out.
        case.owed = [o for o in case.owed if not (o.eval.young and o.eval.jumps) and not o.eval.follows]
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

    def value(self, job: Job, saved: Saved, evaluator: str, *, sure: bool = False) -> float | None:
        """The best true eval that a checkpoint stands for. ``sure``: of those that no gate may drop."""
        lag = job.spec("checkpoints.maxStepLag", 0) or 0
        found = [
            self.worth(job, e)
            for life in job.lives
            for e in life.evals
            if not e.fault
            and not (sure and (e.jumps or e.follows))
            and e.evaluator == evaluator
            and saved.step <= e.step <= saved.step + lag
            and self.on_the_way(e, saved)
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
                own = what == "pinned" and kept.method == "copy"  # nothing of the trainer's reaches it
                spoilt = any(s.spoilt for s in job.files.saved if s.step == kept.step)
                if (spoilt and not own) or not kept.path:
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

    def _names_right(self, job: Job, what: str, kept: ProtectedCheckpoint, saved: Saved) -> None:
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
        right = [e for e in evals if self.on_the_way(e, saved)]
        if (
            what == "pinned"
            and kept.linked
            and any(s.spoilt for s in job.files.saved if s.step == saved.step)
        ):
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
