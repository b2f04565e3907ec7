"""The trainer as a process: exit codes, signals, resumes, requests, followers, what it serves and records."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from controller import names
from controller.metrics.parse import parse
from controller.policy.job.types import ScrapeView
from evalstop_client.client import EvalStopClient
from examples.trainer.__main__ import main
from examples.trainer.checkpoints import CheckpointFolder, load, read
from examples.trainer.process import TrainerProcess
from examples.trainer.settings import parse as parse_settings
from examples.trainer.termination import EXIT_TERMINATED, Termination

REPOSITORY = Path(__file__).parents[2]
# A run small enough to take milliseconds.
TINY = ["--preferences=40", "--batch=8", "--eval-samples=16", "--eval-every=5", "--port=0", "--seed=3"]


class Trainer:
    """A trainer in a process of its own, with output to a file."""

    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        self.output = folder / f"output-{time.monotonic_ns()}.txt"
        clean = {k: v for k, v in os.environ.items() if k not in ("EVALSTOP_RUN_DIR", "JOB_COMPLETION_INDEX")}
        with self.output.open("wb") as sink:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "examples.trainer", *TINY, *arguments],
                cwd=REPOSITORY,
                env={**clean, "POD_IP": "127.0.0.1", **environment},
                stdout=sink,
                stderr=subprocess.STDOUT,
            )

    @property
    def text(self) -> str:
        return self.output.read_text()

    def wait(self, seconds: float = 60) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"still running after {seconds} s:\n{self.text}") from None

    def until(self, seen: Callable[[], Any], what: str, seconds: float = 60) -> Any:
        deadline = time.monotonic() + seconds
        while True:
            found = seen()
            if found:
                return found
            assert self.process.poll() is None, f"ended before {what}:\n{self.text}"
            assert time.monotonic() < deadline, f"no {what} within {seconds} s:\n{self.text}"
            time.sleep(0.01)

    def scrape(self, metric: str = "gold_reward") -> ScrapeView:
        line = self.until(lambda: [x for x in self.text.splitlines() if "metrics at " in x], "address")[0]
        address = line.split("metrics at ")[1].split(",")[0]
        with urllib.request.urlopen(address, timeout=5) as response:
            return parse(response.read(), metric)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Trainer]]:
    started: list[Trainer] = []

    def one(*arguments: str, **environment: str) -> Trainer:
        started.append(Trainer(tmp_path, *arguments, **environment))
        return started[-1]

    yield one
    for trainer in started:
        trainer.process.kill()
        trainer.process.wait()


def catches_sigterm(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(int(status.split("SigCgt:")[1].split()[0], 16) >> (signal.SIGTERM - 1) & 1)


def write_run(folder: Path, attempt: int = 1, resume: object = None, **request: object) -> None:
    folder.mkdir(exist_ok=True)
    draft = folder / ".draft"
    content = {"uid": "u", "attempt": attempt, "resume": resume, "request": {"id": 0, **request}}
    draft.write_text(json.dumps(content))
    draft.rename(folder / names.RUN_KEY)


def run_here(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The same program in this process: quick, where no signal and no second process is needed."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    monkeypatch.setattr(sys, "argv", ["trainer", *TINY, *arguments])
    try:
        return main()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EVALSTOP_RUN_DIR", "JOB_COMPLETION_INDEX", "POD_IP"):
        monkeypatch.delenv(name, raising=False)


# from start to end


def test_a_whole_run_ends_with_zero_and_tells_all(start: Callable[..., Trainer], tmp_path: Path) -> None:
    record = tmp_path / "deep" / "evals.jsonl"
    trainer = start(
        "--steps=20", f"--checkpoints={tmp_path}/c", "--keep=2", f"--record={record}", "--linger-seconds=30"
    )
    trainer.until(lambda: "done: step 20 of 20" in trainer.text, "end")
    view = trainer.scrape()
    assert [p.step for p in view.points] == [0, 5, 10, 15, 20]
    assert (view.evals_total, view.step, view.total_steps) == (5, 20, 20)
    assert (view.checkpoint_step, view.resumed_step, view.request_served) == (20, 0, 0)
    trainer.process.terminate()  # while lingering: the run is complete all the same
    assert trainer.wait() == 0
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 5, 10, 15, 20]
    assert {tuple(sorted(line)) for line in lines} == {
        ("attempt", "gold", "kl", "n", "proxy", "stderr", "step", "time")
    }
    assert [line["gold"] for line in lines] == [p.score for p in view.points]
    assert [line["stderr"] for line in lines] == [p.stderr for p in view.points]
    assert (view.proxy, view.kl) == (lines[-1]["proxy"], lines[-1]["kl"])
    assert {line["n"] for line in lines} == {16}
    assert [c.step for c in CheckpointFolder(tmp_path / "c").all()] == [15, 20]


def test_the_last_step_is_evaluated_and_saved_whatever_the_interval(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    record = tmp_path / "r"
    arguments = ["--steps=7", f"--checkpoints={tmp_path}/c", f"--record={record}", "--metric=win_rate"]
    assert run_here(monkeypatch, *arguments) == 0
    assert [json.loads(x)["step"] for x in record.read_text().splitlines()] == [0, 5, 7]
    assert [c.step for c in CheckpointFolder(tmp_path / "c").all()] == [0, 5, 7]


def test_a_step_takes_the_time_it_is_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    wait = Termination.wait

    def spy(self: Termination, seconds: float) -> bool:
        slept.append(seconds)
        return wait(self, seconds)

    monkeypatch.setattr(Termination, "wait", spy)
    began = time.monotonic()
    assert run_here(monkeypatch, "--steps=10", "--step-seconds=0.05") == 0
    assert time.monotonic() - began >= 0.5
    assert max(slept) <= 0.05  # and no longer: what else it takes is the machine's


def test_the_checkpoint_is_there_before_its_score(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Who sees a new best must find something to keep."""
    missing = []
    report = EvalStopClient.report_eval

    def spy(self: EvalStopClient, metric: str, step: int, *rest: Any, **more: Any) -> bool:
        if CheckpointFolder(tmp_path).latest() is None or not (tmp_path / f"step-{step}").is_dir():
            missing.append(step)
        return report(self, metric, step, *rest, **more)

    monkeypatch.setattr(EvalStopClient, "report_eval", spy)
    assert run_here(monkeypatch, "--steps=15", f"--checkpoints={tmp_path}") == 0
    assert missing == []


