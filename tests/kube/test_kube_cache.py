"""The cache never goes backwards, in whatever order its sources speak; merge patches are the server's."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller import names
from controller.kube.cache import Cache, WentBack, key_of, version_of
from controller.kube.merge import merge_diff
from controller.kube.resources import CONFIGMAPS, JOBS, NODES, PODS, RLHFJOBS
from controller.kube.trim import trim
from tests.support.merge_patch import merge_apply

Object = dict[str, Any]


def obj(name: str, version: int, uid: str = "u", **labels: str) -> Object:
    metadata = {
        "name": name,
        "namespace": "ns",
        "uid": uid,
        "resourceVersion": str(version),
        "labels": labels,
    }
    return {"metadata": metadata, "spec": {"at": version}, "status": {}}


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[tuple[str, Any]], dict[str, int]]:
    """What really happened (objects made, changed, deleted, made again), told as events and LISTs in any
    order, some twice, some never; and the truth at the end (name -> version)."""
    live: dict[str, int] = {}
    told: list[tuple[str, Any]] = []
    version = 0
    for _ in range(draw(st.integers(1, 25))):
        version += draw(st.integers(1, 3))
        name = draw(st.sampled_from("abc"))
        if name in live and draw(st.booleans()):
            del live[name]
            told.append(("gone", obj(name, version)))
        else:
            live[name] = version
            told.append(("put", obj(name, version)))
        if draw(st.integers(0, 3)) == 0:
            told.append(("list", (version, [obj(n, v) for n, v in live.items()])))
    order = draw(st.permutations(told + draw(st.lists(st.sampled_from(told), max_size=5))))
    dropped = draw(st.integers(0, len(order)))
    final = ("list", (version + 1, [obj(n, v) for n, v in live.items()]))
    return [*order[dropped:], final], live


@given(histories())
def test_no_key_ever_goes_back_and_a_last_list_mends_everything(
    case: tuple[list[tuple[str, Any]], dict[str, int]],
) -> None:
    told, truth = case
    cache = Cache()
    seen: dict[str, int] = {}  # the newest state of each key that was ever shown, deletion included
    for kind, what in told:
        if kind == "put":
            cache.put(RLHFJOBS, what)
        elif kind == "gone":
            before = cache.get(RLHFJOBS, key_of(what))
            if cache.drop(RLHFJOBS, what):
                assert before is not None
                seen[key_of(what)] = version_of(what)
        else:
            try:
                cache.replace(RLHFJOBS, what[1], str(what[0]))
            except WentBack:
                continue
        for shown in cache.values(RLHFJOBS):
            assert version_of(shown) >= seen.get(key_of(shown), 0)
            assert shown["spec"]["at"] == version_of(shown)
            seen[key_of(shown)] = version_of(shown)
    assert {o["metadata"]["name"]: version_of(o) for o in cache.values(RLHFJOBS)} == truth


def test_a_late_event_does_not_bring_a_deleted_object_back() -> None:
    cache = Cache()
    cache.put(RLHFJOBS, obj("a", 5))
    assert cache.drop(RLHFJOBS, obj("a", 9))
    assert not cache.put(RLHFJOBS, obj("a", 7))
    assert cache.get(RLHFJOBS, "ns/a") is None
    assert cache.put(RLHFJOBS, obj("a", 12, uid="another"))
    assert not cache.drop(RLHFJOBS, obj("a", 9)), "the deletion of the one before is old news"


def test_a_list_does_not_undo_a_write_made_after_it() -> None:
    cache = Cache()
    cache.put(RLHFJOBS, obj("mine", 20))  # the answer to a write
    assert cache.replace(RLHFJOBS, [obj("other", 3)], "10") == 1
    assert cache.get(RLHFJOBS, "ns/mine") is not None
    assert not cache.put(RLHFJOBS, obj("third", 8)), "not in a LIST at 10, so it was gone by then"
    assert cache.replace(RLHFJOBS, [], "30") == 2
    with pytest.raises(WentBack, match="restored from a backup"):
        cache.replace(RLHFJOBS, [], "29")


def test_objects_are_found_by_their_job_and_listeners_hear_of_changes_only() -> None:
    cache = Cache()
    heard: list[tuple[str, int | None, int | None]] = []
    cache.subscribe(
        lambda resource, old, new: heard.append(
            (resource.plural, old and version_of(old), new and version_of(new))
        )
    )
    label = {names.LABEL_JOB: "run"}
    cache.put(JOBS, obj("run", 1, **label))
    cache.put(JOBS, obj("run-secure", 2, **label))
    assert [o.key for o in cache.of_job(JOBS, "ns/run")] == ["ns/run", "ns/run-secure"]
    cache.put(JOBS, obj("run", 3, **{names.LABEL_JOB: "other"}))
    assert [o.key for o in cache.of_job(JOBS, "ns/run")] == ["ns/run-secure"]
    assert [o.key for o in cache.of_job(JOBS, "ns/other")] == ["ns/run"]
    cache.drop(JOBS, obj("run-secure", 4, **label))
    assert cache.of_job(JOBS, "ns/run") == []
    assert heard == [("jobs", None, 1), ("jobs", None, 2), ("jobs", 1, 3), ("jobs", 2, None)]
    node = {"metadata": {"name": "n", "uid": "u", "resourceVersion": "5"}, "status": {"conditions": []}}
    cache.put(NODES, node)
    cache.put(NODES, {**node, "metadata": {**node["metadata"], "resourceVersion": "6"}})
    assert heard[4:] == [("nodes", None, 5)], "a heartbeat is no change"


def test_trimmed_objects_keep_what_is_read_and_little_else() -> None:
    container = {
        "name": "c",
        "image": "i" * 100,
        "env": [{"name": "SECRET", "value": "s"}],
        "ports": [{"containerPort": 1}],
    }
    pod = {
        "metadata": {
            "name": "p",
            "uid": "u",
            "resourceVersion": "1",
            "managedFields": [1],
            "annotations": {"a": "b"},
        },
        "spec": {"nodeName": "n", "containers": [container], "volumes": [1]},
        "status": {"phase": "Running", "podIP": "10.0.0.1", "hostIP": "x"},
    }
    kept = trim(PODS, pod)
    assert kept["spec"] == {"nodeName": "n", "containers": [{"name": "c", "ports": [{"containerPort": 1}]}]}
    assert kept["status"] == {"phase": "Running", "podIP": "10.0.0.1"}
    assert "managedFields" not in kept["metadata"]
    config = {
        "metadata": {"name": "m", "uid": "u", "resourceVersion": "1"},
        "data": {"run.json": "{}", "other": "x"},
    }
    assert trim(CONFIGMAPS, config)["data"] == {"run.json": "{}"}


VALUES = st.recursive(
    st.booleans() | st.integers(-3, 3) | st.text("ab", max_size=2) | st.lists(st.integers(0, 2), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("pqr"), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from("xyz"), VALUES, max_size=3)


@given(OBJECTS, OBJECTS)
def test_a_merge_patch_turns_the_old_into_the_new(old: Object, new: Object) -> None:
    assert merge_apply(old, merge_diff(old, new)) == new
    assert merge_diff(new, new) == {}


def test_equal_short_texts_of_different_answers_are_one_object() -> None:
    def answer() -> dict[str, object]:
        text = '{"metadata": {"name": "a", "labels": {"team": "red"}}, "status": {"phase": "Running"}}'
        read: dict[str, object] = json.loads(text)
        return read

    first, second = trim(PODS, answer()), trim(PODS, answer())
    assert first == second
    assert first["metadata"]["labels"]["team"] is second["metadata"]["labels"]["team"]
    assert next(iter(first["metadata"]["labels"])) is next(iter(second["metadata"]["labels"]))
    second["metadata"]["labels"]["team"] = "blue"  # a copy of its own all the same
    assert first["metadata"]["labels"]["team"] == "red"
