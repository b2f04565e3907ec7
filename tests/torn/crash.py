"""Kill a saver at a random moment: some ranks in a process group, SIGKILL to one of them, then to all.

The standard library only: real libraries' savers run in an environment of their own.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import select
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OWNER = "torn-run"  # uid of the RLHFJob in the save records, and in the requests of the judge
PATIENCE = 300.0  # s until a saver has begun


@dataclass
class Rank:
    """One process of a saver. ``told`` is the test's own truth, written outside of the folder."""

    folder: Path
    rank: int
    world: int
    wait: Callable[[], object]  # for all ranks
    truth: Path
    began: int  # file descriptor: a byte when the first save begins
    client: Any = None  # an EvalStopClient; None: the trainer writes no save records
    random: random.Random = field(default_factory=random.Random)

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def begin(self) -> None:
        """The first save comes now: from here on it may be killed."""
        self.wait()
        if self.leads:
            os.write(self.began, b"x")

    def saved(self, step: int, *folders: Path, beside: Sequence[Path] = ()) -> None:
        """The save call has returned on this rank. Once it has on all: what is there is the truth.

        ``beside``: single files that are part of it.
        """
        self.wait()
        if not self.leads:
            return
        found = {
            path.relative_to(self.folder).as_posix(): path.stat().st_size
            for path in (*(path for folder in folders for path in folder.rglob("*")), *beside)
            if path.is_file()
        }
        if self.client is not None:  # which is part of the save: what it has not been told yet is not over
            self.client.checkpoint_saved(step, list(folders), location=self.folder)
        with self.truth.open("a") as file:
            file.write(json.dumps({"step": step, "files": found}) + "\n")


Saver = Callable[[Rank], object]  # saves step after step, rotates, and is killed


@dataclass(frozen=True)
class Crash:
    """What a kill left: the folder, and by step what every finished save had written."""

    folder: Path
    truth: Mapping[int, Mapping[str, int]]


def truth_of(path: Path) -> dict[int, dict[str, int]]:
    """By step: names (from the folder on) and bytes; the last save of a step counts."""
    if not path.exists():
        return {}
    lines = path.read_text().splitlines(keepends=True)
    said = [json.loads(line) for line in lines if line.endswith("\n")]
    return {entry["step"]: entry["files"] for entry in said}


def crashes(
    saver: Saver,
    root: Path,
    kills: int,
    seed: int,
    *,
    world: int = 1,
    horizon: float = 0.5,
    client: Callable[[Path], Any] | None = None,
) -> Iterator[Crash]:
    """``kills`` crashes of a saver, each in a folder of its own below ``root``, which the caller may remove.

    ``horizon``: s from its first save within which it is killed. ``client``: makes a client of a run folder.

    Raises:
        RuntimeError: the saver ended by itself, or never began.
    """
    dice = random.Random(seed)
    for number in range(kills):
        folder = root / f"{seed}-{number}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        truth = root / f"{seed}-{number}.truth"
        truth.unlink(missing_ok=True)
        _crash(saver, folder, truth, dice, world, horizon, client)
        yield Crash(folder, truth_of(truth))
        truth.unlink(missing_ok=True)


def finished(saver: Saver, root: Path, seed: int, *, world: int = 1) -> dict[int, dict[str, int]]:
    """What a saver has written that is left alone until its first save is over, as `Crash.truth` says it.

    Raises:
        RuntimeError: the saver ended by itself, or never finished a save.
    """
    folder, truth = root / f"{seed}-finished", root / f"{seed}-finished.truth"
    folder.mkdir(parents=True)
    _crash(saver, folder, truth, random.Random(seed), world, 0.0, None, once=lambda: bool(truth_of(truth)))
    found = truth_of(truth)
    shutil.rmtree(folder)
    truth.unlink()
    return found


def _crash(
    saver: Saver,
    folder: Path,
    truth: Path,
    dice: random.Random,
    world: int,
    horizon: float,
    client: Callable[[Path], Any] | None,
    once: Callable[[], bool] | None = None,
) -> None:
    """Start a saver, and kill it: at a moment within the horizon, or ``once`` that is so."""
    barrier = multiprocessing.get_context("fork").Barrier(world)
    reading, writing = os.pipe()
    seed = dice.randrange(1 << 30)
    pids: list[int] = []
    one_first = False
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            os.setpgid(0, pids[0] if pids else 0)
            one = Rank(folder, rank, world, barrier.wait, truth, writing, random=random.Random(seed + rank))
            _live(saver, one, client)
        pids.append(pid)
        os.setpgid(pid, pids[0])
    os.close(writing)
    try:
        if not select.select([reading], [], [], PATIENCE)[0] or not os.read(reading, 1):
            raise RuntimeError(f"the saver never began its first save ({saver})")
        time.sleep(dice.uniform(0.0, horizon))
        deadline = time.monotonic() + PATIENCE
        while once is not None and not once():
            if time.monotonic() > deadline:
                raise RuntimeError(f"the saver never finished a save ({saver})")
            time.sleep(0.01)
        if once is None and dice.random() < 0.5:  # one rank is lost first, as when its node is
            one_first = True
            os.kill(dice.choice(pids), signal.SIGKILL)
            time.sleep(dice.uniform(0.0, 0.03))
    finally:
        os.close(reading)
        os.killpg(pids[0], signal.SIGKILL)
        ends = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    if any(end >= 0 for end in ends) and not one_first:  # the others may end when they miss it
        raise RuntimeError(f"a saver ended by itself, with {ends} ({saver}); its words are above")


def _live(saver: Saver, rank: Rank, client: Callable[[Path], Any] | None) -> None:
    """The whole life of a rank, in its own process."""
    try:
        if client is not None and rank.leads:
            rank.client = client(rank.truth.with_suffix(".run"))
        saver(rank)
    except BaseException:
        traceback.print_exc(file=sys.stderr)
        os._exit(1)
    os._exit(0)


def recording(run: Path) -> Any:
    """A client as a trainer has it, of attempt 1 of the RLHFJob `OWNER`."""
    from evalstop_client.client import EvalStopClient

    run.mkdir(exist_ok=True)
    (run / "run.json").write_text(json.dumps({"uid": OWNER, "attempt": 1}))
    return EvalStopClient(run, port=0, host="127.0.0.1", speaks=True)


def files_below(folder: Path) -> dict[str, int]:
    """Names and bytes of all files below a folder."""
    return {p.relative_to(folder).as_posix(): p.stat().st_size for p in folder.rglob("*") if p.is_file()}
