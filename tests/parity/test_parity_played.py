"""The trainer that plays a run, as a process: it takes as long, reports, obeys, leaves, goes on, says so."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from controller.checkpoints.judge import judge
from controller.checkpoints.layouts import LAYOUTS
from controller.checkpoints.volume import Volume
from controller.metrics.parse import parse
from controller.parity.facts import Words, words
from deploy.local.ports import free_port
from evalstop_client.client import EvalStopClient
from examples.played import Folder, Play, Player
from examples.trainer.termination import EXIT_TERMINATED, Termination
from tests.support.waiting import wait_until

PATIENCE = 45.0  # s
EVALS = ["--at=0.1,0.2,1", "--scores=0.5,nan,0.25", "--stderrs=0.1,0.1,nan"]


def start(folder: Path, port: int, work: float, run_dir: Path | None = None) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "examples.played", f"--work={work}", *EVALS]
    environment = {"EVALSTOP_RUN_DIR": str(run_dir)} if run_dir is not None else {}
    root = str(Path(__file__).resolve().parents[2])
    return subprocess.Popen(
        [*command, f"--checkpoints={folder}", f"--port={port}"],
        cwd=root,
        env={"PATH": "/usr/bin:/bin", "POD_IP": "127.0.0.1", **environment},
    )


def page(port: int) -> str | None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            return str(answer.read().decode())
    except OSError:
        return None


def test_it_is_asked_for_a_checkpoint_leaves_on_sigterm_and_goes_on_from_there(tmp_path: Path) -> None:
    folder, run_dir, port = tmp_path / "checkpoints", tmp_path / "run", free_port()
    run_dir.mkdir()
    run: dict[str, Any] = {"uid": "u", "attempt": 1, "resume": None, "request": {"id": 4, "checkpoint": True}}
    (run_dir / "run.json").write_text(json.dumps(run))
    process = start(folder, port, 600.0, run_dir)
    try:
        wait_until(lambda: "rlhf_request_served 4.0" in (page(port) or ""), "the request to be served")
        assert list(folder.glob("step-*/manifest.json"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == EXIT_TERMINATED
    finally:
        process.kill()
    position = Folder(folder).latest()
    assert position > 0.0
    run["attempt"] = 2
    run["request"] = {"id": 4}
    (run_dir / "run.json").write_text(json.dumps(run))
    process = start(folder, port, 600.0, run_dir)
    try:
        text = wait_until(lambda: page(port), "it to serve")
    finally:
        process.kill()
    step = Play(600.0, (0.1, 0.2, 1.0), (0.5, 0.4, 0.25)).step(position / 600.0)
    assert f"rlhf_resumed_step {float(step)}" in text


def test_evals_come_when_their_share_is_done_each_with_a_checkpoint_the_operator_can_read(
    tmp_path: Path,
) -> None:
    client = EvalStopClient(port=0, host="127.0.0.1", speaks=True, life="1")
    play = Play(0.4, (0.1, 0.2, 1.0), (0.5, float("nan"), 0.25), (0.1, 0.1, float("nan")))
    last = tmp_path / "words"
    player = Player(play, client, Folder(tmp_path / "c"), Termination(), last)
    assert player.run() == 0
    parsed = parse(client.exposition(), "score")
    assert [(p.step, p.score == p.score, p.stderr) for p in parsed.points] == [
        (100, True, 0.1),
        (200, False, 0.1),
        (1000, True, None),
    ]
    said = words(last.read_text())
    assert said is not None
    assert (said.start, said.to, said.left) == (0.0, 0.4, False)
    assert said.ended - said.began >= 0.4
    assert [step for step, _ in said.evals] == [100, 200, 1000]
    plain, store = LAYOUTS["Plain"], Volume(str(tmp_path / "c"))
    found = plain.candidates(store)
    assert [candidate.step for candidate in found] == [1000, 200, 100]
    assert [judge(plain, store, candidate) for candidate in found] == [None] * 3


def test_evals_that_come_due_while_a_checkpoint_is_written_are_reported_nevertheless(tmp_path: Path) -> None:
    class Slow(Folder):
        def save(self, step: int, position: float, attempt: int) -> Path:
            path = super().save(step, position, attempt)
            time.sleep(0.3)
            return path

    client = EvalStopClient(port=0, host="127.0.0.1", speaks=True, life="1")
    play = Play(0.2, (0.1, 0.5, 1.0), (0.5, 0.4, 0.25))
    player = Player(play, client, Slow(tmp_path / "c"), Termination(), tmp_path / "words")
    assert player.run() == 0
    assert [step for step, _ in player.evals] == [100, 500, 1000]


def test_evals_before_the_checkpoint_are_not_made_again(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.save(150, 0.06, 1)
    client = EvalStopClient(port=0, host="127.0.0.1", speaks=True, life="1")
    play = Play(0.4, (0.1, 0.2, 1.0), (0.5, 0.4, 0.25))
    player = Player(play, client, folder, Termination(), tmp_path / "words")
    assert player.run() == 0
    assert [step for step, _ in player.evals] == [200, 1000]
    assert player.start == 0.06


def test_a_follower_keeps_the_time_and_says_nothing(tmp_path: Path) -> None:
    client = EvalStopClient(port=0, host="127.0.0.1", speaks=False, life="1")
    player = Player(Play(0.2, (0.5,), (1.0,)), client, Folder(tmp_path), Termination(), tmp_path / "words")
    assert player.run() == 0
    assert not list(tmp_path.glob("step-*"))


def test_only_the_newest_checkpoints_stay(tmp_path: Path) -> None:
    folder = Folder(tmp_path, keep=2)
    for step, position in ((10, 1.0), (20, 2.0), (15, 1.5)):  # put back, and on again
        folder.save(step, position, 1)
    assert sorted(p.name for p in tmp_path.glob("step-*")) == ["step-15", "step-20"]
    assert folder.latest() == 1.5


def test_a_best_eval_is_there_to_be_secured_long_after_its_real_time_would_be_over(tmp_path: Path) -> None:
    client = EvalStopClient(port=0, host="127.0.0.1", speaks=True, life="1")
    at = tuple(n / 20 for n in range(1, 21))
    play = Play(0.2, at, tuple(1.0 - share for share in at))  # the first is the best
    player = Player(play, client, Folder(tmp_path), Termination(), tmp_path / "words")
    assert player.run() == 0
    kept = {int(p.name.removeprefix("step-")) for p in tmp_path.glob("step-*")}
    assert kept == {play.step(share) for share in at}


def test_evals_closer_than_a_step_have_steps_of_their_own() -> None:
    at = tuple(0.5 + n / 10_000 for n in range(5))
    play = Play(10.0, at, (0.0,) * 5)
    assert len({play.step(share) for share in at}) == 5


@pytest.mark.parametrize(
    ("given", "words_"),
    [
        ({"work": -1.0}, "work: -1.0 is not allowed"),
        ({"work": 1.0, "at": (0.5,), "scores": ()}, "scores: 0 for 1 eval"),
        ({"work": 1.0, "at": (0.5, 0.5), "scores": (1.0, 1.0)}, r"at\[1\]: 0.5 is not allowed"),
        ({"work": 1.0, "at": (0.5,), "scores": (1.0,), "stderrs": (1.0, 1.0)}, "stderrs: 2 for 1 eval"),
    ],
)
def test_a_run_that_cannot_be_is_refused_by_name(given: dict[str, Any], words_: str) -> None:
    with pytest.raises(ValueError, match=words_):
        Play(**given)


@pytest.mark.parametrize("message", ["", "{}", "[1]", '{"began": 1}', "done"])
def test_other_last_words_are_nobody_s(message: str) -> None:
    assert words(message) is None


def test_words_survive_being_written_and_read() -> None:
    said = {"attempt": 1, "began": 1.5, "ended": 3.0, "from": 0.0, "to": 1.5, "left": True}
    text = json.dumps({**said, "evals": [[10, 2.0]], "asked": [[4, 2.5]]})
    assert words(text) == Words(1.5, 3.0, 0.0, 1.5, True, ((10, 2.0),), ((4, 2.5),))
