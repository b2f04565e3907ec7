"""Evaluations in processes of their own: they take on the life of the process that saves.

The blocks of docs/use/trainers.md run as they stand, in real processes; what they publish goes through the
policy, and the checkpoints they leave before the judge.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controller import names
from controller.checkpoints.access import carry_out
from controller.checkpoints.errors import AccessError, Reason
from controller.checkpoints.request import BranchLife, Request
from controller.metrics.parse import parse
from controller.policy.job import key_of
from controller.policy.job.types import ScrapeView
from controller.policy.types import Attempt, PolicySpec
from evalstop_client import client as evalstop_client
from evalstop_client.client import LIFE_ENV, RESUMED_ENV, EvalStopClient
from tests.support.policy_world import PolicyWorld

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "use" / "trainers.md").read_text()
TRAINER, EVALUATOR = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[-3:-1]
UID = "uid-ns/a"  # of the policy's little world
SCORES = [0.5, 0.54, 0.58, 0.62, 0.58, 0.54, 0.50]  # of steps 10, 20, …; the best is 40


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EVALSTOP_RUN_DIR", "JOB_COMPLETION_INDEX", "POD_IP", "RANK", LIFE_ENV, RESUMED_ENV):
        monkeypatch.delenv(name, raising=False)


def write_run(folder: Path, attempt: int = 1, uid: str = UID, interval: float = 30.0) -> None:
    folder.mkdir(exist_ok=True)
    draft = folder / ".draft"
    draft.write_text(
        f'{{"uid": "{uid}", "attempt": {attempt}, "resume": null, "scrapeIntervalSeconds": {interval}}}'
    )
    draft.rename(folder / names.RUN_KEY)


def client(**changes: Any) -> EvalStopClient:
    return EvalStopClient(**{"port": 0, "host": "127.0.0.1", **changes})


def handed(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], **changes: Any) -> EvalStopClient:
    """Return the client of an evaluation that was given these."""
    with monkeypatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        return client(**changes)


# -- the client ------------------------------------------------------------------------------------------


def test_an_evaluation_takes_on_the_life_that_it_is_handed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_run(tmp_path, attempt=2)
    trainer = client(run_dir=tmp_path)
    trainer.resumed(190)
    environment = trainer.environment()
    assert environment == {LIFE_ENV: trainer.attempt, RESUMED_ENV: "190"}
    assert not {LIFE_ENV, RESUMED_ENV} & os.environ.keys(), "a trainer that is started again has another life"
    write_run(tmp_path, attempt=3)  # of the next attempt, while this one's pod still terminates
    evaluation = handed(monkeypatch, environment, run_dir=tmp_path)
    evaluation.poll()
    evaluation.resume_path(tmp_path)  # what is to be evaluated is no start
    evaluation.report_eval("gold", 200, 0.5)
    seen = parse(evaluation.exposition(), "gold")
    assert (seen.page.attempt, seen.resumed_step) == (Attempt.parse(trainer.attempt), 190)
    assert [str(p.attempt) for p in seen.points] == [trainer.attempt]
    assert b"rlhf_request_served" not in evaluation.exposition(), "it carries out no requests"
    assert evaluation.environment() == environment
    assert client(run_dir=tmp_path).attempt.startswith("3-")


def test_what_is_said_goes_before_what_is_handed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_run(tmp_path)
    environment = {LIFE_ENV: "2-aa01b2c3", RESUMED_ENV: "190"}
    own = handed(monkeypatch, environment, run_dir=tmp_path, life="b0")
    assert (own.attempt, own.serves) == ("1-b0", True)
    assert RESUMED_ENV not in own.environment()
    assert handed(monkeypatch, environment, serves=True).serves


def test_a_run_file_that_came_late_still_gives_the_number(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    environment = client(run_dir=tmp_path, life="a1").environment()
    assert environment == {LIFE_ENV: "0-a1"}
    write_run(tmp_path, attempt=4)
    assert handed(monkeypatch, environment, run_dir=tmp_path).attempt == "4-a1"


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({LIFE_ENV: "9f2c41d0"}, f"{LIFE_ENV}: '9f2c41d0', expected the number of an attempt and a life"),
        ({LIFE_ENV: "1-A"}, f"{LIFE_ENV}: '1-A'"),
        ({LIFE_ENV: "1-a1", RESUMED_ENV: "-1"}, f"{RESUMED_ENV}: '-1', expected a step"),
    ],
)
def test_what_no_client_hands_over_is_refused(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], told: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(told)) as caught:
        handed(monkeypatch, environment)
    assert "client.environment() of the trainer's process makes it" in str(caught.value)


def test_results_of_each_prompt_are_compared_with_those_of_the_evaluation_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Those lie beyond the step from which the trainer's process started."""
    write_run(tmp_path / "run")
    trainer = client(run_dir=tmp_path / "run")
    trainer.resumed(100)
    for step, score in ((110, 0.0), (120, 1.0)):
        evaluation = handed(monkeypatch, trainer.environment(), run_dir=tmp_path / "run")
        evaluation.resume_path(tmp_path / "location")
        evaluation.report_eval("gold", step, score, per_prompt={"a": score, "b": score})
    assert b'rlhf_prompt_pair_prompts{metric="gold",step="120"' in evaluation.exposition()


# -- the blocks of the page, in real processes -----------------------------------------------------------

