"""A process's Prometheus metrics, and those among them whose values are read when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

Read = Callable[[], Iterable[tuple[tuple[str, ...], float]]]  # (label values, value) of each series
Family = type[GaugeMetricFamily] | type[CounterMetricFamily]


class ProcessMetrics:
    """Base of a process's metrics, in a registry of their own. Label values come from fixed sets."""

    calls: Counter  # API calls by verb, resource and outcome

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

    def call(self, verb: str, resource: str, outcome: str) -> None:
        """Count an API call."""
        self.calls.labels(verb, resource, outcome).inc()

    def gauge(self, name: str, text: str, read: Read, *labels: str) -> None:
        """Register a gauge whose values are read at each scrape."""
        self.registry.register(_Read(name, text, read, labels, GaugeMetricFamily))

    def counter(self, name: str, text: str, read: Read, *labels: str) -> None:
        """Register a counter whose values are kept elsewhere; ``name`` without ``_total``."""
        self.registry.register(_Read(name, text, read, labels, CounterMetricFamily))

    def text(self) -> bytes:
        """Return all metrics as Prometheus scrapes them."""
        return generate_latest(self.registry)


class _Read(Collector):
    def __init__(self, name: str, text: str, read: Read, labels: tuple[str, ...], family: Family) -> None:
        self._name, self._text, self._read, self._labelnames = name, text, read, labels
        self._family = family

    def describe(self) -> Iterable[GaugeMetricFamily | CounterMetricFamily]:
        """Without reading anything: so that a name is not given twice."""
        yield self._family(self._name, self._text, labels=self._labelnames)

    def collect(self) -> Iterable[GaugeMetricFamily | CounterMetricFamily]:
        family = self._family(self._name, self._text, labels=self._labelnames)
        for values, value in self._read():
            family.add_metric(values, value)
        yield family
