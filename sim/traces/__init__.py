"""Logs of real clusters and recorded runs, read into workloads (docs/use/traces.md)."""

from sim.traces.errors import Skipped, TraceError
from sim.traces.read import FORMATS, read
from sim.traces.trace import Trace, TraceJob

__all__ = ["FORMATS", "Skipped", "Trace", "TraceError", "TraceJob", "read"]
