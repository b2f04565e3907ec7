"""Answers to the scheduler extender's questions.

Decided here: which nodes a pod may have, from what the pools planned and reserved (`GpuLedger`), and which of
them first (`scores`).
May import: nothing of the other rooms.
Tests: tests/policy, tests/extender.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from controller.policy.doors import lazy

if TYPE_CHECKING:
    from controller.policy.node.filter import *
    from controller.policy.node.ledger import *
    from controller.policy.node.planned_nodes import *
    from controller.policy.node.score import *

SHOWS = {
    "filter": "NOT_SEEN_YET STILL_READING Judgement Refusal judge not_ready spare",
    "ledger": "SIGNATURE Bound Gang GpuLedger PodRequest",
    "planned_nodes": "remaining_nodes still_open",
    "score": "scores",
}
__all__ = [name for names in SHOWS.values() for name in names.split()]
__getattr__ = lazy(__name__, SHOWS)
