"""S3: no GPU is given twice, and nobody is trained again whose training ended."""

from __future__ import annotations

from controller.policy.types import Admission
from tests.faults.cluster import Job
from tests.faults.oracle.base import Knowledge


class Gpus(Knowledge):
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
                stopped = record.decision is not None and record.decision.suspended_at is not None
                withdrawn = record.condition("Admitted")  # its gang found no room in time
                given_up = stopped or (withdrawn is not None and not withdrawn.status)
                if given_up and other.child is not None and other.child.suspended:
                    planned = ()  # no pod comes any more, whatever is not written yet
            bound = [p for p in other.live_pods if p.node]
            for pod in bound:
                used[pod.node or ""] = used.get(pod.node or "", 0) + pod.gpus
            comes = other.child is not None and other.child.finished is None and not other.trained
            still = list(planned) if comes else []
            for pod in bound:  # whose node is taken by a pod of its own nobody else comes to
                if pod.node in still:
                    still.remove(pod.node)
            for node in still[: max(0, len(planned) - len(bound))]:
                used[node] = used.get(node, 0) + other.gpus
        for node in admission.nodes:
            used[node] = used.get(node, 0) + job.gpus
        over = [n for n in admission.nodes if n in nodes and nodes[n].ready and used[n] > nodes[n].gpus]
        if over and not self.world.operator.behind:
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
