"""`sim rollout replay`: recorded steps, played again."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from controller.actor.frames import PERIOD
from controller.cli.main import app
from sim.kernel import Kernel
from sim.rollout.engine.dispatch import OneQueue
from sim.rollout.engine.generation import Generation
from sim.rollout.engine.work import Prompt
from sim.rollout.laws import Law
from sim.rollout.replay import FRAME, RecordedActor, fitted, play, read, replay, way_there

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
    assert play(step, law, frames=0.0) == pytest.approx(30 * A + 50 * C)
    # The last token ends at 1.6 s; with a first one at .054 s frames leave at .054, .154 ... 1.654.
    assert play(step, law) == pytest.approx(1.654)
    found = replay(path)
    assert found.headline["error"] == pytest.approx(1.654 / 1.6 - 1.0)
    assert found.rows[0]["actors"] == 2


def test_an_actor_that_came_late_or_was_lost_counts_as_such(tmp_path: Path) -> None:
    line = recorded()
    line["actors"][1]["ready"] = 5.0
    (late,) = read(write(tmp_path, line))
    law = Law(A, C, 0.0, 0.0)
    assert play(late, law, frames=0.0) == pytest.approx(30 * A + 60 * C), (
        "the first does the third when the second ends"
    )
    line = recorded()
    for actor in line["actors"]:
        actor["slots"] = 1
    (whole,) = read(write(tmp_path, line))
    assert play(whole, law, frames=0.0) == pytest.approx(30 * (A + C))
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
    assert document["mean_absolute_error"] == pytest.approx(1.654 / 1.6 - 1.0)
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


def seconds(
    lengths: list[list[int]],
    slots: int,
    frames: float,
    actors: int = 1,
    iteration: float = 0.04,
    way: float = 0.0,
) -> float:
    """Return s of one queue, longest first, with iterations of one length."""
    kernel = Kernel()
    prompts = [Prompt(i, 1, tuple(row), float(max(row))) for i, row in enumerate(lengths)]
    law = Law(iteration, 0.0, 0.0, 0.0)
    generation = Generation(
        kernel, law, slots, OneQueue(prompts), sum(map(len, lengths)),
        release=(False,) * actors, frames=frames, way=way,
    )  # fmt: skip

    def begin(_: object) -> bool:
        generation.begin([(0.0, 0.0)] * actors)
        return True

    kernel.at(0.0, 0, begin, None)
    kernel.run(iter(()), iter(()), lambda _s, _t: None, lambda _t: None)
    assert generation.report is not None
    assert generation.report.tokens == sum(map(sum, lengths))
    return generation.report.seconds


@pytest.mark.parametrize(
    ("lengths", "slots", "plain", "framed", "why"),
    [
        ([[10]], 1, 0.40, 0.44, "frames .04, .14 … .44: the last token comes with the next one"),
        ([[11]], 1, 0.44, 0.44, "it ends when a frame leaves"),
        ([[4], [4]], 1, 0.32, 0.48, "the first ends at .16 and is there at .24, the second at .40 and .48"),
        (
            [[10], [3], [2]],
            2,
            0.40,
            0.44,
            "the slot of the second is free at .12, taken at .16 with the iteration that runs",
        ),
        (
            [[8], [7], [3]],
            2,
            0.40,
            0.48,
            "the second ends at .28 and is there at .34, the third runs from then to .46",
        ),
    ],
)
def test_a_client_hears_of_an_end_with_the_next_frame(
    lengths: list[list[int]], slots: int, plain: float, framed: float, why: str
) -> None:
    assert seconds(lengths, slots, 0.0) == pytest.approx(plain)
    assert seconds(lengths, slots, 0.1) == pytest.approx(framed), why


def test_what_is_given_is_there_after_its_way() -> None:
    """The slot is known to be free at .14: the third begins at .16, or at .20 where it is there at .19."""
    assert seconds([[6], [3], [2]], 2, 0.1) == pytest.approx(0.24)
    assert seconds([[6], [3], [2]], 2, 0.1, way=0.05) == pytest.approx(0.34)
    assert seconds([[4], [4]], 1, 0.1, way=0.05) == pytest.approx(0.53), "its first token is at .33"


def test_a_recorded_way_is_the_mean_of_all_requests(tmp_path: Path) -> None:
    line = recorded()
    line["actors"][0] |= {"asked": 3, "askingSeconds": 0.06}
    line["actors"][1] |= {"asked": 1, "askingSeconds": 0.06}
    steps = read(write(tmp_path, line))
    assert way_there(steps) == pytest.approx(0.03)
    assert way_there(read(write(tmp_path, recorded()))) == 0.0, "not recorded"
    law = Law(A, C, 0.0, 0.0)
    assert play(steps[0], law, way=0.03) == pytest.approx(1.654 + 0.06), "the first request, and the report"


@pytest.mark.parametrize("dispatch", ["LongestFirst", "Ranked", "Even"])
@pytest.mark.parametrize("lost", [False, True])
def test_no_token_is_lost_or_made_on_the_way(tmp_path: Path, dispatch: str, lost: bool) -> None:
    draw = random.Random(5)
    lengths = [[draw.randint(1, 60) for _ in range(3)] for _ in range(20)]
    base = recorded()["actors"][0]
    actors = [{**base, "number": n, "slots": 4, "left": 9.0} for n in range(3)]
    if lost:
        actors[1] |= {"state": "lost", "left": 1.0}
    line = recorded(
        dispatch, lengths=lengths, predicted=[float(max(row)) for row in lengths], promptTokens=[2] * 20,
        actors=actors,
    )  # fmt: skip
    (step,) = read(write(tmp_path, line))
    law = Law(0.05, 0.001, 0.0, 0.0)
    plain, framed, far = (
        play(step, law, frames=frames, way=way) for frames, way in ((0.0, 0.0), (0.1, 0.0), (0.1, 0.2))
    )
    least = sum(map(sum, lengths)) * 0.05 / 12
    assert least < plain
    assert least < framed < plain * 1.25
    assert framed < far


def test_frames_are_those_of_the_sidecar() -> None:
    assert FRAME == PERIOD
