"""Logs of real clusters and recorded runs, read into workloads (docs/use/traces.md).

May import: what `sim` may.
Tests: tests/sim_traces.
"""

from sim.traces.errors import Skipped, TraceError
from sim.traces.read import FORMATS, read
from sim.traces.trace import Trace, TraceJob

__all__ = ["FORMATS", "Skipped", "Trace", "TraceError", "TraceJob", "read"]
