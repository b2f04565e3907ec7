"""One pass over one worker group: load, plan, write its status, carry out, tell member 0 and hear it.

The record is written before anything is done about it, so a pass that dies half way is made again by what is
there. A group that does not answer keeps its residents: only its word, or the end of all its pods, ends one.

Most passes are made for the next report alone. While nothing that a plan goes by has changed since the last
one that had nothing to do, there is no plan to make: objects are not even opened.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from controller import log, workloads
from controller.api import convert, sharing_terms
from controller.api.gpupool import GPUPool
from controller.api.sharing import WorkerFamily
from controller.api.sharing_terms import sharing_kind
from controller.api.workergroup import group_record, group_status
from controller.kube.cache import Cache, key_of
from controller.kube.client import Api
from controller.kube.errors import AlreadyExists, NotFound, Refused
from controller.kube.resources import CONFIGMAPS, GPUPOOLS, JOBS, PODS, RLHFJOBS, WORKERGROUPS
from controller.kube.versioned import patch_as_read
from controller.objects import Object, completion_index
from controller.operator.reconcile.group_client import GroupClient, NoAnswer
from controller.operator.reconcile.passes import Result
from controller.operator.reconcile.status_writer import StatusWriter
from controller.operator.reconcile.validation import NO_LASTS, scheduling_of
from controller.operator.state import run_configmap
from controller.operator.state.cluster import ClusterState
from controller.operator.state.groups import Groups, lost_turns
from controller.operator.state.ownership import controlled_by, generation
from controller.policy.group_types import GROUPS_NAMESPACE, group_key
from controller.policy.job import PodTrouble, ResidencyRecord, node_away, residency
from controller.policy.pool import (
    Errand,
    GroupHeard,
    GroupRecord,
    GroupResident,
    GroupSight,
    GroupStep,
    ask_again,
    errands,
    plan_group,
)
from controller.policy.stored import MESSAGE_MAX
from controller.policy.wording import counted
from controller.steps.groups import AdmittedGroup, GroupDirectory, GroupPod
from controller.web.group_report import GroupReport
from controller.workloads.group_jobs import GroupPods, GroupSettings, build_group, group_job_name, group_pods
from controller.workloads.pod_trouble import pod_trouble
from controller.workloads.pods import unheard
from controller.workloads.problems import ProblemError

_logger = log.get("evalstop.group")


_Versions = tuple[Any, ...]  # see `GroupReconciler._versions`


class GroupReconciler:
    """Reconciles worker groups.

    Args:
        groups: what they report.
        directory: what the step API tells their pods.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        api: Api,
        cache: Cache,
        cluster: ClusterState,
        writer: StatusWriter,
        groups: Groups,
        directory: GroupDirectory,
        clock: Callable[[], float],
    ) -> None:
        self._api, self._cache, self._cluster, self._writer = api, cache, cluster, writer
        self._groups, self._directory, self._clock = groups, directory, clock
        self.client = GroupClient()
        self._settled: dict[str, tuple[_Versions, GroupRecord]] = {}  # by group, of a plan with nothing to do
        self._refused: dict[str, tuple[str, float]] = {}  # by uid: why its Job was refused, until when (s)

    async def reconcile(self, name: str) -> Result:
        """Make one pass.

        Raises:
            Stale: something that it goes by has changed meanwhile.
            StatusError: the group's status does not read back.
            ApiError: a call failed.
        """
        obj = self._cache.get(WORKERGROUPS, group_key(name))
        if obj is None:
            self._directory.drop_group(name)
            self._settled.pop(name, None)
            return Result("gone")
        versions = self._versions(obj)
        settled = self._settled.get(name)
        if settled is not None and settled[0] == versions:
            return Result("quiet", await self._talk(obj, settled[1]))
        self._settled.pop(name, None)
        before = group_record(obj)
        pool_name = str(obj["spec"]["pool"])
        family = self._family(obj)
        starts, pods = self._starts(obj), self._groups.pods(obj)
        present = self._present(obj, before)
        sight = self._sight(obj, before, family, starts, pods, present)
        step = plan_group(before, sight, generation(obj), self._clock())
        most = sharing_terms.most_residents(self._cluster.pool(pool_name))
        wrote = await self._writer.group(obj, group_status(step.record, generation(obj), most))
        if wrote:
            self._cluster.pool_changed(pool_name)
        self._put(obj, step.record, pods)
        await self._carry_out(obj, step, family, starts)
        if step.end:
            return Result("wrote")
        waits = step.pause > 0 or obj["metadata"]["uid"] in self._refused
        if not (wrote or step.delete or step.make or waits):
            self._settled[name] = versions, step.record
        again = await self._talk(obj, step.record)
        if step.pause > 0:
            again = min(again, step.pause)
        return Result("wrote" if wrote else "quiet", again)

    # -- what is there ---------------------------------------------------------------------------------------

    def _versions(self, obj: Object) -> _Versions:
        """Return what a plan of a group goes by: with the same again there would be the same plan."""
        name, pool = str(obj["metadata"]["name"]), self._cache.get(GPUPOOLS, str(obj["spec"]["pool"]))
        mine = [one for kind in (JOBS, PODS, CONFIGMAPS) for one in self._cache.of_job(kind, key_of(obj))]
        return (
            (obj["metadata"]["uid"], obj["metadata"]["resourceVersion"]),
            tuple((one.key, one.version) for one in (*mine, *self._groups.stored_residents(name))),
            None if pool is None else (pool["metadata"]["uid"], generation(pool)),
            self._cluster.steps,
            self._groups.heard(name),
            self._groups.silent(name, self._clock()),
        )

    def _family(self, obj: Object) -> WorkerFamily | None:
        """Return the family of a group, as its pool has it now; None: not with members of this size."""
        spec = obj["spec"]
        pool = self._cluster.pool(str(spec["pool"]))
        offered = pool.spec.sharing if isinstance(pool, GPUPool) else None
        for family in offered.families if offered is not None else ():
            if (family.name, family.replicas, family.gpus_per_replica) == (
                spec["family"], spec["replicas"], spec["gpusPerReplica"],
            ):  # fmt: skip
                return family
        return None

    def _starts(self, obj: Object) -> dict[int, Object]:
        """Return the Jobs of a group's starts, by number."""
        metadata, found = obj["metadata"], dict[int, Object]()
        for stored in self._cache.of_job(JOBS, key_of(obj)):
            job = stored.open()
            head, _, number = job["metadata"]["name"].rpartition("-")
            if controlled_by(job, metadata["uid"]) and head == metadata["name"] and number.isdecimal():
                found[int(number)] = job
        return found

    def _present(self, obj: Object, record: GroupRecord) -> GroupPods | None:
        """Return the pods of a group's present start; None: it has no Job."""
        job = self._starts(obj).get(record.number)
        return None if job is None else group_pods(job, self._groups.pods(obj), record.members)

    def _sight(
        self,
        obj: Object,
        record: GroupRecord,
        family: WorkerFamily | None,
        starts: dict[int, Object],
        pods: list[Object],
        present: GroupPods | None,
    ) -> GroupSight:
        name, uid = obj["metadata"]["name"], obj["metadata"]["uid"]
        message, until = self._refused.get(uid, ("", 0.0))
        problem = ("JobRefused", message) if self._clock() < until else None
        if family is None:
            spec = obj["spec"]
            message = (
                f"GPUPool {spec['pool']!r} has no family {spec['family']!r} any more of "
                f"{counted(spec['replicas'], 'member')} with {counted(spec['gpusPerReplica'], 'GPU')} each"
            )
            problem = "FamilyNotFound", message
        elif self._cluster.steps is None:
            problem = "StepsNotServed", "this operator serves no step API, where members get their tickets"
        report, pool = self._groups.report(name, record.number), str(obj["spec"]["pool"])
        return GroupSight(
            int(obj["spec"]["replicas"]),
            tuple(sorted(starts)),
            len(pods),
            present.uids if present is not None else (),
            len(present.bound) if present is not None else 0,
            present.lost if present is not None else False,
            self._wanted(name),
            heard_of(report),
            self._groups.charged(name, record.number),
            bool(obj["metadata"].get("deletionTimestamp")),
            problem,
            "" if self._cache.get(GPUPOOLS, pool) is not None else pool,
            self._groups.unanswered(name, record),
            self._groups.problem(name),
            _troubles(pods, starts.get(record.number)),
            _away(pods),
        )

    def _wanted(self, name: str) -> dict[str, GroupResident]:
        """Return the residencies that jobs' records name and that do not leave."""
        found = {}
        for obj in self._groups.residents(name):
            known: ResidencyRecord | None = convert.field(obj.get("status"), "residency")
            asked = (obj.get("spec") or {}).get("sharing") or {}
            if known is None or known.group != name or known.leaving or not asked:
                continue
            resident = residency.name_of(obj["metadata"]["uid"], known.number)
            found[resident] = GroupResident(resident, key_of(obj), int(asked["stateBytes"]), known.since)
        return found

    def _put(self, obj: Object, record: GroupRecord, pods: list[Object]) -> None:
        """Have the step API know the group's pods of the record's start."""
        job = self._starts(obj).get(record.number)
        mine = () if job is None else tuple(
            GroupPod(pod["metadata"]["uid"], index, str((pod.get("status") or {}).get("podIP") or ""))
            for pod in pods
            if controlled_by(pod, job["metadata"]["uid"]) and (index := completion_index(pod)) is not None
        )  # fmt: skip
        self._directory.put_group(AdmittedGroup(obj["metadata"]["name"], record.number, mine, record.members))

    # -- what is done ----------------------------------------------------------------------------------------

    async def _carry_out(
        self, obj: Object, step: GroupStep, family: WorkerFamily | None, starts: dict[int, Object]
    ) -> None:
        for number in step.delete:
            metadata = starts[number]["metadata"]
            if metadata.get("deletionTimestamp"):
                continue
            try:  # at any version: whatever became of it since, it is to go
                await self._api.delete(
                    JOBS, metadata["name"], GROUPS_NAMESPACE, metadata["uid"], foreground=True
                )
            except NotFound:
                self._cache.drop(JOBS, starts[number])
        if starts and not step.end:
            await self.write_authority(obj)  # it may be another one by now
        if step.make and family is not None:
            await self._make(obj, step.record, family)
        if step.end:
            metadata = obj["metadata"]
            try:
                await self._api.delete(WORKERGROUPS, metadata["name"], GROUPS_NAMESPACE, metadata["uid"])
            except NotFound:
                self._cache.drop(WORKERGROUPS, obj)
            _logger.info("a worker group has ended", group=metadata["name"], why=step.record.closing)

    async def _make(self, obj: Object, record: GroupRecord, family: WorkerFamily) -> None:
        """Make the Job of a group's start, and before it the ConfigMap with the step API's authority."""
        pool, steps = self._cluster.pool(str(obj["spec"]["pool"])), self._cluster.steps
        uid = str(obj["metadata"]["uid"])
        if not isinstance(pool, GPUPool) or pool.spec.sharing is None or steps is None:
            return
        await self.write_authority(obj)
        settings = GroupSettings(
            ",".join(steps.urls),
            workloads.run_configmap(obj["metadata"]["name"]),
            family.device_bytes,
            family.residual_bytes,
            family.host_bytes,
            family.gpus_per_replica,
            pool.spec.sharing.max_residents,
            pool.spec.sharing.turn_seconds,
            pool.spec.sharing.idle_seconds,
        )
        try:
            job = build_group(
                obj,
                family.template.model_dump(),
                record.number,
                record.nodes,
                settings,
                pool=pool.metadata.name,
                selector={label.key: label.value for label in pool.spec.node_selector},
                scheduling=scheduling_of(pool),
            )
            made = await self._api.create(JOBS, job)
        except AlreadyExists:
            made = await self._api.get(
                JOBS, group_job_name(obj["metadata"]["name"], record.number), GROUPS_NAMESPACE
            )
        except (Refused, ProblemError) as error:
            message = error.message if isinstance(error, Refused) else str(error)
            why = f"its Job cannot be made: {message}"[:MESSAGE_MAX]
            self._refused[uid] = why, self._clock() + NO_LASTS
            self._cluster.group_changed(obj["metadata"]["name"])
            return
        self._refused.pop(uid, None)
        self._cache.put(JOBS, made)
        _logger.info("a worker group starts", group=obj["metadata"]["name"], start=record.number)

    async def write_authority(self, obj: Object) -> None:
        """Write the ConfigMap by which a group's pods trust the step API."""
        steps = self._cluster.steps
        if steps is None:
            return
        manifest = run_configmap.group_manifest(obj, steps)
        key = key_of(manifest)
        known = self._cache.get(CONFIGMAPS, key)
        if known is None:
            try:
                self._cache.put(CONFIGMAPS, await self._api.create(CONFIGMAPS, manifest))
                return
            except AlreadyExists:
                known = await self._api.get(CONFIGMAPS, manifest["metadata"]["name"], GROUPS_NAMESPACE)
        if controlled_by(known, obj["metadata"]["uid"]) and known.get("data") != manifest["data"]:
            await patch_as_read(self._api, self._cache, CONFIGMAPS, known, {"data": manifest["data"]})

    # -- member 0 --------------------------------------------------------------------------------------------

    async def _talk(self, obj: Object, record: GroupRecord) -> float:
        """Tell member 0 who comes and who leaves, and hear its report. Returns when to ask again (s)."""
        name, number = str(obj["metadata"]["name"]), record.number
        server = self._directory.server(name, number)
        heard = heard_of(self._groups.report(name, number))
        if server is None and record.ready_at is not None:  # it was, before this operator's time
            self._no_answer(obj, "member 0 has not told this operator where it is")
        if server is None or not record.members:
            return ask_again(record, heard, known=False)
        asks = [self._asked(errand) for errand in errands(record, heard)]
        ticket = self._directory.operators_ticket(name, number)
        news = False
        try:
            for method, path, body in asks or [("GET", "/v1/report", None)]:
                answer = await self.client.ask(server, ticket, method, path, body)
                news |= self._groups.take(name, number, answer, self._clock())
        except NoAnswer as error:
            self._no_answer(obj, str(error))
            _logger.info("a worker group does not answer", group=name, why=str(error))
            return ask_again(record, heard, silent=True)
        if news:
            self._cluster.pool_changed(str(obj["spec"]["pool"]))
        heard = heard_of(self._groups.report(name, number))
        groups = len(self._cache.stores[WORKERGROUPS])
        return ask_again(record, heard, measures=self._groups.measures(name), groups=groups)

    def _no_answer(self, obj: Object, why: str) -> None:
        """Note that a question to a group brought nothing."""
        if self._groups.failed(str(obj["metadata"]["name"]), why, self._clock()):
            self._cluster.pool_changed(str(obj["spec"]["pool"]))

    def _asked(self, errand: Errand) -> tuple[str, str, Any]:
        """Return method, path and body of what a group is to be told."""
        one = errand.resident
        if errand.leaves:
            return "POST", f"/v1/residents/{one.name}/leave", {}
        told = {"name": one.name, "job": one.name.rpartition("-")[0], "kind": self._kind(one)}
        return "POST", "/v1/residents", {**told, "stateBytes": one.state_bytes}

    def _kind(self, resident: GroupResident) -> str:
        """Return the kind by which a resident's turns are measured."""
        job = self._cache.get(RLHFJOBS, resident.job)
        asked = ((job or {}).get("spec") or {}).get("sharing") or {}
        return sharing_kind(job, str(asked.get("family"))) if job is not None and asked else ""


def _troubles(pods: list[Object], job: Object | None) -> tuple[PodTrouble, ...]:
    """Return how pods of a start's Job ended, or what they wait for; of none that is being deleted."""
    uid = None if job is None else job["metadata"]["uid"]
    mine = (
        pod_trouble(pod)
        for pod in pods
        if uid is not None and controlled_by(pod, uid) and not pod["metadata"].get("deletionTimestamp")
    )
    return tuple(found for found in mine if found is not None)


def _away(pods: list[Object]) -> PodTrouble | None:
    """Return the first of a group's pods, by name, whose node is not heard of; None: there is none."""
    lost = (node_away(pod["metadata"]["name"], pod["spec"].get("nodeName")) for pod in pods if unheard(pod))
    return min(lost, key=lambda one: one.pod, default=None)


def heard_of(report: GroupReport | None) -> GroupHeard | None:
    """Return what a group's newest report says of residents; None: there is none."""
    if report is None:
        return None
    return GroupHeard(
        report.ready, frozenset(one.name for one in report.residents), report.gone, lost_turns(report)
    )