# leaving


def test_sigterm_finishes_the_step_and_leaves_with_143(start: Callable[..., Trainer], tmp_path: Path) -> None:
    folder = tmp_path / "c"
    trainer = start("--steps=100000", f"--checkpoints={folder}", "--step-seconds=0.01")
    # By what it says, which stays: rotation takes the folder away a quarter of a second later.
    trainer.until(lambda: "step 10 of" in trainer.text, "checkpoint")
    trainer.process.terminate()
    assert trainer.wait() == 143 == EXIT_TERMINATED
    assert "SIGTERM: left after step" in trainer.text
    newest = CheckpointFolder(folder).latest()
    assert newest is not None
    assert newest[0].step % 5 == 0


def test_sigterm_does_not_wait_for_a_slow_step_to_be_over(start: Callable[..., Trainer]) -> None:
    trainer = start("--steps=100000", "--step-seconds=1000")
    trainer.until(lambda: "step 0 of" in trainer.text, "first eval")
    trainer.process.terminate()
    assert trainer.wait() == 143  # far sooner than the step is over


def test_a_signal_right_before_the_sleep_ends_it() -> None:
    """Python's handler runs only after the call that sleeps."""

    class Late(Termination):
        def _handle(self, number: int, frame: Any) -> None:
            """It has not run yet."""

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    late = Late()
    try:
        late.install()
        os.kill(os.getpid(), signal.SIGTERM)
        began = time.monotonic()
        assert not late.wait(20.0)
        assert time.monotonic() - began < 10.0
    finally:
        signal.set_wakeup_fd(-1)
        for number, handler in before.items():
            signal.signal(number, handler)


