"""The story of shared groups without a cluster: its manifests, what its onlooker adds up, what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from controller.api.gpupool import GPUPool
from controller.api.rlhfjob import RLHFJob
from controller.api.sharing_terms import sharing_kind
from deploy.local.demo.shared import watch
from deploy.local.demo.shared.__main__ import tour_of
from deploy.local.demo.shared.cast import ALONE, ARMS, FAMILY, SHARED, job, job_name, pool, successor
from deploy.local.demo.shared.findings import Arm, Result, lanes, measured, rows, simulated, switch_seconds
from deploy.local.demo.shared.watch import Turn, Watch, merged
from deploy.local.plane import Plane


def test_its_jobs_and_its_pools_are_valid_and_all_jobs_are_of_one_kind() -> None:
    made = [job(job_name(arm, i), Path("/ckpt"), 40, 1.5) for arm in ARMS for i in (1, 2)]
    assert len({sharing_kind(one, FAMILY) for one in made}) == 1
    for one in [*made, successor("next")]:
        RLHFJob.model_validate(one)
    for arm, placement in ((ALONE, "Isolated"), (SHARED, "Pack")):
        sharing = GPUPool.model_validate(pool(arm, Path("/dev/shm/x"))).spec.sharing
        assert sharing is not None
        assert sharing.placement == placement


def turns(jobs: list[str], steps: int, *, away: float, held: float, switch: float = 0.0) -> list[Turn]:
    """Return turns in rounds, each job's a part of a cycle after the one before."""
    cycle = away + held
    found = []
    for step in range(steps):
        for place, name in enumerate(jobs):
            began = 100.0 + step * cycle + place * cycle / len(jobs)
            granted = began + (switch if len(jobs) > 1 else 0.0)
            found.append(Turn(name, began, granted, granted + held, True))
    return found


def result(*, shared_away: float = 1.5, digest: str = "ab") -> Result:
    """Return what two jobs with 1.5 s away and .5 s held brought; ``shared_away``: in the shared arm, less
    the switch."""
    alone = [one for i in (1, 2) for one in turns([job_name(ALONE, i)], 12, away=1.5, held=0.5)]
    names = [job_name(SHARED, i) for i in (1, 2)]
    both = turns(names, 12, away=shared_away, held=0.5, switch=0.1)
    return Result(2, 12, {
        ALONE: Arm(dict.fromkeys((job_name(ALONE, 1), job_name(ALONE, 2)), 24.0), 60.0, 50.0, alone, 0.5,
                   {job_name(ALONE, 1): "ab", job_name(ALONE, 2): "cd"}),
        SHARED: Arm(dict.fromkeys(names, 27.0), 30.0, 27.0, both, 0.5, {names[0]: digest, names[1]: "cd"}),
    })  # fmt: skip


def test_a_step_is_compared_with_the_simulators() -> None:
    found = result()
    real, virtual = measured(found), simulated(found)
    assert real is not None
    assert virtual is not None
    assert real.saved == pytest.approx(0.5)
    assert virtual.saved == pytest.approx(0.475, abs=0.03), "with a switch of .1 s in each cycle of 2"
    told = {row.what: row.met for row in rows(found) if row.met is not None}
    assert told == {
        "measured and simulated differ by": True,
        "final checkpoints, alone and shared": True,
    }
    assert found.problems == []


def test_what_is_not_as_simulated_or_not_equal_is_said() -> None:
    found = result(shared_away=3.0, digest="other")
    told = {row.what: row.met for row in rows(found) if row.met is not None}
    assert told == {
        "measured and simulated differ by": False,
        "final checkpoints, alone and shared": False,
    }
    assert len(found.problems) == 1
    few = Result(2, 40, {ALONE: Arm(), SHARED: Arm()})
    rows(few)
    assert few.problems == ["too few turns were reported to compare a step with"]


def test_turns_of_reports_that_overlap_count_once() -> None:
    known = turns(["a", "b"], 4, away=1.5, held=0.5)
    late = [one._replace(began=one.began + 0.2, granted=one.granted + 0.2, ended=one.ended + 0.2)
            for one in known]  # fmt: skip
    assert merged(known[:5], late[2:]) == [*known[:5], *late[5:]]
    assert switch_seconds(turns(["a", "b"], 3, away=1.5, held=0.5, switch=0.25)) == pytest.approx(0.25)


def test_lanes_show_one_holder_at_a_time() -> None:
    first, second = lanes(turns(["a", "b"], 12, away=1.5, held=0.5, switch=0.4), ["a", "b"])
    assert "#" in first
    assert "~" in second
    assert not any(one == other == "#" for one, other in zip(first[11:], second[11:], strict=True))
    assert lanes([], ["a", "b"]) == []


def test_the_onlooker_names_jobs_that_have_left_by_their_residencies() -> None:
    seen = Watch(list, list, "http://127.0.0.1:1", {"u-1": "alone-1"})
    past = {"began": 1.0, "granted": 1.0, "ended": 2.0, "counted": True}
    late = {"began": 3.0, "granted": 3.5, "ended": 4.0, "counted": False}
    seen.take([{"residents": [{}], "recent": [{"job": "u-1-7", **past}, {"job": "demo/alone-2", **late}]}])
    assert [(one.job, one.counted) for one in seen.turns] == [("alone-1", True), ("alone-2", False)]
    assert seen.residents == 1
    running: dict[str, Any] = {
        "spec": {"nodeName": "n", "containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
        "status": {"phase": "Running"},
    }
    waiting = {**running, "spec": {"containers": running["spec"]["containers"]}}
    assert watch._held([running, waiting, {**running, "status": {"phase": "Succeeded"}}]) == 1


def test_who_looks_around_is_told_of_groups(tmp_path: Path) -> None:
    """Without the address it showed "?" for whose turn it is: the operator is no pod there."""
    told = tour_of(Plane(tmp_path), queue="http://127.0.0.1:8081")
    assert "evalstop groups -w --url http://127.0.0.1:8081" in told
