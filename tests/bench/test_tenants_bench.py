"""A small `python -m tests.bench tenants`: what becomes of honest jobs does not depend on hostile ones."""

from __future__ import annotations

import secrets
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.local.plane import Plane
from tests.bench.tenants.command import Line, Run, bench, compare, idle
from tests.bench.tenants.plan import SMALL, Outcome, Scale, honest

# Kinds of attack: with objects, with connections, with a colleague's rights, and what the runs do.
ATTACKS = 20


@pytest.mark.cluster
@pytest.mark.timeout(420)
def test_honest_jobs_beside_hostile_ones_stop_as_they_do_alone(plane: Plane, tmp_path: Path) -> None:
    """Times are the bench's own matter: this machine may be busy."""
    said: list[str] = []
    alone, beside = bench(plane, SMALL, tmp_path, said.append, f"small-{secrets.token_hex(2)}")
    print(*said, *compare(alone, beside, SMALL), sep="\n")
    assert [line for line in compare(alone, beside, SMALL) if line.met is False and not line.timed] == []
    assert idle(beside) == []
    assert len(beside.told) >= ATTACKS
    assert all(outcome.waited < 180.0 for outcome in beside.outcomes.values())


def test_a_stop_that_may_come_later_has_evals_to_come() -> None:
    alone, pool = (honest(replace(SMALL, scope=scope), "a") for scope in ("Namespace", "Pool"))
    assert {len(job.scores) for job in pool} == {SMALL.evals}
    assert all(len(one.scores) < SMALL.evals for one in alone if one.stops)


def test_what_differs_is_told() -> None:
    """Otherwise the test above could not fail."""

    def run(**changed: object) -> Run:
        verdict = ("kDeclines", "ConsecutiveDeclines", 90, 60, None, "3", "3", None)
        known = {"verdict": verdict, "best": (60, "0.7"), "digest": "sha256:a", "waited": 1.0, "attempts": 1}
        times = {"decided": 4.0, "freed": 5.0, "lags": [0.1]}
        fine = {f"run-{i}": Outcome(f"run-{i}", **(known | times)) for i in (0, 1)}  # type: ignore[arg-type]
        flat = Outcome("run-2", best=(10, "0.3"), digest="sha256:b", attempts=1, lags=[0.1])
        fine["run-1"] = Outcome("run-1", **(known | times | changed))  # type: ignore[arg-type]
        return Run({**fine, "run-2": flat})

    def missed(beside: Run, scale: Scale = SMALL) -> list[str]:
        lines: list[Line] = compare(run(), beside, scale)
        return [line.name.partition(",")[0] for line in lines if line.met is False]

    assert missed(run()) == []
    assert missed(run(verdict=None, decided=None, freed=None)) == [
        "stopped where their evals say so",
        "rule",
        "latest of all to the stop",
        "latest of all to GPUs free",
    ]
    assert missed(run(digest="sha256:c")) == ["digest of the checkpoint that is kept"]
    assert missed(run(best=(50, "0.7"))) == ["best eval"]
    assert missed(run(attempts=2)) == ["starts"]
    assert missed(run(waited=30.0)) == ["longest wait for guaranteed GPUs"]
    assert missed(run(lags=[0.1, 2.0])) == ["scrapes late by (median"]
    late = missed(run(decided=4.5, freed=5.2))
    assert late == ["latest of all to the stop"]
    pool = replace(SMALL, scope="Pool")  # others of it may make a stop later, once, and change nothing else
    as_it_was = ("kDeclines", "ConsecutiveDeclines", 90, 60, None, "3", "3", None)
    for place, value, fine in (
        (2, 110, True),
        (2, 80, False),
        (2, 9000, False),
        (5, "2.5", True),
        (5, "3.5", False),
        (6, "3.5", True),
        (6, "2.5", False),
        (0, "scan", False),
        (1, "Dropped", False),
        (3, 50, False),
    ):
        verdict = (*as_it_was[:place], value, *as_it_was[place + 1 :])
        found = missed(run(verdict=verdict, decided=60.0, freed=62.0), pool)
        assert found == ([] if fine else ["rule"]), verdict
    assert missed(run(decided=70.0, digest="sha256:c"), pool) == [
        "digest of the checkpoint that is kept",
        "latest of all to the stop",
    ]
    ended = run()
    ended.ends, ended.told = [1], {"9": {"through": 1, "refused": 0, "failed": 0, "breaches": {"a pod": 1}}}
    assert missed(ended) == ["attacks that went through and must not", "ends of the operator's process"]
    assert idle(run()) == []
    ended.told["6"] = {"through": 0, "refused": 0, "failed": 3, "breaches": {}}
    assert idle(ended) == ["6"]
