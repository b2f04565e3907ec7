"""Which changes of a job wake its pool: every field of what the pool sees of a job is accounted for."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from typing import Any

import pytest

from controller.frozen import dataclass
from controller.kube.cache import Cache
from controller.operator.process.workqueue import WorkQueue
from controller.operator.reconcile.triggers import LEARN_DELAY, Triggers
from controller.policy import types
from controller.policy.job import JobRecord
from controller.policy.types import JobView

VIEW = JobView("ns/a", 0.0, 0, replicas=1, gpus_per_replica=1)
DELAY = 0.5


def unaccounted(view: type) -> set[str]:
    """Return fields that are in none of the three lists, or in two, and names that are no fields."""
    named = Counter([*types.WAKES_POOL, *types.INFORMS_POOL, *types.NO_NEWS_TO_POOL])
    return {name for name in named | Counter(f.name for f in fields(view)) if named[name] != 1} | (
        set(named) - {f.name for f in fields(view)}
    )


def test_each_field_of_a_view_is_named_as_concerning_its_pool_or_not() -> None:
    assert unaccounted(JobView) == set()

    @dataclass(frozen=True, slots=True)
    class Grown(JobView):
        mood: str = ""

    assert unaccounted(Grown) == {"mood"}


def job(view: JobView | None, pool: str = "gpus") -> Any:
    class Planned:
        key, obj = VIEW.key, {"spec": {"pool": pool}}
        record = JobRecord()

    planned: Any = Planned()
    planned.view = view
    return planned


class Pools(WorkQueue):
    """Notes within how many seconds which pool is to be looked at."""

    def __init__(self) -> None:
        super().__init__(lambda: 0.0)
        self.woken: list[tuple[str, float]] = []

    def sooner(self, key: str, delay: float) -> None:
        self.woken.append((key, delay))


def woken(*looks: Any) -> list[tuple[str, float]]:
    """Return what the last of some passes over a job, or its end (None), made of its pools."""
    pools = Pools()
    triggers = Triggers(Cache(), lambda node: None, pools, DELAY)
    for look in looks:
        pools.woken.clear()
        if look is None:
            triggers.job_deleted(VIEW.key)
        else:
            triggers.job_planned(look)
    return sorted(pools.woken)


@pytest.mark.parametrize("name", [f.name for f in fields(JobView)])
def test_a_changed_field_wakes_the_pool_at_once_later_or_not(name: str) -> None:
    changed = replace(VIEW, **{name: ("changed",)})
    delays = dict.fromkeys(types.WAKES_POOL, DELAY) | dict.fromkeys(types.INFORMS_POOL, LEARN_DELAY)
    assert woken(job(VIEW), job(changed)) == ([("gpus", delays[name])] if name in delays else [])


def test_of_the_readings_the_newest_counts() -> None:
    before, same, newer = (replace(VIEW, readings=readings) for readings in [(1, 2), (0, 1, 2), (1, 2, 3)])  # type: ignore[arg-type]
    assert woken(job(before), job(same)) == []
    assert woken(job(before), job(newer)) == [("gpus", LEARN_DELAY)]


def test_a_job_that_comes_moves_or_goes_wakes_each_pool_that_it_concerns() -> None:
    assert woken(job(VIEW)) == [("gpus", DELAY), ("gpus", LEARN_DELAY)]
    assert woken(job(VIEW), job(VIEW, "others")) == [("gpus", DELAY), ("others", DELAY)]
    assert woken(job(VIEW), job(None)) == [("gpus", DELAY)]
    assert woken(job(VIEW), None) == [("gpus", DELAY)]
    assert woken(job(VIEW), None, None) == []
