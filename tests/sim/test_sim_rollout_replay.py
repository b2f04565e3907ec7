"""`sim rollout replay`: recorded steps, played again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from controller.cli.main import app
from sim.rollout.laws import Law
from sim.rollout.replay import RecordedActor, fitted, play, read, replay

A, C = 0.05, 0.002  # s


def recorded(dispatch: str = "LongestFirst", **change: Any) -> dict[str, Any]:
    """A step of two actors of 2 slots and three prompts of one response: 30, 20 and 10 tokens."""
    actors = [
        {
            "number": 0,
            "slots": 2,
            "state": "done",
            "ready": 0.0,
            "left": 1.6,
            "iterations": 30,
            "tokens": 50,
            "decodeSeconds": 30 * A + 50 * C,
            "prefillTokens": 4,
            "prefillSeconds": 0.0,
        },
        {
            "number": 1,
            "slots": 2,
            "state": "done",
            "ready": 0.0,
            "left": 0.6,
            "iterations": 10,
            "tokens": 10,
            "decodeSeconds": 10 * A + 10 * C,
            "prefillTokens": 2,
            "prefillSeconds": 0.0,
        },
    ]
    return {
        "step": 1,
        "seconds": 30 * A + 50 * C,
        "plan": {"dispatch": dispatch, "cut": 0.7},
        "predicted": [30.0, 20.0, 10.0],
        "lengths": [[30], [20], [10]],
        "promptTokens": [2, 2, 2],
        "actors": actors,
        **change,
    }


def write(folder: Path, *lines: dict[str, Any]) -> Path:
    path = folder / "steps.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_law_is_found_again_and_a_step_takes_its_time(tmp_path: Path) -> None:
    """The first actor has 30 and 20 tokens, the second 10: 20 iterations of two, then 10 of one."""
    path = write(tmp_path, recorded())
    (step,) = read(path)
    law = fitted(step.actors)
    assert (law.iteration, law.sequence) == pytest.approx((A, C))
    assert play(step, law) == pytest.approx(30 * A + 50 * C)
    found = replay(path)
    assert found.headline["error"] == pytest.approx(0.0, abs=1e-9)
    assert found.rows[0]["actors"] == 2


def test_an_actor_that_came_late_or_was_lost_counts_as_such(tmp_path: Path) -> None:
    line = recorded()
    line["actors"][1]["ready"] = 5.0
    (late,) = read(write(tmp_path, line))
    law = Law(A, C, 0.0, 0.0)
    assert play(late, law) == pytest.approx(30 * A + 60 * C), "the first does the third when the second ends"
    line = recorded()
    for actor in line["actors"]:
        actor["slots"] = 1
    (whole,) = read(write(tmp_path, line))
    assert play(whole, law) == pytest.approx(30 * (A + C))
    line["actors"][0] |= {"state": "lost", "left": 0.5}
    (lost,) = read(write(tmp_path, line))
    assert play(lost, law) > 45 * (A + C), "the second has to do all that the first had left"
    line = recorded()
    line["actors"] = [{**line["actors"][0], "state": "lost", "left": 0.5}]
    (starved,) = read(write(tmp_path, line))
    with pytest.raises(ValueError, match=r"step 1: \d responses never end"):
        play(starved, law)


@pytest.mark.parametrize("dispatch", ["LongestFirst", "Ranked", "Even"])
def test_each_dispatch_is_played(tmp_path: Path, dispatch: str) -> None:
    (step,) = read(write(tmp_path, recorded(dispatch)))
    assert play(step, Law(A, C, 0.0, 0.0)) > 0.0


def test_the_command(tmp_path: Path) -> None:
    path = write(tmp_path, recorded(), recorded(step=2))
    result = CliRunner().invoke(app, ["sim", "rollout", "replay", str(path), "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["steps"] == 2
    assert document["mean_absolute_error"] == pytest.approx(0.0, abs=1e-9)
    result = CliRunner().invoke(app, ["sim", "rollout", "replay", str(path)])
    assert "2 steps" in result.output


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seconds": 0}, "seconds: 0.0"),
        ({"seconds": "x"}, "seconds"),
        ({"lengths": [[0], [1], [1]]}, "at least one token"),
        ({"lengths": []}, "as many of each"),
        ({"predicted": [1.0]}, "as many of each"),
        ({"actors": []}, "at least one that was ready"),
        ({"plan": None}, "no recorded step"),
    ],
)
def test_what_is_no_record_is_refused_by_line(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    path = write(tmp_path, recorded(), recorded(**change))
    result = CliRunner().invoke(app, ["sim", "rollout", "replay", str(path)])
    assert result.exit_code == 2
    assert "line 2" in result.output
    assert words in " ".join(result.output.split())


def test_a_record_without_counters_has_no_law() -> None:
    with pytest.raises(ValueError, match="counted iterations"):
        fitted([RecordedActor(2, 0.0, 1.0, False, 0.0, 0.0, 0.0, 0.0, 0.0)])
