"""Evidence that the jobs of a pool give about each other.

Decided here: how many automatic stops a pool takes in an hour, which fall many jobs share, the usual noise of
an eval, and the account of false stops (e-BH). From: the jobs' views and the pool's limits.
May import: `stopping`, `queueing`.
Tests: tests/policy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from controller.policy.doors import lazy

if TYPE_CHECKING:
    from controller.policy.fleet.ebh import *
    from controller.policy.fleet.limits import *
    from controller.policy.fleet.noise import *
    from controller.policy.fleet.shared_drops import *

SHOWS = {
    "ebh": "day_start rules_with_e_values without_e_value",
    "limits": "ASKS_OTHERS ASKS_POOL HOUR STOPS_KEPT LimitedStops kept_stops limit_stops",
    "noise": "NOISE_KEPT learn usual usual_of_guardrails",
    "shared_drops": "ALL_KEPT",
}
__all__ = [name for names in SHOWS.values() for name in names.split()]
__getattr__ = lazy(__name__, SHOWS)