TRAINS = """
import hashlib, json, os, subprocess, sys, time
from evalstop_client import EvalStopClient
{block}
place = {place!r}
for step in range(10, {last}, 10):
    folder = f"{{place}}/step-{{step}}"
    os.makedirs(folder)
    data = b"parameters of step %d" % step
    open(f"{{folder}}/params.npz", "wb").write(data)
    files = {{"params.npz": {{"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}}}}
    json.dump({{"step": step, "files": files}}, open(f"{{folder}}/manifest.json", "w"))
    evaluate(step, folder)
evaluator.communicate()
"""
EVALUATES = """
import sys, time
import evalstop_client
EvalStopClient = lambda: evalstop_client.EvalStopClient(port={port})
score = lambda folder: ({scores!r}[int(folder.rpartition("-")[2])],)
{block}
"""


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture
def split(tmp_path: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """The trainer of the page, whose checkpoints the page's evaluator evaluates."""
    write_run(tmp_path / "run")
    scores = {10 * (i + 1): score for i, score in enumerate(SCORES)}
    (tmp_path / "evaluate.py").write_text(EVALUATES.format(port=port, scores=scores, block=EVALUATOR))
    trains = TRAINS.format(block=TRAINER, place=str(tmp_path / "ckpt"), last=10 * len(SCORES) + 10)
    (tmp_path / "train.py").write_text(trains)
    module = str(Path(evalstop_client.__file__).parents[1])
    environ = {**os.environ, "EVALSTOP_RUN_DIR": str(tmp_path / "run"), "PYTHONPATH": module}
    process = subprocess.Popen(
        [sys.executable, "train.py"], cwd=tmp_path, env=environ, start_new_session=True
    )
    yield process
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def scrape(port: int) -> ScrapeView | None:
    """As the operator asks; None: nobody answers, for one evaluation has ended and no other begun."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/metrics", headers={"User-Agent": evalstop_client.SCRAPER}
    )
    try:
        with urllib.request.urlopen(request, timeout=5) as response:
            return parse(response.read(), "win_rate")
    except OSError:
        return None


def test_the_best_is_secured_and_the_run_stopped(
    split: subprocess.Popen[bytes], port: int, tmp_path: Path
) -> None:
    """A trainer that saves and serves no page; a process for each evaluation, which serves and ends."""
    world = PolicyWorld({"n1": 1})
    job = world.submit("ns/a", rule=PolicySpec("kDeclines", {"k": 3}))
    world.settle()
    ask = Request("claim", "Plain", UID, str(tmp_path / "ckpt"), job="ns/a")
    carry_out(replace(ask, attempt="1"))
    read: list[int] = []
    deadline = time.monotonic() + 100
    while len(read) < len(SCORES):
        assert time.monotonic() < deadline, f"evals read: {read}"
        page = scrape(port)
        if page is not None and page.points and page.points[-1].step not in read:
            assert len(page.points) == 1, "each process shows its own"
            read.append(page.points[-1].step)
            job.checkpoints.add(read[-1])
            told = {"points": page.points, "page": page.page, "evaluator": page.evaluator}
            world.scrape("ns/a", **told, evals_total=page.evals_total)
            world.settle()
        time.sleep(0.02)
    assert split.wait(60) == 0
    assert read == [10 * (i + 1) for i in range(len(SCORES))]
    assert len(job.record.lives) == 1
    assert job.record.evals_missed == 0
    assert job.record.best is not None
    assert job.record.best.step == 40
    assert job.record.decision is not None, "the fall of three evals in a row was seen"
    life = job.record.best.attempt
    secured = carry_out(replace(ask, operation="secure", step=40, branch=(BranchLife(str(life)),)))
    assert (secured.step, secured.attempt, secured.evidence) == (40, str(life), "SaveRecord")


def test_without_the_life_it_is_said_what_lacks(tmp_path: Path) -> None:
    """The guard stays: an eval of one process is not paired with the checkpoint of another."""
    write_run(tmp_path / "run")
    trainer = client(run_dir=tmp_path / "run", life="aa01b2c3")
    ask = Request("claim", "Plain", UID, str(tmp_path / "ckpt"), job="ns/a")
    carry_out(replace(ask, attempt="1"))
    folder = tmp_path / "ckpt" / "step-10"
    folder.mkdir(parents=True)
    (folder / "params.npz").write_bytes(b"parameters")
    trainer.checkpoint_saved(10, folder)

    def refusal(*branch: BranchLife) -> AccessError:
        with pytest.raises(AccessError) as caught:
            carry_out(replace(ask, operation="secure", step=10, branch=branch))
        assert caught.value.reason is Reason.INCOMPLETE
        return caught.value

    evaluation = BranchLife("1-c8575016")
    told = refusal(evaluation).message
    assert "process 1-aa01b2c3 wrote it, as its save record says, but that of process 1-c8575016" in told
    assert "takes on the trainer's identity: client.environment() (docs/use/trainers.md)" in told
    assert key_of("CheckpointIncomplete", told) == "EvalProcess"
    # A trainer that was started again: the one that saved was read, or this one saves too, or it is another
    # attempt.
    first = BranchLife("1-aa01b2c3")
    assert "environment()" not in refusal(replace(evaluation, after=5), first).message
    assert "environment()" not in refusal(BranchLife("2-c8575016")).message
    again = client(run_dir=tmp_path / "run", life="c8575016")
    shutil.copytree(folder, tmp_path / "ckpt" / "step-20")
    again.checkpoint_saved(20, tmp_path / "ckpt" / "step-20")
    assert "environment()" not in refusal(evaluation).message
