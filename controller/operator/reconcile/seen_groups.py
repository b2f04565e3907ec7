"""Worker groups for the queue API: from what the operator has of them anyway, made when asked."""

from __future__ import annotations

from controller.api.workergroup import group_record
from controller.kube.resources import GPUPOOLS, RLHFJOBS, WORKERGROUPS
from controller.operator.process.group_gauges import GroupFigures
from controller.operator.reconcile.plan_cache import PlanCache
from controller.operator.state.cluster import ClusterState
from controller.operator.state.groups import Groups
from controller.policy.group_types import group_key
from controller.policy.pool import GroupRecord
from controller.web.groups import Around, Group, LatestReport, group


class SeenGroups:
    """A source of the queue API.

    Args:
        cluster: of the informers' stores.
        plans: of pools; which groups they have closed.
        reports: of groups, the newest.
    """

    def __init__(self, cluster: ClusterState, plans: PlanCache, reports: Groups) -> None:
        self._cluster, self._plans, self._reports = cluster, plans, reports

    def names(self) -> list[str]:
        return sorted(str(obj["metadata"]["name"]) for obj in self._cluster.cache.values(WORKERGROUPS))

    def group(self, name: str) -> Group | str:
        obj = self._cluster.cache.get(WORKERGROUPS, group_key(name))
        if obj is None:
            return "it is gone"
        pool = str((obj.get("spec") or {}).get("pool", ""))
        try:
            record = group_record(obj)
        except ValueError as error:
            return str(error)
        around = Around(
            job=lambda key: self._cluster.cache.get(RLHFJOBS, key),
            pool=self._cluster.cache.get(GPUPOOLS, pool),
            latest=self._latest(name, record),
            overdue=self._overdue(pool, name),
        )
        return group(obj, around, record)

    def figures(self) -> list[GroupFigures]:
        """Return all groups as metrics count them; those whose status cannot be read are left out."""
        return [
            GroupFigures(
                one.name, one.state, tuple(who.state for who in one.residents), one.gpus, one.start,
                one.opened, one.reported, sum(who.turns or 0 for who in one.residents), one.lost or 0,
                one.switches or 0, sum(self._reports.charged(one.name, one.start).values()),
                one.vacant_gpu_seconds or 0.0, one.unanswered,
            )
            for one in map(self.group, self.names()) if isinstance(one, Group)
        ]  # fmt: skip

    def _latest(self, name: str, record: GroupRecord) -> LatestReport:
        """Return the newest report of a group's start."""
        report, at = self._reports.report(name, record.number), self._reports.reported(name)
        why = self._reports.problem(name)
        silent = self._reports.unanswered(name, record)
        if report is None or at is None:
            return LatestReport(problem=why or "it has not reported yet", unanswered=silent)
        return LatestReport(report, at, why, silent)

    def _overdue(self, pool: str, name: str) -> str:
        planned = self._plans.planned(pool)
        sharing = planned.plan.sharing if planned is not None else None
        closed = sharing.closed if sharing is not None else ()
        return next((one.overdue for one in closed if one.name == name), "")
