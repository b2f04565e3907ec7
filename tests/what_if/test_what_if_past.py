"""What became of a job, as an exported trace keeps it: it comes back as it went, and faults are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.policy.types import Mode, PolicySpec
from sim.foresight import RuleSpec
from sim.traces import TraceError, read
from sim.traces.past import End, Past, read_past

RULE = RuleSpec(
    PolicySpec("glr", {"alpha": 0.05}),
    (PolicySpec("warmUp", {"min_evals": 5}),),
    guardrails=(("safety", PolicySpec("drawdown", {})),),
)
_SECONDS = st.floats(0.0, 1e9)

PASTS = st.builds(
    Past,
    end=st.sampled_from(End),
    mode=st.sampled_from(Mode),
    seen=st.floats(0.0, 1.0),
    length=st.sampled_from(["run", "progress", "estimate", "unknown"]),
    started=st.none() | _SECONDS,
    ended=st.none() | _SECONDS,
    service=_SECONDS,
    lost=_SECONDS,
    waited=st.none() | _SECONDS,
    preempted=st.integers(0, 9),
    attempts=st.integers(0, 9),
    stop_eval=st.none() | st.integers(1, 99),
    metric=st.text(max_size=5),
    direction=st.sampled_from(["Maximize", "Minimize"]),
    step=st.none() | st.integers(0, 10**6),
    total_steps=st.none() | st.integers(1, 10**6),
    checkpoint_every=st.none() | _SECONDS,
    missed=st.integers(0, 99),
    scale=st.integers(0, 99),
    early=st.booleans(),
    rule=st.none() | st.just(RULE),
)


@given(PASTS)
def test_what_is_written_is_read(past: Past) -> None:
    assert read_past(json.loads(json.dumps(past.entry()))) == past


FAULTS: dict[str, tuple[Any, str]] = {
    "no object": (3, r"3 is not allowed, expected an object, as `evalstop export` writes it"),
    "without its end": ({}, r"end: None is not allowed, expected one of Complete, Stopped"),
    "unknown end": ({"end": "Lost"}, r"end: 'Lost' is not allowed, expected one of Complete"),
    "unknown mode": ({"end": "Gone", "mode": "On"}, r"mode: 'On' is not allowed, expected one of Enforce"),
    "unknown field": ({"end": "Gone", "x": 1}, r"x: unknown, expected one of attempts, "),
    "seen too much": ({"end": "Gone", "seen": 1.5}, r"seen: 1.5 is not allowed, expected a share"),
    "text for a number": ({"end": "Gone", "service": "1"}, r"service: '1' is not allowed, expected a finite"),
    "truth for a number": ({"end": "Gone", "missed": True}, r"missed: True is not allowed, expected a whole"),
    "infinite": ({"end": "Gone", "ended": float("inf")}, r"ended: inf is not allowed, expected a finite"),
    "eval nought": (
        {"end": "Gone", "stop_eval": 0},
        r"stop_eval: 0 is not allowed, expected a number from 1",
    ),
    "rule without a name": ({"end": "Gone", "rule": {"k": 3}}, r"rule: \{'k': 3\} is not allowed"),
    "rule that is none": (
        {"end": "Gone", "rule": {"name": "x"}},
        r"stopRule: 'x' is not allowed, expected one of",
    ),
    "modifier that is none": (
        {"end": "Gone", "rule": {"name": "scan", "modifiers": [{"name": "x"}]}},
        r"modifiers: 'x' is not allowed, expected one of",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_named(tmp_path: Path, name: str) -> None:
    value, message = FAULTS[name]
    with pytest.raises(ValueError, match=message):
        read_past(value)
    if value != value or "inf" in json.dumps(value):
        return
    file = tmp_path / "t"
    job = {"job": "a/b", "submitted": 0, "gpus": 1, "work": 1, "past": value}
    file.write_text('{"format": "evalstop-trace", "version": 1}\n' + json.dumps(job) + "\n")
    with pytest.raises(TraceError, match=r"t, line 2, past: " + message):
        read([file])


def test_only_what_a_rule_cut_short_is_open() -> None:
    assert Past(End.STOPPED, seen=0.5).censored
    assert not Past(End.STOPPED).censored  # its rule stopped it at its very end
    assert not Past(End.USER, seen=0.5).censored
    assert [end for end in End if Past(end).whole] == [End.COMPLETE]
