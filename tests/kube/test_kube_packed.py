"""What the cache keeps of an object opens as the very same object, and is a fraction of it."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from controller import names
from controller.kube.packed import Packed, Packer, Plain

Object = dict[str, Any]

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)


def obj(name: str, version: int, **body: Any) -> Object:
    metadata = {"name": name, "namespace": "ns", "uid": name * 3, "resourceVersion": str(version)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, **body}


def job(number: int, version: int = 1, evals: int = 20) -> Object:
    """Like the RLHFJob of a run: a spec, and a status that is only there once it runs."""
    spec = {"pool": "p", "stopRule": {"scan": {f"field{i}": str(i) for i in range(20)}}, "image": "i" * 200}
    status = {"evals": [f"{10 * i} {0.1 * i + number} 0.02" for i in range(evals)], "node": f"n-{number}"}
    return obj(f"run-{number:05d}", version, spec=spec, **({"status": status} if evals else {}))


@given(st.lists(st.dictionaries(st.sampled_from(["spec", "status"]), VALUES), min_size=1, max_size=6))
def test_it_opens_as_it_was(bodies: list[Object]) -> None:
    packer = Packer()
    given_ = [obj(f"o{i}", i + 1, **body) for i, body in enumerate(bodies)]
    packed = [packer(one) for one in given_]
    assert [one.open() for one in packed] == given_
    assert [(one.key, one.version, one.job) for one in packed] == [
        (f"ns/o{i}", i + 1, None) for i in range(len(given_))
    ]


@given(VALUES, VALUES)
def test_it_is_the_same_if_nothing_but_the_version_differs(one: Any, other: Any) -> None:
    packer = Packer()
    first = packer(obj("a", 1, spec=one))
    for packed in (packer, Packer(), Plain):  # packed by the same text, by another, and not at all
        assert first.same(packed(obj("a", 2, spec=one)))
        assert packed(obj("a", 2, spec=one)).same(first)
        if one != other:
            assert not first.same(packed(obj("a", 2, spec=other)))


def test_the_label_of_its_job_is_known_unopened() -> None:
    labelled = obj("a", 1)
    labelled["metadata"]["labels"] = {names.LABEL_JOB: "run"}
    assert Packer()(labelled).job == Plain(labelled).job == "ns/run"


def test_objects_are_told_by_what_they_have_in_common_also_when_the_first_had_no_status() -> None:
    packer = Packer()
    fresh = [packer(job(i, evals=0)) for i in range(3)]
    running = [packer(job(i, version=2)) for i in range(50)]
    text = len(json.dumps(job(7)))
    assert text > 1000
    assert size(fresh[-1]) < text / 10
    assert max(map(size, running[2:])) < text / 5
    assert packer(job(3, version=3)).open() == job(3, version=3)


def size(packed: Packed) -> int:
    return len(packed._bytes)
