"""The engine: one event loop with cache, queues, workers, scrapes and timers; if one part fails, all end.

Crash-only: whatever part ends unasked, kopf's thread included, ends the process with a non-zero code, and
its next life starts from the cluster. There is no state worth saving.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence, Set
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from controller import log
from controller.bounded import whole
from controller.kube.cache import Cache, key_of
from controller.kube.client import Api
from controller.kube.connection import Connection
from controller.kube.errors import ApiError
from controller.kube.events import Recorder
from controller.kube.informer import Taker, informers
from controller.kube.kopf_session import KopfSession
from controller.kube.namespaced_watch import follow
from controller.kube.packed import Key, Stored
from controller.kube.refused_rights import RefusedRights
from controller.kube.resources import (
    BY_KOPF,
    CONFIGMAPS,
    GPUPOOLS,
    JOBS,
    PODS,
    RLHFJOBS,
    WORKERGROUPS,
    Resource,
)
from controller.kube.trim import Object
from controller.kube.unwritten_statuses import UnwrittenStatuses
from controller.kube.versioned import Stale
from controller.metrics import AddressPolicy, GangScraper, ScrapeLoop, Scraper
from controller.metrics.loop import Scrape
from controller.operator import handlers
from controller.operator.process.clock import ServerClock
from controller.operator.process.decision_log import DecisionLog
from controller.operator.process.free_memory import give_back_memory
from controller.operator.process.group_gauges import GroupGauges
from controller.operator.process.kopf_thread import KopfThread
from controller.operator.process.leader_election import Term, Unopposed
from controller.operator.process.loop_lag import measure_lag
from controller.operator.process.metrics import Metrics
from controller.operator.process.settings import Settings
from controller.operator.process.workqueue import Closed, Locks, WorkQueue
from controller.operator.reconcile.actions import Actions
from controller.operator.reconcile.groups import GroupReconciler
from controller.operator.reconcile.job import JobReconciler
from controller.operator.reconcile.passes import Passes
from controller.operator.reconcile.plan_cache import PlanCache
from controller.operator.reconcile.pool import PoolReconciler
from controller.operator.reconcile.pool_loader import PoolLoader
from controller.operator.reconcile.scrape_targets import ScrapeTargets
from controller.operator.reconcile.seen_groups import SeenGroups
from controller.operator.reconcile.status_writer import StatusWriter
from controller.operator.reconcile.triggers import Triggers
from controller.operator.reconcile.validation import SpecChecks
from controller.operator.state.access_progress import AccessProgress
from controller.operator.state.access_refusals import AccessRefusals
from controller.operator.state.cluster import ClusterState
from controller.operator.state.devices import Devices
from controller.operator.state.external_queues import ExternalQueues
from controller.operator.state.groups import Groups
from controller.operator.state.pod_starts import PodStarts
from controller.operator.state.residents import Residents
from controller.operator.state.rollout_steps import RolloutSteps
from controller.operator.state.steps import StepAddress
from controller.operator.state.taints import Taints
from controller.operator.state.unmanaged_pods import UnmanagedPods
from controller.operator.step_api import renewed_addresses, step_address, step_service
from controller.operator.vital_signs import Sources, VitalSigns
from controller.policy import decision_log
from controller.policy.group_types import GROUPS_NAMESPACE
from controller.steps.directory import Directory
from controller.steps.groups import GroupDirectory
from controller.web.connections import Connections
from controller.web.deferred import Deferred
from controller.web.health import Health
from controller.web.hosts import Hosts
from controller.web.reviews import Reviews
from controller.web.server import WebServer
from controller.web.status import health_server, metrics_server

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from controller.policy.rollout import RolloutPlan, StepQuestion

_logger = log.get("evalstop.engine")

# s within which scrapes that are due begin together: to wake costs the loop as much as half a scrape.
GRAIN = 0.03
# Descriptors that no connection to us may take: the API client has up to 100 connections, kopf a few.
RESERVED = 128
# s after which a pass of a pool is made again that found something changed: with many jobs some always is.
STALE_POOL = 0.05
GROUP_WORKERS = 4  # passes of worker groups at a time: each waits for an answer of its member 0


class Engine:
    """Everything of one operator process.

    Args:
        settings: see Settings.
        connection: to the API server.
        api, scrape: tests give ones of their own.
        clock: seconds since the epoch.
        None: the API server's.
        term: its right to act; None: nobody else is there.
        metrics: those it shares with its term.
    """

    def __init__(
        self,
        settings: Settings,
        connection: Connection,
        api: Api | None = None,
        scrape: Scrape | None = None,
        clock: Callable[[], float] | None = None,
        term: Term | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        monotonic = time.monotonic
        self._settings, self._connection = settings, connection
        self.metrics = metrics or Metrics(clock or time.time)
        self.term = term or Unopposed()
        self.api = api or Api(connection, settings.api_timeout, self.metrics.call, permit=self.term.check)
        self._server_clock = clock if isinstance(clock, ServerClock) else ServerClock()
        self._clock = clock = clock or self._server_clock
        self.api.on_headers = self._server_clock.observe
        self.cache = Cache()
        self.refused = RefusedRights(tuple(self.cache.stores), monotonic, clock)
        self.api.on_answer = self.refused.answered
        self.unwritten = UnwrittenStatuses(self.cache, monotonic, clock)
        self.term.tell(self.refused.lasting, self.unwritten.lasting)
        self.cluster = ClusterState(self.cache, monotonic)
        self.cluster.queues = self.external_queues = ExternalQueues(
            self.api, self.cluster, clock, settings.namespaces
        )
        self.cluster.progress = self.progress = AccessProgress(
            AddressPolicy.parse(settings.scrape_addresses),
            settings.access_stall_seconds,
            self.cluster.touch,
            clock,
        )
        self.cluster.refusals = self.refusals = AccessRefusals(self.api, self.cluster.touch, monotonic)
        self.cluster.starts = self.starts = PodStarts(self.api, self.cluster.touch, monotonic)
        self.health = Health(settings.stall_seconds, monotonic)
        # Probes, scrapes and API calls need descriptors: whoever connects to us leaves them theirs.
        self.connections = Connections.of_process(RESERVED + settings.scrape_concurrency)
        self.server = health_server(self.health, settings.host, settings.port, self.connections)
        # A standby shows its metrics, too: its questions about tokens need no permit.
        self._reviews = Api(connection, settings.api_timeout, self.metrics.call)
        self.metrics_server = metrics_server(
            settings, settings.host, self.metrics.text, Reviews(self._reviews), self.connections
        )
        # What the passes observe of rollouts, and what steps want of them. A standby answers 421.
        self.rollouts = Directory()
        self._rollout_steps = RolloutSteps(self.rollouts, self.cluster)
        self.group_directory = GroupDirectory(clock)
        self.rollouts.leads = lambda: self.term.leads and self.signs.working
        self.steps = step_service(
            settings,
            self._reviews,
            self.rollouts,
            self.group_directory,
            self.connections,
            self._note_step,
        )
        self.cluster.steps = self._step_address()
        self.jobs = WorkQueue(monotonic)
        self.pools = WorkQueue(monotonic)
        self.group_queue = WorkQueue(monotonic)
        self.groups = Groups(
            self.cache,
            self.group_queue.add,
            self.cluster.touch,
            lambda name: self.cluster.pool_changed(name),
        )
        self.cluster.group_seen, self.cluster.group_changed = self.groups.seen, self.group_queue.add
        self.group_directory.registered = self.group_queue.add
        self._decisions = self._open_decision_log()
        self.plans = PlanCache(self.cluster, self.metrics, clock, self._decisions)
        seen = SeenGroups(self.cluster, self.plans, self.groups)
        GroupGauges(lambda: seen.figures() if self.term.leads else [], clock).register(self.metrics)
        self.web = WebServer(
            Deferred(lambda: _queue_app(self.plans, clock, Hosts(settings.queue_hosts.split(",")), seen)),
            settings.queue_host,
            settings.queue_port,
            connections=self.connections,
            name="queue",
        )
        self._scrape = scrape
        self.scrapes: ScrapeLoop | None = None
        self._all_listed = asyncio.Event()
        for kind, store in self.cache.stores.items():
            if (inside := _namespaces(kind, settings.namespaces)) and kind.namespaced:
                store.spread(inside)
        self.sources = Sources(
            [
                follow(
                    self.api,
                    kind,
                    self._event,
                    self._listed,
                    _namespaces(kind, settings.namespaces),
                    settings.relist_seconds,
                    keep=self.cache.stored,
                )
                for kind in self.cache.stores
                if kind not in BY_KOPF
            ]
        )
        self._kopf: KopfThread | None = None
        self._loop: asyncio.AbstractEventLoop  # this engine's own, once kopf is started

        self.targets = ScrapeTargets(self.cluster, self.metrics)
        self.unmanaged_pods = UnmanagedPods(self.api, settings.namespaces)
        self.taints = Taints(self.api, self.cache)
        self.triggers = Triggers(self.cache, self.taints.owner_of, self.pools, settings.pool_delay)
        self.devices = Devices(self.api, self.cluster, self.triggers.gpus_moved, settings.namespaces)
        self.cluster.claimed = self.devices.gpus_of
        self.cluster.changed = self.jobs.add
        self.cluster.pool_changed = self.triggers.pool_changed
        self.cache.subscribe(self._job_deleted)
        self._set_up_passes(clock, monotonic)
        self.signs = VitalSigns(
            self.health,
            self.metrics,
            self.term,
            self.cache,
            self.sources,
            {"jobs": self.jobs, "pools": self.pools, "groups": self.group_queue},
            self.job_passes,
            self.pool_passes,
            self.plans,
            self.unmanaged_pods,
            self.connections,
            clock,
            self._server_clock,
            self.refused,
            self.unwritten,
        )

    def _note_step(self, question: StepQuestion, plan: RolloutPlan) -> None:
        """Put a step's plan into the decision log."""
        if self._decisions is not None:
            self._decisions.append(decision_log.step_line(question, self._clock(), plan))

    def _step_address(self) -> StepAddress | None:
        """Return what trainers and actors are told of the step API; None: jobs with rollouts are refused."""
        return None if self.steps is None else step_address(self._settings)

    async def _look_at_steps_authority(self) -> None:
        """Have trainers, actors and groups be told of a renewed authority of the step API's certificate."""
        async for found in renewed_addresses(self._step_address, lambda: self.cluster.steps):
            self._rollout_steps.renew(found)
            self._groups_renewed()
            _logger.info("the step API's authority is another one now")

    def _groups_renewed(self) -> None:
        """Have groups and jobs that share them be told of another authority of the step API."""
        for obj in self.cache.values(WORKERGROUPS):
            name = str(obj["metadata"]["name"])
            self.group_queue.add(name)
            for job in self.groups.residents(name):
                self.cluster.touch(key_of(job))

    def _set_up_passes(self, clock: Callable[[], float], monotonic: Callable[[], float]) -> None:
        api, cache, cluster, plans, locks = self.api, self.cache, self.cluster, self.plans, Locks()
        self._writer = writer = StatusWriter(api, cache, cluster, self.metrics, self.term, self.unwritten)
        recorder = Recorder(
            api, self._settings.instance, clock, dropped=lambda reason: self.metrics.events_dropped.inc()
        )
        self.job_reconciler = jobs = JobReconciler(
            cluster,
            plans,
            SpecChecks(api, cache, cluster),
            writer,
            Actions(api, cache, cluster, self._settings, self.external_queues.cache, clock),
            self.targets,
            recorder,
            self.triggers,
            locks,
            self._rollout_steps,
            Residents(self.group_directory),
        )
        self.group_reconciler = groups = GroupReconciler(
            api, cache, cluster, writer, self.groups, self.group_directory, clock
        )
        self.pool_reconciler = pools = PoolReconciler(
            cache,
            cluster,
            plans,
            PoolLoader(
                cache, cluster, plans, self.taints, self.unmanaged_pods, self.devices, self.groups, clock
            ),
            writer,
            recorder,
            self.taints,
            self.metrics,
            locks,
            clock,
            monotonic,
        )
        self.job_passes = Passes(
            "job", jobs.reconcile, self.jobs, self.metrics, monotonic, report=jobs.report_failure
        )
        self.group_passes = Passes("group", groups.reconcile, self.group_queue, self.metrics, monotonic)
        self.pool_passes = Passes(
            "pool",
            pools.reconcile,
            self.pools,
            self.metrics,
            monotonic,
            stale_again=STALE_POOL,
            rest=lambda: pools.rest,
        )

    # -- the life of the process -----------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> int:
        """Work until ``stop`` is set. Returns the exit code: 0 asked to end, 1 a part ended by itself."""
        await self.server.start()
        await self._serve(self.metrics_server, "EVALSTOP_METRICS_HOST, EVALSTOP_METRICS_PORT")
        if self.steps is not None:
            await self._serve(self.steps.server, "EVALSTOP_STEPS_HOST, EVALSTOP_STEPS_PORT")
        shown = self.metrics_server.port
        _logger.info("started", api=self._connection.origin, port=self.server.port, metrics_port=shown)
        code = 1
        tasks: list[asyncio.Task[Any]] = []
        try:
            tasks = self._spawn(
                self._main(self._scrape_loop()),
                measure_lag(self.metrics, self.health),
                give_back_memory(),
                self.term.run(),
            )
            stopping = asyncio.create_task(stop.wait(), name="stop")
            await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            code = 0 if stop.is_set() else 1
            self._report(tasks)
            await self._drain()
        finally:
            await _cancel(tasks)
            await self.term.release()  # nothing of this process acts any more; kopf only ever read
            if self._kopf is not None:
                # A process that ends in failure leaves kopf's thread, a daemon, behind.
                await self._kopf.stop(8.0 if code == 0 else 0.0)
            if self.steps is not None:
                await self.steps.stop()
            for server in (self.web, self.metrics_server, self.server):
                await server.stop()
            await self.group_reconciler.client.close()
            await self._reviews.close()
            await self.api.close()
            if self._decisions is not None:
                await asyncio.to_thread(self._decisions.close)
        _logger.info("ended", code=code)
        return code

    async def _serve(self, server: WebServer, settings: str) -> None:
        """Metrics, queue API and step API are no part of the work: without their address the operator goes
        on, and so do steps."""
        try:
            await server.start()
        except OSError as error:
            _logger.error("a view is not served", server=server.name, settings=settings, error=str(error))

    def _scrape_loop(self) -> ScrapeLoop:
        scrape = self._scrape
        if scrape is None:
            addresses = AddressPolicy.parse(self._settings.scrape_addresses)
            timeout, last = self._settings.scrape_timeout, self.cluster.last_scrape
            scrape = Scraper(addresses, timeout=timeout, wall=self._clock, last=last).scrape
        gangs = GangScraper(scrape, self.targets.members)
        loop = ScrapeLoop(
            gangs.scrape,
            self.targets.deliver,
            concurrency=self._settings.scrape_concurrency,
            per_namespace=self._settings.scrape_namespace_concurrency,
            grain=GRAIN,
        )
        self.scrapes = loop
        self.targets.connect(loop, gangs)
        self.signs.watch_scrapes(loop)
        return loop

    async def _main(self, loop: ScrapeLoop) -> None:
        await self.term.begin()
        await self._serve(self.web, "EVALSTOP_QUEUE_HOST, EVALSTOP_QUEUE_PORT")
        watches = self._spawn(
            *(watch.run() for watch in self.sources.watches), self._watch_by_kopf(), self.devices.run()
        )
        tasks = watches
        try:
            await self._first_lists(watches)
            await self.devices.read()
            await self._fence_earlier_leaders()
            await self._look_at_unmanaged_pods_once()
            self.signs.begin_work(loop)
            workers = [self._work(self.jobs, "jobs", self.job_passes) for _ in range(self._settings.workers)]
            tasks = watches + self._spawn(
                *workers,
                self._work(self.pools, "pools", self.pool_passes),
                *(self._work(self.group_queue, "groups", self.group_passes) for _ in range(GROUP_WORKERS)),
                loop.run(),
                self.external_queues.run(),
                self.progress.run(),
                self.refusals.run(),
                self.starts.run(),
                self._look_at_unmanaged_pods(),
                self._look_at_steps_authority(),
            )
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            self._report(tasks)
        finally:
            await _cancel(tasks)

    async def _watch_by_kopf(self) -> None:
        """List and watch what comes in by the front door (`handlers`)."""
        settings, loop = self._settings, asyncio.get_running_loop()
        self._loop = loop
        taker = Taker(loop, self.cache.knows, self._event, self._listed_by_kopf)
        found = informers(BY_KOPF, settings.namespaces, taker, settings.relist_seconds)
        self.sources.informers = tuple(found)
        session = KopfSession(
            self._connection,
            self.sources.informers,
            self.metrics.call,
            settings.relist_seconds,
            self._kopf_answered,
        )
        self._kopf = kopf = KopfThread(handlers.registry, session, settings.namespaces, loop)
        self.health.watch("kopf", lambda: kopf.heartbeat)
        kopf.start()
        await kopf.ended.wait()
        raise RuntimeError("kopf has ended; its log says why") from kopf.error

    def _kopf_answered(
        self, verb: str, resource: Resource, namespace: str, status: int, message: str
    ) -> None:
        """Note an answer to kopf, in its thread."""
        answer = verb, resource, namespace, status, message
        with contextlib.suppress(RuntimeError):  # the engine's loop has ended before kopf
            self._loop.call_soon_threadsafe(self.refused.answered, *answer)

    async def _work(self, queue: WorkQueue, name: str, passes: Passes) -> None:
        with contextlib.suppress(Closed):
            while True:
                key, rest = await queue.get(), 0.0
                try:
                    rest = await passes.run(key)
                finally:
                    queue.done(key, rest)
                    self.signs.made_progress(name)
        await asyncio.Event().wait()  # closed: draining, until cancelled

    async def _drain(self) -> None:
        """Let passes under way end; begin no others."""
        for queue in (self.jobs, self.pools, self.group_queue):
            queue.close()
        try:
            async with asyncio.timeout(self._settings.drain_seconds):
                await self.jobs.drained()
                await self.pools.drained()
                await self.group_queue.drained()
        except TimeoutError:
            _logger.warning("passes cut off at the end", jobs=self.jobs.active, pools=self.pools.active)

    # -- what comes in -----------------------------------------------------------------------------------

    async def _first_lists(self, watches: list[asyncio.Task[Any]]) -> None:
        """Nothing is planned before every kind has been listed."""
        listed = asyncio.create_task(self._all_listed.wait())
        await asyncio.wait([listed, *watches], return_when=asyncio.FIRST_COMPLETED)
        listed.cancel()
        self._report(watches)

    async def _fence_earlier_leaders(self) -> None:
        """Before anything is decided: time goes on from what was written last, this term's number is above
        every other, and every pool carries it, so that no leader of an earlier term can promise GPUs any
        more."""
        highest = 0
        kinds = (RLHFJOBS, GPUPOOLS, WORKERGROUPS)
        for obj in chain.from_iterable(map(self.cache.values, kinds)):
            status = obj.get("status") or {}
            self._server_clock.not_before(status)
            highest = max(highest, whole(status.get("epoch")) or 0)
        if self.term.epoch is None:
            return
        await self.term.rise_above(highest)
        for pool in list(self.cache.values(GPUPOOLS)):
            try:
                await self._writer.stamp(pool)
            except (ApiError, Stale) as error:  # its next pass writes the number, or fails and tells
                _logger.warning("a pool has no word of the new term yet", error=str(error))

    def _listed(
        self, resource: Resource, objects: Iterable[Stored], version: str, namespace: str = "", news: int = 0
    ) -> None:
        """Take in a LIST: the first one has all there is, later ones bring what the watch may have missed.

        ``news``: how many of its objects have changed the cache already.
        """
        known = self.cache.stores[resource].listed
        repaired = news + self.cache.replace(resource, objects, version, namespace)
        if known and repaired:
            self.metrics.repaired.labels(resource.plural).inc(repaired)
        if self.cache.complete:
            self._all_listed.set()

    def _listed_by_kopf(
        self, resource: Resource, keys: Set[Key], version: str, namespace: str, news: int
    ) -> None:
        """Take in the end of a LIST whose objects are here already, but for those that have gone since."""
        there = (self.cache.find(resource, key) for key in keys)
        self._listed(resource, [obj for obj in there if obj is not None], version, namespace, news)

    def _event(self, resource: Resource, obj: Mapping[str, Any], deleted: bool) -> None:
        if deleted:
            self.cache.drop(resource, obj)
        else:
            self.cache.put(resource, obj)

    async def _look_at_unmanaged_pods_once(self) -> None:
        try:
            changed = await self.unmanaged_pods.look(self.taints.owners())
        except ApiError as error:
            _logger.warning("cannot look at other pods", error=str(error))
            return
        self.cluster.unlabelled_are(self.unmanaged_pods.of_jobs())
        owners = self.taints.owners()
        for pool in {owners[node] for node in changed if node in owners}:
            self.triggers.pool_changed(pool)

    async def _look_at_unmanaged_pods(self) -> None:
        while True:
            settings = self._settings
            await asyncio.sleep(
                self.unmanaged_pods.pause(settings.foreign_seconds, settings.foreign_list_seconds)
            )
            await self._look_at_unmanaged_pods_once()

    def _job_deleted(self, resource: Resource, old: Object | None, new: Object | None) -> None:
        if resource == RLHFJOBS and new is None and old is not None:
            self.metrics.jobs.forget(key_of(old))

    def _open_decision_log(self) -> DecisionLog | None:
        settings = self._settings
        if not settings.decision_log:
            return None
        return DecisionLog(
            Path(settings.decision_log),
            max_bytes=settings.decision_log_bytes,
            files=settings.decision_log_files,
            dropped=self.metrics.log_dropped.inc,
        )

    def _spawn(self, *coroutines: Coroutine[Any, Any, Any]) -> list[asyncio.Task[Any]]:
        return [asyncio.create_task(c, name=getattr(c, "__qualname__", None)) for c in coroutines]

    def _report(self, tasks: list[asyncio.Task[Any]]) -> None:
        """Log, and raise, what ended a part that should not end."""
        for task in tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                _logger.error("a part of the engine ended", part=task.get_name(), exc_info=error)
                raise error


def _queue_app(plans: PlanCache, clock: Callable[[], float], hosts: Hosts, groups: SeenGroups) -> ASGIApp:
    from controller.web.app import create

    return create(plans, clock, hosts, groups)


def _namespaces(kind: Resource, watched: Sequence[str]) -> Sequence[str]:
    """Return where a kind is followed; none: everywhere. Worker groups have a namespace of their own."""
    if kind == WORKERGROUPS:
        return (GROUPS_NAMESPACE,)
    if watched and kind in (JOBS, PODS, CONFIGMAPS):
        return tuple(dict.fromkeys((*watched, GROUPS_NAMESPACE)))
    return watched


async def _cancel(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
