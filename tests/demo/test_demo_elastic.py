"""The story of elastic rollouts without a cluster: its manifests, what its observer adds up, what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from controller.api.gpupool import GPUPool
from controller.api.rlhfjob import RLHFJob
from controller.kube.errors import Unavailable
from deploy.local.demo.elastic.__main__ import tour_of
from deploy.local.demo.elastic.cast import ARMS, job, pool, trainer
from deploy.local.demo.elastic.observer import EVERY, Observer
from deploy.local.demo.elastic.story import Arm, Result, rows, too_few
from deploy.local.plane import Plane


@pytest.mark.parametrize("arm", [*ARMS, None])
def test_its_jobs_and_its_pool_are_valid(arm: str | None) -> None:
    made = RLHFJob.model_validate(job("one", trainer(8, 12.0), None if arm is None else ARMS[arm]))
    assert (made.spec.rollout is None) == (arm is None)
    assert GPUPool.model_validate(pool()).spec.lending.enabled


def pod(job_name: str, node: str | None, phase: str = "Running", actor: bool = True) -> dict[str, Any]:
    labels = {"evalstop.dev/job": job_name, **({"evalstop.dev/component": "actor"} if actor else {})}
    container = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    spec = {"containers": [container], **({"nodeName": node} if node else {})}
    return {"metadata": {"labels": labels}, "spec": spec, "status": {"phase": phase}}


def test_the_observer_counts_actors_from_their_node_to_their_end() -> None:
    watch = Observer(list)
    there = [pod("a", "n1"), pod("a", "n1", actor=False), pod("b", "n2"), pod("b", None)]
    watch._count(there, 2.0)
    watch._count([*there, pod("a", "n2", "Succeeded")], 3.0)
    assert watch.held == {"a": 5.0, "b": 5.0}
    assert watch.most == {"n1": 2, "n2": 1}
    assert watch.actors == 2


@pytest.mark.parametrize(
    ("arm", "jobs", "actors", "said"),
    [
        ("Even", 2, 6, None),
        ("Even", 2, 5, "Even, 2 jobs: at most 5 actors had a node at a time, the arm is about 6"),
        ("LongestFirst", 1, 3, None),
        ("elastic", 2, 4, None),
        ("elastic", 2, 3, "the arm is about 4"),
        ("elastic", 1, 2, "the arm is about 3"),
    ],
)
def test_an_arm_with_fewer_actors_than_it_is_about_is_a_problem(
    arm: str, jobs: int, actors: int, said: str | None
) -> None:
    found = too_few(arm, jobs, actors)
    assert (found is None) if said is None else (found is not None and said in found)


def there(uid: str, job_name: str, actor: bool = True) -> dict[str, Any]:
    made = pod(job_name, "n1", actor=actor)
    made["metadata"] |= {"uid": uid, "name": f"pod-{uid}"}
    return made


def test_it_names_who_ran_on_gpus_that_another_jobs_actor_had_left() -> None:
    watch = Observer(list, 2)
    learner, first, second = there("l", "a", actor=False), there("1", "a"), there("2", "b")
    for pods in ([learner, first], [learner], [learner, second]):
        watch._count(pods, 1.0)
    assert watch.lent == [], "the first job has not come back: it may have ended"
    for pods in ([learner], [learner, there("3", "a")]):
        watch._count(pods, 1.0)
    assert watch.lent == ["pod-2 of b on n1, after pod-1 of a"]


@pytest.mark.parametrize(
    "looks",
    [
        [["1"], ["2"], ["3"]],  # there was a free GPU all the while
        [["l", "1"], ["1"], ["2"], ["3"]],  # the other one was free, too, when somebody came
        [["l", "1"], ["l"], ["l", "3"], ["l"], ["l", "2"]],  # nobody else came in between
    ],
)
def test_it_names_nobody_where_others_gpus_were_free(looks: list[list[str]]) -> None:
    known = {
        "l": there("l", "a", actor=False),
        "1": there("1", "a"),
        "2": there("2", "b"),
        "3": there("3", "a"),
    }
    watch = Observer(list, 2)
    for look in looks:
        watch._count([known[uid] for uid in look], 1.0)
    assert watch.lent == []


def arm(name: str, generation: float, step: float, held: float) -> Arm:
    return Arm(name, [generation], [step], [held])


def test_goals_are_told_met_or_not() -> None:
    found = Result(
        {
            "Even": arm("Even", 9.0, 21.0, 300.0),
            "LongestFirst": arm("LongestFirst", 7.0, 19.0, 290.0),
            "elastic": arm("elastic", 7.4, 19.6, 230.0),
        },
        gang_seconds=13.0,
    )
    told = {row.what: row.met for row in rows(found) if row.met is not None}
    assert told == {
        "one job: generation, times as fast as Even": True,
        "one job: step, of LongestFirst": True,
        "one job: GPU-seconds, of LongestFirst": False,
        "a gang comes while spare actors hold all free GPUs: bound after": True,
    }
    found.problems.append("the borrower was preempted, where a recall would do")
    assert rows(found)[-1].met is False
    assert rows(Result(alone={"Even": Arm("Even")})) == []


def test_who_looks_around_finds_the_run_that_is_left(tmp_path: Path) -> None:
    told = tour_of(Plane(tmp_path), "run")
    assert "evalstop rollouts run -n demo -w" in told
    assert f"-m deploy.local down --work {tmp_path}" in told


def test_a_look_that_gets_no_answer_is_made_up_for_by_the_next() -> None:
    """A busy kind cluster did not answer for ten seconds, and the story ended there."""
    seen = [pod("run", "node-1")]
    answers = iter([seen, Unavailable(0, "Timeout", "no answer"), seen, RuntimeError("over")])

    def pods() -> list[dict[str, Any]]:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    watch = Observer(pods)
    watch.start()
    watch.join(10)
    assert watch.held["run"] >= 3 * EVERY
    with pytest.raises(RuntimeError, match="over"):
        watch.stop()
