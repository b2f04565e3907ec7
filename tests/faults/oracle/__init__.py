"""What must be true of every history, told from the truth alone: what trainers evaluated and wrote.

Of the product it uses a stop rule's fold, and reads what the product says of itself only to hold it to that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from controller.policy.job.record import JobRecord
from controller.policy.job.types import ScrapeOutcome, ScrapeView
from tests.faults.cluster import Access, Job
from tests.faults.oracle.base import Violation
from tests.faults.oracle.gpus import Gpus
from tests.faults.oracle.settling import Settling
from tests.faults.oracle.stops import Stops
from tests.faults.trainer import Life, Saved

if TYPE_CHECKING:
    from tests.faults.shell import Thought

__all__ = ["Oracle", "Violation"]


class Oracle(Settling, Stops, Gpus):
    """What is told to it while a history goes on."""

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
        if "Off" in (job.spec("mode", "Enforce"), self.world.cap):
            return  # nobody looks at it; if the process is still there once somebody does, it counts
        case.shown = view
        admission = self.world.operator.record(job.obj).admission
        if admission is not None and life.number not in (0, admission.number):
            return  # started by hand before the attempt that was admitted: its page is refused, and told
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
        self.world.saw("S5: a run goes on from a checkpoint that its user named")
        if self.case(job).resumed_from != "Best":
            return
        kept = [s for where, s in self.contents(job) if s is not None and "/retained/" in where]
        scale = job.lives[-1].evaluator
        values = [v for s in kept if (v := self.value(job, s, scale, sure=True)) is not None]
        chosen = self.value(job, source, scale)
        if chosen is not None and values and chosen < max(values) - 1e-9:
            self.fail(
                "S5", job, f"resumes from a checkpoint worth {chosen:.3f}; {max(values):.3f} is retained"
            )

    def killed(self, job: Job, access: Access) -> None:
        """An access Job was killed: what is owed is owed a while, a Job and a retry later."""
        if access.operation != "claim":
            self.case(job).good.clear()

    def died(self) -> None:
        """The operator died: what it had scraped and not written down, nobody has seen."""
        for job in self.world.jobs.values():
            self.case(job).shown = None
            for e in (e for life in job.lives for e in life.evals if not e.recorded):
                e.shown = None

    def written(self, job: Job, before: JobRecord, after: JobRecord) -> None:
        for e in (e for life in job.lives for e in life.evals if e.shown is not None):
            e.recorded = True
        if before.secured != after.secured or before.retained != after.retained:
            self.dirty = True
        if before.resume_id != after.resume_id:
            asked, said = job.spec("resume") or {}, after.condition("Resumed")
            if said is not None and said.status:  # else it was refused: an attempt under way stays what it is
                if job.trained:  # somebody started it by hand meanwhile: its user wants the other one
                    self.case(job).asked_to_go_on = True
                known = asked.get("id") == after.resume_id  # not where its user has asked anew meanwhile
                self.case(job).resumed_from = asked["from"] if known else ""
        if after.pinned and before.pinned != after.pinned:
            self.world.saw("S5: what a user pins is pinned")

    def tick(self, seconds: float, up: bool) -> None:
        world = self.world
        for job in world.jobs.values():
            if job.gone:
                continue
            case = self.case(job)
            if up:
                case.operated += seconds
                self._owe(job, case, seconds)
                self._stops_in_time(job, case, seconds)
        if self.dirty:
            self.dirty = False
            for job in world.jobs.values():
                self.look(job)
