"""Prometheus gauges whose values are read when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

Read = Callable[[], Iterable[tuple[tuple[str, ...], float]]]  # (label values, value) of each series


def register(registry: CollectorRegistry, name: str, text: str, read: Read, *labels: str) -> None:
    """Add a gauge with these labels to a registry."""
    registry.register(_Read(name, text, read, labels))


class _Read(Collector):
    def __init__(self, name: str, text: str, read: Read, labels: tuple[str, ...]) -> None:
        self._name, self._text, self._read, self._labelnames = name, text, read, labels

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Without reading anything: so that a name is not given twice."""
        yield GaugeMetricFamily(self._name, self._text, labels=self._labelnames)

    def collect(self) -> Iterable[GaugeMetricFamily]:
        family = GaugeMetricFamily(self._name, self._text, labels=self._labelnames)
        for values, value in self._read():
            family.add_metric(values, value)
        yield family
