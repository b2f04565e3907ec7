"""The three verbs, answered from memory: what is asked, judged by the ledger, counted, and remembered if it
refuses the pod every node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from controller.extender import views, wire
from controller.extender.metrics import Metrics
from controller.extender.requeueing import RefusedPods
from controller.policy.node import GpuLedger, PodRequest, judge, not_ready, scores, spare


class Service:
    """Answers for kube-scheduler. Idempotent: an answer changes nothing that another answer depends on.

    ``ready``: whether the ledger holds the cluster as it is; before that every node is refused.
    """

    def __init__(
        self, ledger: GpuLedger, refused: RefusedPods, metrics: Metrics, clock: Callable[[], float]
    ) -> None:
        self._ledger, self._refused, self._metrics, self._clock = ledger, refused, metrics, clock
        self.ready = False

    def filter(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """``ExtenderArgs`` -> ``ExtenderFilterResult``; never an ``Error``, which ``ignorable`` would skip.

        Raises:
            BadRequest: see `wire.args`.
        """
        asked = wire.args(message)
        pod_request = _asker(asked.pod)
        if self.ready:
            judgement = judge(self._ledger, pod_request, asked.nodes, self._clock())
        else:
            judgement = not_ready(asked.nodes)
        self._refused.answered(self._ledger, views.uid(asked.pod), pod_request, judgement)
        self._count("filter", len(asked.nodes), len(judgement.passed))
        if judgement.reason is not None:
            self._metrics.refusals.labels(str(judgement.reason)).inc()
        return wire.filter_result(asked, judgement)

    def prioritize(self, message: Mapping[str, Any]) -> list[dict[str, Any]]:
        """``ExtenderArgs`` -> ``HostPriorityList``; empty if all nodes are alike, for that says as much.

        Raises:
            BadRequest: see `wire.args`.
        """
        asked = wire.args(message)
        found = scores(self._ledger, _asker(asked.pod), asked.nodes, self._clock())
        self._count("prioritize", len(asked.nodes), len(found))
        return wire.priorities(asked.nodes, found) if len(set(found)) > 1 else []

    def preempt(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """``ExtenderPreemptionArgs`` -> ``ExtenderPreemptionResult``.

        Raises:
            BadRequest: see `wire.preemption_args`.
        """
        asked = wire.preemption_args(message)
        left: dict[str, list[str]] = {}
        if self.ready:
            left = spare(self._ledger, _asker(asked.pod), asked.victims, self._clock())
        self._count("preempt", len(asked.victims), len(left))
        return wire.preemption_result(asked, left)

    def _count(self, verb: str, asked: int, passed: int) -> None:
        self._metrics.nodes.labels(verb, "asked").inc(asked)
        self._metrics.nodes.labels(verb, "passed").inc(passed)


def _asker(pod: Mapping[str, Any]) -> PodRequest:
    try:
        return views.pod_request(pod)
    except (AttributeError, TypeError, ValueError) as error:
        raise wire.BadRequest(f"Pod: not a pod as the API server sends it ({error})") from None
