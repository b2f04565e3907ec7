"""A job that ran, fell and was stopped: what the operator wrote down of it, as seeds."""

from __future__ import annotations

from functools import cache
from typing import Any

from controller.api import convert
from tests.support.policy_world import PolicyWorld, logged_plans


@cache
def _told() -> tuple[list[str], PolicyWorld]:
    with logged_plans() as lines:
        world = PolicyWorld({"n1": 2, "n2": 2})
        world.submit("ns/a", 2, 2)
        world.submit("ns/b", 2, 2)
        world.settle()
        for score in (0.1, 0.3, 0.5, 0.45, 0.4, 0.35):
            world.scores("ns/a", score)
            world.settle()
    return lines, world


def log_lines() -> list[str]:
    """The longest job's and the longest pool's line of the decision log, and the first ones."""
    lines, _ = _told()
    kinds = [[line for line in lines if f'"kind":"{kind}"' in line] for kind in ("job", "pool")]
    return [line for found in kinds for line in (found[0], max(found, key=len))]


def status() -> dict[str, Any]:
    """The status of the job that was stopped."""
    _, world = _told()
    job = world.jobs["ns/a"]
    return convert.status(job.record, job.desired, world.now)
