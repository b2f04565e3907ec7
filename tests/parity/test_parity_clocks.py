"""Three clocks tell a calibration's delays; where they disagree it says so, and does not call it no time."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from parity_world import DELAYS, calibration_facts
from typer.testing import CliRunner

from controller.cli import cluster
from controller.cli.main import app
from controller.parity import parity_run
from controller.parity.calibration import Skewed, measure, sampled
from controller.parity.facts import Facts


def skewed(clock: str, by: float) -> list[Facts]:
    """What would have been told, had one clock been ahead."""
    found = calibration_facts()
    here, operator, nodes = (by if clock == one else 0.0 for one in ("here", "operator", "nodes"))
    for one in found:
        one.submitted += here
        one.done = {number: at + here for number, at in one.done.items()}
        for name in ("decided", "pods_gone", "ended"):
            if (at := getattr(one, name)) is not None:
                setattr(one, name, at + operator)
        for a in one.admissions.values():
            a.at += operator
            a.preempted = None if a.preempted is None else a.preempted + operator
            a.back = None if a.back is None else a.back + operator
            if (w := a.words) is not None:
                evals = tuple((step, at + nodes) for step, at in w.evals)
                a.words = replace(w, began=w.began + nodes, ended=w.ended + nodes, evals=evals)
    return found


HERE, OPERATOR, NODES = "this machine", "the operator", "the pods' nodes"
WHOSE = {
    "queue_delay": (HERE, OPERATOR),
    "start_delay": (OPERATOR, NODES),
    "eval_delay": (NODES, OPERATOR),
    "retain_time": (OPERATOR, NODES),
    "preempt_delay": (OPERATOR, NODES),
    "suspend_delay": (NODES, OPERATOR),
    "end_delay": (NODES, HERE),
}


@pytest.mark.parametrize(
    ("clock", "by", "wrong"),
    [
        ("here", 1.2, {"queue_delay"}),
        ("here", -1.7, {"end_delay"}),
        ("operator", -1.2, {"queue_delay", "suspend_delay"}),
        ("operator", 1.7, {"start_delay", "retain_time"}),
        ("nodes", 1.2, {"suspend_delay"}),
        ("nodes", 2.7, {"eval_delay", "suspend_delay", "end_delay"}),
        ("nodes", -1.7, {"start_delay", "retain_time"}),
        ("nodes", -3.7, {"start_delay", "retain_time", "preempt_delay"}),
    ],
)
def test_a_delay_too_negative_names_its_two_clocks(clock: str, by: float, wrong: set[str]) -> None:
    with pytest.raises(Skewed) as caught:
        measure([skewed(clock, by)])
    said = re.findall(
        r"(\w+): (-[\d.]+) s \(from [^;]*; by the clocks of (.*?) and of (.*?)\)", str(caught.value)
    )
    assert {name for name, *_ in said} == wrong
    for name, seconds, *clocks in said:
        assert tuple(clocks) == WHOSE[name]
        assert float(seconds) == pytest.approx(DELAYS[name] - abs(by), abs=0.01)
    assert "synchronise these clocks" in str(caught.value)


def test_what_a_watch_and_rounding_take_counts_as_no_time() -> None:
    found = {m.name: m for m in measure([skewed("nodes", 0.9)]).measured}  # suspend_delay: -0.4 s
    assert (found["suspend_delay"].mean, found["suspend_delay"].deviation) == (0.0, 0.0)
    assert found["start_delay"].mean == pytest.approx(DELAYS["start_delay"] + 0.9)


def test_one_wrong_measurement_among_right_ones_is_enough() -> None:
    """One node of many: in the mean it would not be seen."""
    with pytest.raises(Skewed, match=r"start_delay: -0\.70 s"):
        measure([*[calibration_facts() for _ in range(9)], skewed("nodes", -1.7)])


def test_the_trial_s_own_delays_are_told_whatever_they_are() -> None:
    """They tell how far the calibration held, of a run that is over."""
    assert {m.name: m.mean for m in sampled([skewed("nodes", 2.7)])}["eval_delay"] == 0.0


def test_the_command_ends_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuses(*_: Any) -> None:
        measure([skewed("here", 1.2)])

    async def ran(work: Any) -> Any:
        return await work(None)

    monkeypatch.setattr(parity_run, "conduct", refuses)
    monkeypatch.setattr(cluster, "run", lambda work, *_: asyncio.run(ran(work)))
    trace = tmp_path / "trace.jsonl"
    trace.write_text(
        '{"format": "evalstop-trace", "version": 1, "cluster": {"nodes": [4]}}\n'
        '{"job": "a", "submitted": 0, "gpus": 1, "work": 60}\n'
    )
    options = ["--kubeconfig", "k", "--nodes-of", "a=b", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, ["parity", str(trace), *options])
    assert done.exit_code == 1
    assert "queue_delay: -0.70 s" in done.stderr
    assert "  next: let a time service set the clocks" in done.stderr