def test_checkpoint_on_term_saves_the_very_step(start: Callable[..., Trainer], tmp_path: Path) -> None:
    folder = tmp_path / "c"
    trainer = start(
        "--steps=100000",
        f"--checkpoints={folder}",
        "--step-seconds=0.01",
        "--checkpoint-every=100000",
        "--checkpoint-on-term",
    )
    trainer.until(lambda: "step 5 of" in trainer.text, "eval")
    trainer.process.terminate()
    assert trainer.wait() == 143
    left = int(trainer.text.split("left after step ")[1].split()[0])
    assert [c.step for c in CheckpointFolder(folder).all()] == [0, left]


@pytest.mark.parametrize("when", ["before", "during"])
def test_an_interrupted_sleep_ends_and_stays_ended(when: str) -> None:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    termination = Termination()
    try:
        termination.install()
        assert not termination.wait(0.01)
        if when == "before":
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
            signal.setitimer(signal.ITIMER_REAL, 0.05)
        began = time.monotonic()
        assert termination.wait(30)
        assert termination.wait(30)
        assert time.monotonic() - began < 30  # neither was slept to its end
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        for number, handler in handlers.items():
            signal.signal(number, handler)


# resuming


def parameters(folder: Path, step: int) -> dict[str, Any]:
    return {name: array.tolist() for name, array in load(read(folder / f"step-{step}")).items()}


def test_a_resumed_run_is_the_run_it_would_have_been(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert run_here(monkeypatch, "--steps=20", f"--checkpoints={whole}") == 0
    assert run_here(monkeypatch, "--steps=10", f"--checkpoints={parts}") == 0
    record = tmp_path / "r"
    assert run_here(monkeypatch, "--steps=20", f"--checkpoints={parts}", f"--record={record}") == 0
    assert [json.loads(x)["step"] for x in record.read_text().splitlines()] == [15, 20]
    assert parameters(parts, 20) == parameters(whole, 20)


def resumed(monkeypatch: pytest.MonkeyPatch, folder: Path, run_dir: Path | None, *arguments: str) -> int:
    """The step a trainer process would start at."""
    if run_dir is not None:
        monkeypatch.setenv("EVALSTOP_RUN_DIR", str(run_dir))
    settings = parse_settings([*TINY, f"--checkpoints={folder}", "--steps=0", *arguments])
    with EvalStopClient(host="127.0.0.1", port=0) as client:
        client.close()
        process = TrainerProcess(settings, client, Termination())
        process._resume()
        return process.training.step


def test_where_a_process_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Own attempt's latest, else what the operator names, else the latest of any attempt, else afresh."""
    folder, run_dir, kept = (
        tmp_path / "c",
        tmp_path / "run",
        tmp_path / "c" / names.PINS_FOLDER / "u" / "step-10",
    )
    assert resumed(monkeypatch, folder, None) == 0
    write_run(run_dir, attempt=1)
    monkeypatch.setenv("EVALSTOP_RUN_DIR", str(run_dir))
    assert run_here(monkeypatch, "--steps=20", f"--checkpoints={folder}", "--keep=9") == 0
    kept.parent.mkdir(parents=True)
    os.rename(folder / "step-10", kept)

    assert resumed(monkeypatch, folder, run_dir) == 20  # its Job restarted the pod
    write_run(run_dir, attempt=2)
    assert resumed(monkeypatch, folder, run_dir) == 20  # preempted, admitted again
    write_run(run_dir, attempt=3, resume={"path": str(kept), "step": 10})
    assert resumed(monkeypatch, folder, run_dir) == 10  # from the best
    relative = str(kept.relative_to(folder))
    write_run(run_dir, attempt=3, resume={"path": relative, "step": 10})
    assert resumed(monkeypatch, folder, run_dir) == 10
    assert resumed(monkeypatch, folder, run_dir, "--resume=fresh") == 0
    assert resumed(monkeypatch, folder, run_dir, f"--resume={folder}/step-5") == 5

    assert run_here(monkeypatch, "--steps=15", f"--checkpoints={folder}", "--keep=9") == 0
    assert resumed(monkeypatch, folder, run_dir) == 15  # attempt 3's own, not step 20 of the branch it left
    write_run(run_dir, attempt=4)
    assert resumed(monkeypatch, folder, run_dir) == 15


def test_a_resume_is_told_from_the_first_scrape(start: Callable[..., Trainer], tmp_path: Path) -> None:
    folder, run_dir = tmp_path / "c", tmp_path / "run"
    first = start("--steps=10", f"--checkpoints={folder}")
    assert first.wait() == 0
    write_run(run_dir, attempt=2, resume={"path": str(folder / "step-5"), "step": 5})
    second = start(
        "--steps=1000",
        f"--checkpoints={folder}",
        "--step-seconds=100",
        EVALSTOP_RUN_DIR=str(run_dir),
    )
    view = second.scrape()
    assert view.resumed_step == 5
    assert view.step is not None
    assert view.step >= 5
    assert f"resumed from {folder}/step-5, step 5" in second.text


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda folder: None, "no usable manifest.json"),
        (lambda folder: (folder / "step-5" / "params.npz").write_bytes(b"half"), "has 4 of"),
    ],
)
def test_a_checkpoint_the_operator_names_must_be_usable(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    prepare: Callable[[Path], object],
    message: str,
) -> None:
    """Starting elsewhere without a word would pass one run's scores for another's."""
    folder, run_dir = tmp_path / "c", tmp_path / "run"
    assert run_here(monkeypatch, "--steps=10", f"--checkpoints={folder}") == 0
    wanted = "step-5" if prepare(folder) is not None else "step-777"
    write_run(run_dir, attempt=2, resume={"path": str(folder / wanted), "step": 5})
    monkeypatch.setenv("EVALSTOP_RUN_DIR", str(run_dir))
    assert run_here(monkeypatch, "--steps=10", f"--checkpoints={folder}") == 1
    assert wanted in caplog.text
    assert message in caplog.text


