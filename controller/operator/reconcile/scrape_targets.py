"""Which pod of each job is scraped, kept up to date with the cluster; it also takes in the results."""

from __future__ import annotations

from controller import workloads
from controller.api import convert
from controller.api.rlhfjob import RLHFJob
from controller.metrics import ScrapeLoop, Target, metrics_port, pick_pod
from controller.operator.process.metrics import Metrics
from controller.operator.state.cluster import ClusterState, JobSnapshot
from controller.operator.state.ownership import is_ref
from controller.policy.job import ScrapeOutcome, ScrapeView
from controller.policy.types import JobKey, Mode


class ScrapeTargets:
    """Gives the scrape loop its targets.

    A job whose pods cannot be scraped gets a view that says why, so that its conditions do.
    """

    def __init__(self, cluster: ClusterState, metrics: Metrics) -> None:
        self._cluster, self._metrics = cluster, metrics
        self._loop: ScrapeLoop | None = None
        self._awaited: set[JobKey] = set()  # somebody waits for the next scrape, whatever it says

    def connect(self, loop: ScrapeLoop) -> None:
        self._loop = loop

    def deliver(self, key: JobKey, view: ScrapeView) -> None:
        """Take in the result of a scrape; called by the scrape loop."""
        self._metrics.scrapes.labels(str(view.outcome)).inc()
        new = self._cluster.scraped(key, view)
        if key in self._awaited:
            self._awaited.discard(key)
            if not new:
                self._cluster.touch(key)

    def read_again(self, key: JobKey) -> None:
        """Scrape this job out of turn, and have it looked at then though the page says nothing new."""
        if self._loop is not None:
            self._awaited.add(key)
            self._loop.hasten(key)

    def drop(self, key: JobKey) -> None:
        self._awaited.discard(key)
        if self._loop is not None:
            self._loop.discard(key)

    def follow(self, loaded: JobSnapshot) -> None:
        """Scrape the pod that speaks for this job now, if there is one and it should be."""
        record, desired = loaded.record, loaded.desired
        started = record.admission is not None and loaded.observed.workload is not None
        if desired.mode is Mode.OFF or record.finished is not None or not started:
            self.drop(loaded.key)
            return
        job = convert.parse_job(loaded.obj)
        if not isinstance(job, RLHFJob):
            self.drop(loaded.key)
            return
        found = self._target(loaded, job)
        if isinstance(found, ScrapeView):
            self.drop(loaded.key)
            self._cluster.scraped(loaded.key, found)
        elif self._loop is not None:
            self._loop.put(loaded.key, found)

    def _target(self, loaded: JobSnapshot, job: RLHFJob) -> Target | ScrapeView:
        owner = None if is_ref(loaded.obj) else loaded.uid
        pod = pick_pod(loaded.pods, loaded.child, owner)
        if pod is None:
            return ScrapeView(ScrapeOutcome.NO_PODS, "no pod of completion index 0 has an address yet")
        port = metrics_port(pod, job.spec.scrape.port)
        if port is None:
            return ScrapeView(
                ScrapeOutcome.UNREACHABLE,
                "spec.scrape.port: not set, and no container of the pod has a port named metrics",
            )
        return Target(
            ip=pod["status"]["podIP"],
            port=port,
            metric=job.spec.primary.name,
            path=job.spec.scrape.path,
            interval=loaded.desired.scrape_interval,
            others=tuple(m.name for m in job.spec.metrics if m.name != job.spec.primary.name),
            pod=str(pod["metadata"].get("uid", "")),
            pod_created=workloads.pod_view(pod).created,
            job=loaded.key,
        )
