"""One run of the production policy on a virtual cluster."""

from sim.engine.journal import Journal
from sim.engine.result import Result, Stop
from sim.engine.run import simulate

__all__ = ["Journal", "Result", "Stop", "simulate"]