def test_another_runs_folder_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert run_here(monkeypatch, "--steps=5", f"--checkpoints={tmp_path}") == 0
    assert run_here(monkeypatch, "--steps=10", f"--checkpoints={tmp_path}", "--seed=8") == 1
    assert "written by a run with seed [3], this one has --seed 8" in caplog.text
    assert run_here(monkeypatch, "--steps=10", f"--checkpoints={tmp_path}", "--seed=8", "--resume=fresh") == 0


# requests


def test_requests_are_carried_out_once_and_published(start: Callable[..., Trainer], tmp_path: Path) -> None:
    folder, run_dir = tmp_path / "c", tmp_path / "run"
    write_run(run_dir, attempt=4)
    trainer = start(
        "--steps=100000",
        f"--checkpoints={folder}",
        "--step-seconds=0.02",
        "--eval-every=100000",
        EVALSTOP_RUN_DIR=str(run_dir),
    )
    assert {p.attempt.number for p in trainer.until(lambda: trainer.scrape().points, "first eval")} == {4}
    write_run(run_dir, attempt=4, id=1, evaluate=True)
    trainer.until(lambda: trainer.scrape().request_served == 1, "served request")
    view = trainer.scrape()
    assert view.evals_total == 2
    assert view.checkpoint_step == 0
    write_run(run_dir, attempt=4, id=2, checkpoint=True)
    trainer.until(lambda: trainer.scrape().request_served == 2, "served request")
    view = trainer.scrape()
    assert view.evals_total == 2
    assert view.checkpoint_step is not None
    assert view.checkpoint_step > 0
    steps = {c.step for c in CheckpointFolder(folder).all()}
    assert steps == {0, view.checkpoint_step}

    write_run(run_dir, attempt=4, id=3, stop=True)
    trainer.until(lambda: trainer.scrape().request_served == 3, "served request")
    view = trainer.scrape()
    assert view.step == view.checkpoint_step
    time.sleep(0.2)
    assert trainer.scrape().step == view.step  # stands by, to be scraped
    trainer.process.terminate()
    assert trainer.wait() == 143
    assert f"stopped on request at step {view.step}" in trainer.text


