"""Whole traces on virtual groups: GPUs are conserved, jobs end, the rule on slow-downs acts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sim.experiments.executor import Serial
from sim.sharing.cluster import ReplayTrial, VirtualPool, perform
from sim.sharing.replay import ARMS, replay
from sim.sharing.trace import MODELS, ReplaySetting, trace

SMALL = ReplaySetting(jobs=60, gpus=512, kinds=6, shortest=20, longest=60)


class Watched(VirtualPool):
    """Checks after every decision that no GPU is had twice and no group has more than it may."""

    def _settle(self, now: float) -> None:
        super()._settle(now)
        used = sum(self.families[entry.view.family].gpus for entry in self.groups.values())
        own = sum(job.spec.kind.model.rollout for entry in self.groups.values() for job in entry.jobs)
        assert 0 <= self.free == self.setting.gpus - used - (own if self.private is None else 0)
        for entry in self.groups.values():
            assert len(entry.jobs) <= (
                1 if self.trial.placement == "Isolated" else self.setting.max_residents
            )
            assert [job.spec.key for job in entry.jobs] == [one.key for one in entry.view.residents]
            unknown = [one for one in entry.view.residents if not one.known]
            assert not unknown or len(entry.view.residents) == 1, "an unknown kind is alone"


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize(("placement", "backfill"), ARMS)
def test_everybody_ends_and_no_gpu_is_had_twice(placement: str, backfill: bool, private: bool) -> None:
    pool = Watched(ReplayTrial(SMALL, placement, backfill, private, 1))
    found = pool.run()
    assert all(job.ended > job.began >= job.spec.arrives for job in pool.jobs.values())
    assert found.turns == sum(job.spec.steps for job in pool.jobs.values())
    assert all(slow > 0.999 for slow in found.slowdowns)
    if placement == "Isolated":
        assert max(found.slowdowns) < 1.0001
        assert found.preempted == 0
    assert pool.free == SMALL.gpus


def test_a_replay_is_the_same_again_and_sharing_is_shorter() -> None:
    trial = ReplayTrial(SMALL, "Spread", True, False, 2)
    assert perform(trial) == perform(trial)
    alone = perform(replace(trial, placement="Isolated"))
    shared = perform(trial)
    assert shared.makespan < 0.95 * alone.makespan  # of so few jobs the longest one is most
    assert shared.waited < 0.7 * alone.waited
    assert shared.charged < 0.9 * alone.charged


def test_who_makes_another_too_slow_leaves_and_ends_all_the_same() -> None:
    """With a limit of 2 % that short profiles cannot promise, some leave; nobody is lost."""
    setting = replace(SMALL, max_slowdown=2, shortest=60, longest=120)
    pool = Watched(ReplayTrial(setting, "Pack", True, False, 3))
    found = pool.run()
    assert found.preempted > 0
    assert all(job.ended > 0 for job in pool.jobs.values())


def test_the_load_is_what_was_asked_for() -> None:
    for private in (False, True):
        jobs = trace(SMALL, 5, private)
        span = max(job.arrives for job in jobs) / 1e6
        load = sum(job.work(private) for job in jobs) / (SMALL.gpus * span)
        assert load == pytest.approx(SMALL.load, rel=0.1)
        assert {job.kind.model for job in jobs} == set(MODELS)


def test_the_table_says_goals_and_losses() -> None:
    findings = replay(replace(SMALL, jobs=30), 1, Serial())
    assert len(findings.rows) == 2 * len(ARMS)
    goals = [row for row in findings.rows if row["goal"]]
    assert len(goals) == 4
    missed = [str(row["what"]) for row in goals if row["met"] == "not met"]
    assert all(any(what in note for note in findings.notes) for what in missed)
