"""Condition MetricsAvailable of a run without GPUs: nobody reads its page, so it says nothing of the page.

That evals are being read, or that no pod has an address yet, is true of a run that trains. One that waits,
was stopped or has ended has no such condition. Only a run that came to its end without a single eval keeps
it: its mark (`marks`) is told by why none was read.
"""

from __future__ import annotations

from dataclasses import replace

from controller.policy.job import conditions as c
from controller.policy.job.types import Desired, Plan, ScrapeOutcome
from controller.policy.types import Mode

NEVER_READ = "NeverRead"


def settled(made: Plan, desired: Desired, now: float) -> Plan:
    """Return the plan whose record says of the trainer's page only what is true of a run without GPUs."""
    record = made.record
    if record.admission is not None:
        return made
    conditions = c.Conditions(record.conditions, desired.generation, now)
    known = conditions.get(c.METRICS)
    if record.finished != "Complete" or record.evals_seen or desired.mode is Mode.OFF:
        conditions.drop(c.METRICS)
    elif known is None or known.reason == ScrapeOutcome.NO_PODS:
        message = "the run ended before its metrics page was read once"
        conditions.set(c.METRICS, False, NEVER_READ, message)
    after = conditions.result()
    return made if after == record.conditions else replace(made, record=replace(record, conditions=after))