def test_after_a_stop_request_it_leaves_by_itself_in_the_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_run(tmp_path / "run", id=1, stop=True)
    monkeypatch.setenv("EVALSTOP_RUN_DIR", str(tmp_path / "run"))
    assert run_here(monkeypatch, "--steps=100000", "--stop-grace-seconds=0.1") == 143


# the gang


def test_followers_are_silent_and_end_as_the_leader_does(
    start: Callable[..., Trainer], tmp_path: Path
) -> None:
    folder = tmp_path / "c"
    arguments = [f"--checkpoints={folder}", f"--record={tmp_path}/r", "--port=1"]  # binding port 1 would show
    follower = start("--steps=10", *arguments, JOB_COMPLETION_INDEX="1", POD_IP="192.0.2.1")
    assert follower.wait() == 0
    assert follower.text == ""
    assert not folder.exists()
    assert not (tmp_path / "r").exists()
    follower = start("--steps=100000", "--step-seconds=0.05", *arguments, JOB_COMPLETION_INDEX="1")
    follower.until(lambda: catches_sigterm(follower.process.pid), "signal handler")
    follower.process.terminate()
    assert follower.wait() == 143


def test_a_full_volume_costs_checkpoints_not_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save = CheckpointFolder.save

    def full_from_step_5(self: CheckpointFolder, step: int, *rest: Any, **more: Any) -> Path:
        if step >= 5:
            raise OSError(28, "No space left on device")
        return save(self, step, *rest, **more)

    monkeypatch.setattr(CheckpointFolder, "save", full_from_step_5)
    arguments = ["--steps=12", f"--checkpoints={tmp_path}/c", f"--record={tmp_path}/r"]
    assert run_here(monkeypatch, *arguments) == 1  # the last checkpoint is what a run is for
    assert "checkpoint of step 5 not written: [Errno 28] No space left on device" in caplog.text
    assert [json.loads(x)["step"] for x in (tmp_path / "r").read_text().splitlines()] == [0, 5, 10, 12]
    assert [c.step for c in CheckpointFolder(tmp_path / "c").all()] == [0]


def test_an_address_in_use_is_an_error_that_names_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with EvalStopClient(host="127.0.0.1", port=0) as other:
        assert run_here(monkeypatch, "--steps=5", f"--port={other.serve()}") == 1
    assert "metrics cannot be served on 127.0.0.1:" in caplog.text


# the command line


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (["--steps=-1"], {}, "argument --steps: expected an integer >= 0, got '-1'"),
        (["--eval-every=0"], {}, "argument --eval-every: expected an integer >= 1, got '0'"),
        (["--keep=0"], {}, "argument --keep: expected an integer >= 1, got '0'"),
        (["--kl=-1"], {}, "--kl: expected a number >= 0.0, got -1.0"),
        (["--preferences=0"], {}, "--preferences: expected a number >= 1, got 0"),
        (["--eval-samples=1"], {}, "--eval-samples: expected a number >= 2, got 1"),
        (["--port=65536"], {}, "argument --port: expected a port from 0 to 65535, got '65536'"),
        (["--train-seconds=5"], {}, "--train-seconds: expected --rollouts local or pods"),
        (["--step-seconds=nan"], {}, "argument --step-seconds: expected seconds >= 0, got 'nan'"),
        (["--metric="], {}, "argument --metric: expected a name, got ''"),
        ([], {"JOB_COMPLETION_INDEX": "x"}, "JOB_COMPLETION_INDEX: expected an integer >= 0, got 'x'"),
    ],
)
def test_a_wrong_argument_is_named(
    arguments: list[str], environment: dict[str, str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        parse_settings(arguments, environment)
    assert refused.value.code == 2
    assert message in capsys.readouterr().err


def test_defaults_come_from_the_pod(tmp_path: Path) -> None:
    settings = parse_settings([], {"POD_IP": "10.1.2.3", "JOB_COMPLETION_INDEX": "2"})
    assert (settings.host, settings.port, settings.index) == ("10.1.2.3", names.DEFAULT_METRICS_PORT, 2)
    assert (settings.metric, settings.checkpoint_every) == ("gold_reward", settings.eval_every)
    assert parse_settings([], {}).host == "127.0.0.1"
