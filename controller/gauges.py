"""Prometheus gauges and counters whose values are read when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

Read = Callable[[], Iterable[tuple[tuple[str, ...], float]]]  # (label values, value) of each series


def register(registry: CollectorRegistry, name: str, text: str, read: Read, *labels: str) -> None:
    """Add a gauge with these labels to a registry."""
    registry.register(_Read(name, text, read, labels, GaugeMetricFamily))


def register_counter(registry: CollectorRegistry, name: str, text: str, read: Read, *labels: str) -> None:
    """Add a counter that somebody else keeps; ``name`` without ``_total``."""
    registry.register(_Read(name, text, read, labels, CounterMetricFamily))


Family = type[GaugeMetricFamily] | type[CounterMetricFamily]


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
