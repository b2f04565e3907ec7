"""The extender's own Prometheus metrics. Label values come from fixed sets."""

from __future__ import annotations

from prometheus_client import Counter, Histogram

from controller.gauges import ProcessMetrics
from controller.policy.node import Refusal

VERBS = ("filter", "prioritize", "preempt")
_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0)


class Metrics(ProcessMetrics):
    """All metrics of the extender. kube-scheduler has no histogram of extender latency."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = Histogram(
            "evalstop_extender_request_seconds",
            "Time from a request's last byte to its answer",
            ["verb"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.requests = Counter(
            "evalstop_extender_requests",
            "Requests by verb and status",
            ["verb", "status"],
            registry=self.registry,
        )
        self.nodes = Counter(
            "evalstop_extender_nodes",
            "Nodes asked about, and let through",
            ["verb", "way"],
            registry=self.registry,
        )
        self.refusals = Counter(
            "evalstop_extender_refusals",
            "Requests in which nodes were refused, by reason",
            ["reason"],
            registry=self.registry,
        )
        self.wakes = Counter(
            "evalstop_extender_wakes",
            "Parked pods touched so that kube-scheduler tries them again, by outcome",
            ["outcome"],
            registry=self.registry,
        )
        self.calls = Counter(
            "evalstop_extender_api_calls",
            "API calls by verb, resource and outcome; none is made to answer a request",
            ["verb", "resource", "outcome"],
            registry=self.registry,
        )
        for verb in VERBS:
            self.seconds.labels(verb)
        for refusal in Refusal:
            self.refusals.labels(str(refusal))
