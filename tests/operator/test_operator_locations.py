"""Whose checkpoint folder it is, among the RLHFJobs of a namespace."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.operator.state.locations import Locations


def job(name: str, path: str, *, age: int = 0, claim: str = "work", namespace: str = "ns") -> dict[str, Any]:
    created = f"2026-01-01T00:00:{age:02}Z"
    location = {"volumeClaim": {"claimName": claim, "path": path}}
    return {
        "metadata": {"namespace": namespace, "name": name, "creationTimestamp": created},
        "spec": {"checkpoints": {"location": location}},
    }


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


@given(st.lists(st.tuples(st.sampled_from("xyz"), PATHS, st.booleans()), max_size=12))
def test_it_says_what_comparing_all_with_all_says(acts: list[tuple[str, str, bool]]) -> None:
    known, there = Locations(), {}
    for name, path, stays in acts:
        obj = job(name, path, age="xyz".index(name))
        if stays:
            known.put(obj)
            there[name] = path.rstrip("/") + "/"
        else:
            known.drop(obj)
            there.pop(name, None)
    for name, path in there.items():
        older = [p for n, p in there.items() if n < name]
        clashes = any(p.startswith(path) or path.startswith(p) for p in older)
        assert (known.clash(job(name, path, age="xyz".index(name))) is not None) is clashes
