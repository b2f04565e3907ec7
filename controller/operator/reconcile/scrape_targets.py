"""The pods of each job that are scraped, kept up to date with the cluster; results are taken in here too."""

from __future__ import annotations

from collections.abc import Sequence

from controller import workloads
from controller.api import convert
from controller.metrics import GangScraper, GangTarget, ScrapeLoop, Target, member, members, metrics_port
from controller.objects import Object
from controller.operator.process.metrics import Metrics
from controller.operator.state.cluster import ClusterState
from controller.operator.state.job_snapshot import JobSnapshot, Unreadable
from controller.operator.state.ownership import is_ref
from controller.policy.job import (
    ANY,
    Gang,
    Member,
    ScrapeOutcome,
    ScrapeView,
    candidates,
    first_asked,
)
from controller.policy.types import JobKey, Mode


class ScrapeTargets:
    """Gives the scrape loop its targets.

    A job whose pods cannot be scraped gets a view that says why, so that its conditions do.
    """

    def __init__(self, cluster: ClusterState, metrics: Metrics) -> None:
        self._cluster, self._metrics = cluster, metrics
        self._loop: ScrapeLoop | None = None
        self._gangs: GangScraper | None = None
        self._awaited: set[JobKey] = set()  # somebody waits for the next scrape, whatever it says

    def connect(self, loop: ScrapeLoop, gangs: GangScraper) -> None:
        self._loop, self._gangs = loop, gangs

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
        if self._gangs is not None:
            self._gangs.discard(key)

    def follow(self, loaded: JobSnapshot) -> None:
        """Scrape whoever speaks for this job now, if anybody may and should be."""
        record, desired = loaded.record, loaded.desired
        started = record.admission is not None and loaded.observed.workload is not None
        if desired.mode is Mode.OFF or record.finished is not None or not started:
            self.drop(loaded.key)
            return
        if (how := loaded.scraping) is None:
            self.drop(loaded.key)
            return
        found = self._find(loaded, how)
        if isinstance(found, ScrapeView):
            self.drop(loaded.key)
            self._cluster.scraped(loaded.key, found)
        elif self._loop is not None:
            self._loop.put(loaded.key, found)

    def members(self, key: JobKey) -> tuple[GangTarget, ...]:
        """Return the pods of a job's gang that may be asked now; none where it cannot be read."""
        try:
            loaded = self._cluster.load(key)
        except (convert.StatusError, Unreadable):
            return ()
        how = loaded.scraping if loaded is not None else None
        if loaded is None or how is None:
            return ()
        found = _may_speak(loaded, how)
        if isinstance(found, ScrapeView):
            return ()
        gang = _gang(loaded, found)
        asked = ((member, _target(loaded, how, member, pod, gang)) for member, pod in found)
        return tuple(GangTarget(member, target) for member, target in asked if target is not None)

    def _find(self, loaded: JobSnapshot, how: convert.Scraping) -> Target | ScrapeView:
        """Return whom to ask; a view that says why, where nobody can be."""
        found = _may_speak(loaded, how)
        if isinstance(found, ScrapeView):
            return found
        first = first_asked(loaded.record.lives, [member for member, _ in found])
        pod = next(pod for member, pod in found if member == first)
        gang = _gang(loaded, found) if how.speaks == ANY and loaded.desired.replicas > 1 else None
        return _target(loaded, how, first, pod, gang) or ScrapeView(
            ScrapeOutcome.UNREACHABLE,
            "spec.scrape.port: not set, and no container of the pod has a port named metrics",
        )


def _may_speak(loaded: JobSnapshot, how: convert.Scraping) -> list[tuple[Member, Object]] | ScrapeView:
    """Return the pods that may speak, lowest index first, at least one; a view that says why, where none
    may."""
    owner = None if is_ref(loaded.obj) else loaded.uid
    pods = {one.pod: (one, pod) for pod in members(loaded.pods, loaded.child, owner) for one in [member(pod)]}
    found = candidates(how.speaks, [one for one, _ in pods.values()])
    return found if isinstance(found, ScrapeView) else [pods[one.pod] for one in found]


def _gang(loaded: JobSnapshot, found: Sequence[tuple[Member, Object]]) -> Gang:
    assert loaded.record.admission is not None  # nothing else is followed
    pods = hash(frozenset((one.pod, one.leaving) for one, _ in found))
    return Gang(loaded.uid, loaded.record.admission.number, pods)


def _target(
    loaded: JobSnapshot, how: convert.Scraping, one: Member, pod: Object, gang: Gang | None
) -> Target | None:
    """Return how to read a pod; None: it is not known on which port."""
    port = metrics_port(pod, how.port)
    if port is None:
        return None
    return Target(
        ip=pod["status"]["podIP"],
        port=port,
        metric=how.metric,
        path=how.path,
        interval=loaded.desired.scrape_interval,
        others=how.others,
        pod=one.pod,
        pod_created=workloads.pod_view(pod).created,
        member=one.index,
        job=loaded.key,
        gang=gang,
    )
