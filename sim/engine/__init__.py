"""One run of the production policy on a virtual cluster.

May import: what `sim` may; no other package of it.
Tests: tests/sim.
"""

from sim.engine.event_log import EventLog
from sim.engine.result import Result, Stop
from sim.engine.run import simulate

__all__ = ["EventLog", "Result", "Stop", "simulate"]
