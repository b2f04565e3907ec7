"""A small pool's past as real plans of the brain log it.

Two nodes of two GPUs. ``ns/over`` rises, falls and is stopped at step 70 of 140; ``ns/next`` waits for its
GPUs, gets them and comes to its end after 100 steps; ``ns/shadow`` falls as well but is only watched, and
comes to its end; ``ns/late``, of four GPUs, runs when the log ends and tells nothing of itself.
"""

from __future__ import annotations

from dataclasses import replace

from controller.policy.job.types import WorkloadView
from controller.policy.types import Mode
from tests.support.policy_world import PolicyWorld, logged_plans

RISE_AND_FALL = (0.1, 0.3, 0.5, 0.6, 0.55, 0.5, 0.45)
RISE = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.65, 0.7, 0.75, 0.8)
EVAL = 600.0  # s between two evals


class Logged(PolicyWorld):
    """Ends jobs, too."""

    def progress(self, key: str, score: float, total: int) -> None:
        self.scores(key, score)
        job = self.jobs[key]
        assert job.observed.scrape is not None
        step = job.observed.scrape.points[-1].step
        scrape = replace(job.observed.scrape, step=step, total_steps=total, evals_total=step // 10)
        job.observed = replace(job.observed, scrape=scrape)

    def finish(self, key: str) -> None:
        job = self.jobs[key]
        pods = tuple(replace(pod, terminal=True, succeeded=True, ready=False) for pod in job.observed.pods)
        workload = WorkloadView("w", suspended=False, finished="Complete")
        job.observed = replace(job.observed, workload=workload, pods=pods)


def logged() -> list[str]:
    """The log's lines."""
    with logged_plans() as lines:
        _happens(Logged({"n1": 2, "n2": 2}))
    return lines


def _happens(world: Logged) -> None:
    world.submit("ns/over", 1, 2)
    world.submit("ns/shadow", 1, 2, mode=Mode.SHADOW)
    world.settle()
    world.submit("ns/next", 1, 2)
    world.settle()
    world.submit("ns/late", 2, 2)
    world.settle()
    for score in RISE_AND_FALL:
        world.now += EVAL
        world.progress("ns/over", score, 140)
        world.progress("ns/shadow", score, 70)
        world.settle()
    world.finish("ns/shadow")
    world.settle()
    for score in RISE:
        world.now += EVAL
        world.progress("ns/next", score, 100)
        world.settle()
    world.finish("ns/next")
    world.settle()
