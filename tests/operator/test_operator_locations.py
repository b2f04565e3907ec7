"""Whose checkpoint folder it is, among the RLHFJobs of a namespace."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.operator.state.locations import Locations


def job(
    name: str,
    path: str,
    *,
    age: int = 0,
    claim: str = "work",
    namespace: str = "ns",
    status: dict[str, Any] | None = None,
) -> dict[str, Any]:
    created = f"2026-01-01T00:00:{age:02}Z"
    location = {"volumeClaim": {"claimName": claim, "path": path}}
    return {
        "metadata": {"namespace": namespace, "name": name, "creationTimestamp": created},
        "spec": {"checkpoints": {"location": location}},
        "status": status or {},
    }


CLAIMED = {"claim": {"attempt": 1}}
REFUSED = {"claim": {"attempt": 1, "problem": "LocationTaken"}}
FAILED = {"claim": {"attempt": 1, "problem": "OutOfSpace"}}
TRAINS = {"attempt": 1, "admission": {"attempt": 1}, **FAILED}
TRAINED = {"attempt": 1, **FAILED}


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ("/runs/a", "/runs/a", "the same as that of RLHFJob first (/runs/a)"),
        ("/runs/a/", "//runs/./a", "the same as"),
        ("/runs", "/runs/a", "inside that of RLHFJob first (/runs)"),
        ("/", "/runs/a", "inside that of RLHFJob first (/)"),
        ("/runs/a/b", "/runs/a", "around that of RLHFJob first (/runs/a/b)"),
    ],
)
def test_the_younger_is_refused_and_both_are_named(first: str, second: str, said: str) -> None:  # row 11
    known, older, younger = Locations(), job("first", first), job("second", second, age=1)
    known.put(younger)
    assert known.clash(younger) is None
    assert known.put(older) == ["second"], "who is concerned by its news"
    assert known.clash(older) is None
    reason, message = known.clash(younger) or ("", "")
    assert reason == "LocationShared"
    assert said in message
    assert "second needs a folder of its own" in message
    assert known.drop(older) == ["second"]
    assert known.clash(younger) is None


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        ({}, {}, "which was made in the same second and goes first by its name"),
        ({}, CLAIMED, "which has it already"),
        ({}, TRAINS, "which has it already"),  # one that starts without its claim, which failed
        ({}, TRAINED, "which has it already"),
        (FAILED, CLAIMED, "which has it already"),
        (REFUSED, CLAIMED, "which has it already"),
        (CLAIMED, TRAINS, "which has it already"),
        (REFUSED, {}, "which is to claim it"),  # whose claim's answer was lost
        (CLAIMED, CLAIMED, "which was made in the same second and goes first by its name"),
    ],
)
def test_of_two_made_in_one_second_the_one_that_has_the_folder_keeps_it(
    first: dict[str, Any], second: dict[str, Any], why: str
) -> None:
    """run-10 came first by its name, and run-9 had claimed the folder and trained in it: each was refused for
    the other, and no rule stopped the one that ran."""
    known, ten, nine = Locations(), job("run-10", "/runs/a"), job("run-9", "/runs/a/")
    known.put(nine)
    known.put(ten)
    assert (known.clash(ten), known.clash(nine) is None) == (None, False), "by the name, the same for all"
    ten["status"], nine["status"] = first, second
    concerned = known.put(nine) + known.put(ten)
    assert ("run-10" in concerned) is bool(second), "its turn is another one now"
    winner, other = (ten, nine) if "by its name" in why else (nine, ten)
    assert known.clash(winner) is None
    reason, message = known.clash(other) or ("", "")
    assert reason == "LocationShared"
    assert f"that of RLHFJob {winner['metadata']['name']} (/runs/a), {why};" in message


def test_a_job_that_comes_to_a_folder_takes_it_from_nobody() -> None:
    known, old, runs = Locations(), job("old", "/runs/b"), job("runs", "/runs/a", age=9, status=TRAINS)
    known.put(old)
    known.put(runs)
    moved = job("old", "/runs/a")
    known.put(moved)
    assert known.clash(runs) is None
    assert "which has it already" in (known.clash(moved) or ("", ""))[1]


@pytest.mark.parametrize(
    "other",
    [
        job("second", "/runs/ab", age=1),
        job("second", "/runs/a", age=1, claim="other"),
        job("second", "/runs/a", age=1, namespace="elsewhere"),
    ],
)
def test_what_does_not_overlap_is_left_alone(other: dict[str, Any]) -> None:
    known = Locations()
    known.put(job("first", "/runs/a"))
    known.put(other)
    assert known.clash(other) is None


def test_a_place_of_an_unknown_kind_is_refused_by_name() -> None:
    """Two jobs in one such place would not be told from each other."""
    known, odd = Locations(), job("odd", "/runs/a")
    odd["spec"]["checkpoints"]["location"] = {"nfs": {"server": "s", "path": "/runs/a"}}
    known.put(odd)
    assert known.clash(odd) == (
        "PlaceMissing",
        "spec.checkpoints.location: nfs is no kind of place, expected volumeClaim or objectStore",
    )
    odd["spec"]["checkpoints"] = {}
    known.put(odd)
    assert known.clash(odd) is None, "a run that is only watched has none"


PATHS = st.lists(st.sampled_from("ab"), max_size=3).map(lambda parts: "/" + "/".join(parts))


RANKS = (TRAINS, CLAIMED, {}, REFUSED)


@given(st.lists(st.tuples(st.sampled_from("xyz"), PATHS, st.sampled_from([0, 1, 2, 3, None])), max_size=12))
def test_it_says_what_comparing_all_with_all_says(acts: list[tuple[str, str, int | None]]) -> None:
    known: Locations = Locations()
    there: dict[str, tuple[int, str]] = {}
    for name, path, rank in acts:
        obj = job(name, path, age="xyz".index(name) // 2, status=RANKS[rank or 0])
        if rank is not None:
            known.put(obj)
            there[name] = rank, path.rstrip("/") + "/"
        else:
            known.drop(obj)
            there.pop(name, None)
    for name, (rank, path) in there.items():
        before = [p for n, (r, p) in there.items() if (r, n) < (rank, name)]
        clashes = any(p.startswith(path) or path.startswith(p) for p in before)
        assert (known.clash(job(name, path)) is not None) is clashes
