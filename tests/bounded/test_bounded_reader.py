"""Text that tenants write is read within limits; what is over them is told with what it is, and which
limit."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller import bounded
from controller.kube import wire

DEEP = b'{"a":' * 5000 + b"1" + b"}" * 5000

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**17), 10**17) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=20,
)


@given(values)
def test_what_is_within_the_limits_reads_as_json_does(value: Any) -> None:
    text = json.dumps(value)
    assert bounded.load(text, "x") == value
    assert bounded.load(text.encode(), "x") == value


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[" * 60_000, "run.json: nested deeper than 200 levels"),
        ('{"a":' * 201 + "1" + "}" * 201, "run.json: nested deeper than 200 levels"),
        ("1" * 5000, "run.json: a number of 5000 digits, at most 18 are read"),
        ('{"a": -' + "1" * 19 + "}", "run.json: a number of 19 digits, at most 18 are read"),
        ('"' + "x" * 70_000 + '"', "run.json: 70002 bytes, at most 65536 are read"),
        ("é" * 40_000, "run.json: 80000 bytes, at most 65536 are read"),
        ("[" + "0," * 30_000 + "0]", "run.json: more than 1000 values"),
        ("NaN", "run.json: not JSON (NaN is no JSON)"),
        ("{", "run.json: not JSON ("),
    ],
)
def test_what_is_over_a_limit_is_told_with_it(text: str, says: str) -> None:
    with pytest.raises(bounded.Unbounded) as refused:
        bounded.load(text, "run.json", values=1000)
    assert str(refused.value).startswith(says)


def test_what_a_python_program_writes_is_read_with_its_infinities_and_long_numbers() -> None:
    value = {"loss": float("inf"), "seed": 2**64 - 1, "state": [2**127]}
    assert bounded.load(json.dumps(value), "state.json", python=True) == value
    with pytest.raises(bounded.Unbounded, match=r"a number of 65 digits, at most 64 are read"):
        bounded.load("1" * 65, "state.json", python=True)


@given(st.text(max_size=30) | st.binary(max_size=30))
def test_no_text_brings_another_error(text: str | bytes) -> None:
    with contextlib.suppress(bounded.Unbounded):
        bounded.load(text, "x")


@pytest.mark.parametrize(
    ("value", "number"),
    [
        ("7", 7),
        (7, 7),
        ("9" * 18, 10**18 - 1),
        *((none, None) for none in ("9" * 19, "1" * 5000, 10**18, "", "-1", -1, "٣", True, 1.0, None, "1\n")),
    ],
)
def test_a_whole_number_has_few_ascii_digits(value: object, number: int | None) -> None:
    assert bounded.whole(value) == number


@pytest.mark.parametrize(
    "value", ["x" * 10_000, "\x1b[2J\n", 10**4000, -(10**4000), ["x"] * 10**5, {}, None, b"\xff" * 99]
)
def test_a_value_that_an_error_repeats_is_short_and_printable(value: object) -> None:
    text = bounded.shown(value)
    assert len(text) <= bounded.SHOWN
    assert text.isprintable()


# -- answers of the API server
# -----------------------------------------------------------------------------------


def item(name: str, **more: bytes) -> bytes:
    fields = b"".join(b',"%s":%s' % (key.encode(), text) for key, text in more.items())
    return b'{"metadata":{"name":"%s","labels":{"a]":"{"}}%s}' % (name.encode(), fields)


def test_of_a_page_only_the_object_that_is_too_deep_is_spoilt() -> None:
    page = b'{"kind":"List","metadata":{"continue":"c"},"items":[%s]}' % b",".join(
        (
            item("first", spec=b'{"list":[1,[2],{}]}'),
            item("deep", spec=b'{"list":[1,[2]],"template":%s,"after":[[]]}' % DEEP, status=b'{"x":1}'),
            item("number", spec=b'{"gpus":%s}' % (b"9" * 5000)),
            item("last", spec=b'{"a":"%s"}' % (rb"\"[{" * 3000)),
        )
    )
    with pytest.raises(
        (RecursionError, ValueError)
    ):  # on 3.11 the one, later only where 4,300 digits are over
        json.loads(page)
    answer = wire.decode(page)
    told = {obj["metadata"]["name"]: wire.problem(obj) for obj in answer["items"]}
    assert told == {
        "first": "",
        "deep": "spec.template.a.a.a.a.a.a…: nested deeper than 200 levels",
        "number": "spec.gpus: a number of 5000 characters, at most 64 are read",
        "last": "",
    }
    assert answer["metadata"] == {"continue": "c"}
    assert answer["items"][1]["spec"]["after"] == [[]]
    assert answer["items"][1]["status"] == {"x": 1}


def test_an_event_of_a_watch_too_and_managed_fields_are_nobodys_business() -> None:
    event = b'{"type":"ADDED","object":%s}'
    assert wire.problem(wire.decode(event % item("a", spec=DEEP))["object"]).startswith("spec.a.a")
    fields = b'{"metadata":{"name":"a","managedFields":[{"fieldsV1":%s}]}}' % DEEP
    assert wire.problem(wire.decode(event % fields)["object"]) == ""


@given(values)
def test_pruning_leaves_what_is_within_the_limits(value: Any) -> None:
    text = json.dumps(value).encode()
    assert bounded.prune(text, 200) == (text, [])


@given(values, st.integers(1, 5))
def test_pruned_text_is_json_of_that_depth_at_most(value: Any, depth: int) -> None:
    pruned, cuts = bounded.prune(json.dumps(value).encode(), depth)
    left = json.loads(pruned)

    def deep(node: Any) -> int:
        inner = node.values() if isinstance(node, dict) else node if isinstance(node, list) else None
        return 0 if inner is None else 1 + max(map(deep, inner), default=0)

    assert deep(left) == min(deep(value), depth)
    assert bool(cuts) == (deep(value) > depth)


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 700_000 + b"]" * 700_000,
        b'{"a":' * 250_000 + b"1" + b"}" * 250_000,
        b'{"a]":' * 220_000 + b"1" + b"}" * 220_000,
        b"[" + (b"[" * 300 + b"]" * 300 + b",") * 2_400 + b"1]",
    ],
)
def test_the_largest_object_that_etcd_takes_is_pruned_soon(text: bytes) -> None:
    started = time.process_time()
    wire.decode(b'{"a":%s}' % text)
    assert time.process_time() - started < 3.0
