"""Two ranks of one run act in the same step, whoever sees what first."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from evalstop_client.client import EvalStopClient, speaks_for_the_job
from evalstop_client.ranks import Ranks, TorchRanks, find
from evalstop_client.run import EXIT_STOPPED, Run
from tests.support.pipe_ranks import PipeRanks

# Read for themselves, two ranks' copies of run.json differ for so long: here some 30 steps, on a real cluster
# seconds. EVALSTOP_TEST_APART=3 for as long as there.
APART_S = float(os.environ.get("EVALSTOP_TEST_APART", "0.15"))
STEP_S = 0.005
SPAWN = multiprocessing.get_context("fork")


def write(folder: Path, **request: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".new").write_text(json.dumps({"uid": "u-1", "attempt": 1, "request": {"id": 0, **request}}))
    (folder / ".new").rename(folder / "run.json")


def rank_loop(rank: int, folder: Path, pipe: Connection, body: Callable[[Run, int], None]) -> None:
    """One rank, in a process of its own: it writes down the step of each thing that it is asked for."""
    client = EvalStopClient(folder / f"run{rank}", port=0, host="127.0.0.1", speaks=rank == 0)
    run = Run("gold", client, ranks=PipeRanks(rank, pipe), stop_grace=0.0)
    run.begin(0, 10_000)
    body(run, rank)
    try:
        run.finish()
    except SystemExit as left:
        os._exit(int(left.code or 0))
    os._exit(0)


def acting(run: Run, folder: Path, rank: int) -> None:
    with (folder / f"acts{rank}").open("a", buffering=1) as acts:
        for step in range(1, 100_000):
            time.sleep(STEP_S)
            wanted = run.step(step)
            if wanted.checkpoint or wanted.evaluate or wanted.stop:
                told = "leaving" if run.leaving else wanted.id
                acts.write(f"{told} {step} {wanted.evaluate} {wanted.checkpoint} {wanted.stop}\n")
            if wanted.stop:
                return


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Callable[[Callable[[Run, int], None]], list[Any]]]:
    started: list[Any] = []

    def start(body: Callable[[Run, int], None]) -> list[Any]:
        ends = SPAWN.Pipe()
        for rank in (0, 1):
            write(tmp_path / f"run{rank}")
            process = SPAWN.Process(target=rank_loop, args=(rank, tmp_path, ends[rank], body))
            process.start()
            started.append(process)
        return started

    yield start
    for process in started:
        process.kill()
        process.join()


def acts(folder: Path, rank: int) -> list[str]:
    path = folder / f"acts{rank}"
    return path.read_text().splitlines() if path.exists() else []


def wait_for(what: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)


# row 2: ranks that read run.json for themselves disagreed for seconds, and the first request ended the run
def test_both_act_in_the_same_step_20_of_20(tmp_path: Path, pair: Any) -> None:
    processes = pair(lambda run, rank: acting(run, tmp_path, rank))
    for number in range(1, 21):
        request = {"id": number, "evaluate": number % 2 == 0, "checkpoint": True, "stop": number == 20}
        first, second = (0, 1) if number % 2 else (1, 0)
        write(tmp_path / f"run{first}", **request)
        time.sleep(APART_S)
        write(tmp_path / f"run{second}", **request)
        wait_for(lambda n=number: all(any(a.startswith(f"{n} ") for a in acts(tmp_path, r)) for r in (0, 1)))
    for process in processes:
        process.join(60)
        assert process.exitcode == EXIT_STOPPED
    both = acts(tmp_path, 0), acts(tmp_path, 1)
    assert both[0] == both[1]
    assert {line.split()[0] for line in both[0]} == {str(number) for number in range(1, 21)}


def test_sigterm_to_one_rank_is_obeyed_by_both_in_one_step(tmp_path: Path, pair: Any) -> None:
    processes = pair(lambda run, rank: acting(run, tmp_path, rank))
    wait_for(lambda: (tmp_path / "acts1").exists())
    os.kill(processes[1].pid, signal.SIGTERM)
    for process in processes:
        process.join(60)
        assert process.exitcode == EXIT_STOPPED
    assert acts(tmp_path, 0) == acts(tmp_path, 1)
    assert acts(tmp_path, 0)[0].startswith("leaving ")


def test_all_ranks_resume_from_what_one_found_and_one_records(tmp_path: Path, pair: Any) -> None:
    out = tmp_path / "out"

    def body(run: Run, rank: int) -> None:
        assert run.resume_path(out) is None
        folder = out / "checkpoint-10"
        time.sleep(0.2 * rank)  # the second rank's file comes later
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"rank_{rank}.pt").write_bytes(b"x" * (rank + 1))
        run.saved(10, folder, out)
        (tmp_path / f"found{rank}").write_text(str(run.resume_path(out)))

    for process in pair(body):
        process.join(60)
        assert process.exitcode == 0
    (record,) = (out / ".evalstop" / "saves").glob("*.json")
    assert json.loads(record.read_text())["files"] == {"rank_0.pt": 1, "rank_1.pt": 2}
    assert {(tmp_path / f"found{rank}").read_text() for rank in (0, 1)} == {str(out / "checkpoint-10")}


@pytest.mark.parametrize(
    ("environ", "speaks"),
    [
        ({}, True),
        ({"RANK": "0"}, True),
        ({"RANK": "3"}, False),
        ({"JOB_COMPLETION_INDEX": "0"}, True),
        ({"JOB_COMPLETION_INDEX": "1"}, False),
        # c10d gives global rank 0 to any pod; the operator asks the one with index 0
        ({"JOB_COMPLETION_INDEX": "0", "LOCAL_RANK": "0", "RANK": "8"}, True),
        ({"JOB_COMPLETION_INDEX": "0", "LOCAL_RANK": "1", "RANK": "1"}, False),
        ({"JOB_COMPLETION_INDEX": "1", "LOCAL_RANK": "0", "RANK": "0"}, False),
    ],
)
def test_one_process_of_a_job_speaks(environ: dict[str, str], speaks: bool) -> None:
    assert speaks_for_the_job(environ) is speaks


def test_a_driver_reports_in_whichever_pod_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EVALSTOP_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "3")
    assert Run("gold", driver=True, signals=False).client.speaks
    assert not Run("gold", signals=False).client.speaks


class FakeTorch:
    """What `TorchRanks` uses of torch, of a world of two whose other rank always gives 7 and "there"."""

    int64 = "int64"

    class distributed:
        class ReduceOp:
            MAX = "max"

        initialized = True

        @staticmethod
        def is_available() -> bool:
            return True

        @classmethod
        def is_initialized(cls) -> bool:
            return cls.initialized

        @staticmethod
        def get_world_size() -> int:
            return 2

        @staticmethod
        def new_group(backend: str) -> str:
            return f"group of {backend}"

        @staticmethod
        def all_reduce(tensor: Any, op: str, group: str) -> None:
            assert (op, group) == ("max", "group of gloo")
            tensor.values = [max(value, 7) for value in tensor.values]

        @staticmethod
        def all_gather_object(found: list[Any], text: Any, group: str) -> None:
            found[:] = [text, "there"]

        @staticmethod
        def barrier(group: str) -> None:
            assert group == "group of gloo"

    class tensor:
        def __init__(self, values: list[int], dtype: str) -> None:
            self.values = values

        def tolist(self) -> list[int]:
            return self.values


def test_torch_is_found_and_never_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(__import__("sys").modules, "torch", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    alone = find()
    assert type(alone) is Ranks
    assert (alone.highest([3, 0]), alone.one("x"), alone.barrier()) == ([3, 0], "x", None)
    monkeypatch.setitem(__import__("sys").modules, "torch", FakeTorch)
    found = find()
    assert isinstance(found, TorchRanks)
    assert (found.size, found.highest([3, 9]), found.one(None), found.one("here")) == (
        2,
        [7, 9],
        "there",
        "here",
    )
    found.barrier()
    monkeypatch.setattr(FakeTorch.distributed, "initialized", False)
    assert type(find()) is Ranks
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert find() is None


def test_ranks_that_cannot_agree_obey_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A rank that acts alone ends the run: a collective that the others do not enter."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    write(tmp_path, id=3, checkpoint=True, stop=True)
    run = Run("gold", EvalStopClient(tmp_path, port=0, host="127.0.0.1"), signals=False)
    run.begin()
    assert run.step(1) == (0, False, False, False)
    assert "rlhf_request_served" not in run.client.exposition().decode(), "so nothing is asked"
    assert "WORLD_SIZE is 2 and torch.distributed is not set up" in caplog.text
    run.finish()


class Broken(Ranks):
    size = 2
    calls = 0

    def highest(self, values: Any) -> list[int]:
        self.calls += 1
        raise RuntimeError("connection closed by peer")


def test_a_group_that_breaks_is_not_asked_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, id=3, stop=True)
    broken = Broken()
    client = EvalStopClient(tmp_path, port=0, host="127.0.0.1")
    run = Run("gold", client, ranks=broken, signals=False)
    run.begin()
    assert [run.step(step).stop for step in (1, 2, 3)] == [False] * 3
    assert broken.calls == 1
    assert caplog.text.count("connection closed by peer") == 1
    run.finish()


def test_a_step_costs_less_than_a_millisecond(tmp_path: Path) -> None:
    """Of this process's own time: how long the other rank takes to come is no cost of the client's."""
    write(tmp_path, id=1, checkpoint=True)
    run = Run("gold", EvalStopClient(tmp_path, port=0, host="127.0.0.1", speaks=True), signals=False)
    run.begin()
    steps = 500
    began = time.process_time()
    for step in range(1, steps + 1):
        run.step(step, steps, proxy=1.0, kl=0.5, loss=0.25)
    assert (time.process_time() - began) / steps < 1e-3
    run.finish()
