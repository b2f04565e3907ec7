"""The example trainer, which also writes down what happened, in a folder that the product never reads.

``python -m tests.bench.faults.trainer`` takes the arguments of ``python -m examples.trainer``. ``$TRUTH``
is a folder of this run, ``$TRUTH_GPUS`` one that all runs share. One JSON object a line in
``$TRUTH/life.jsonl``; each line is written before the trainer says the same thing to anybody else, except
that a checkpoint's is written right after its save returned.

Each life of a run draws other random numbers, so that two branches of one run have other scores at the same
step. ``$TRUTH/back.json`` (a list, by the number of the life) says by how many checkpoints a life goes back.
Where there is ``$TRUTH/noted``, a life ends only when that file names its last step: see `Runner`.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from evalstop_client.client import Differences, EvalStopClient
from examples.trainer import process
from examples.trainer.checkpoints import CheckpointError, CheckpointFolder, load
from examples.trainer.settings import RESUME_AUTO, parse
from examples.trainer.task import Floats, Ints
from examples.trainer.termination import Termination
from examples.trainer.training import Training

# s that a trainer waits at most for its last eval to be noted: an operator that was killed is there again by
# then, on a machine that has other things to do, too.
PATIENCE = 60.0


class Book:
    """The run's own record. Lines are appended whole; the file outlives the process that wrote it."""

    def __init__(self, folder: Path, life: int, speaks: bool) -> None:
        self.life, self.speaks = life, speaks
        self._file = (folder / "life.jsonl").open("ab", buffering=0)

    def write(self, what: str, **facts: Any) -> None:
        if self.speaks:
            line = {"what": what, "life": self.life, "time": time.time(), **facts}
            self._file.write(json.dumps(line).encode() + b"\n")


def lives_before(folder: Path) -> int:
    """How many lives have begun in this folder."""
    try:
        lines = (folder / "life.jsonl").read_bytes().splitlines()
    except FileNotFoundError:
        return 0
    return sum(1 for line in lines if b'"what": "life"' in line)


class Client(EvalStopClient):
    """Reports nothing that is not in the book already. A scrape is written down when its answer was sent to
    somebody who still waited for it, with the time at which the page was made."""

    book: Book

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._order, self._made = threading.Lock(), threading.local()
        super().__init__(*args, **kwargs)

    def report_eval(
        self,
        metric: str,
        step: int,
        score: float,
        stderr: float | None = None,
        samples: int | None = None,
        *,
        proxy: float | None = None,
        differences: Differences | None = None,
    ) -> bool:
        facts = {"step": step, "score": score, "stderr": stderr, "samples": samples}
        with self._order:  # an eval in the book is on every page that is made after it
            self.book.write("eval", metric=metric, attempt=str(self.attempt), **facts)
            return super().report_eval(
                metric, step, score, stderr, samples, proxy=proxy, differences=differences
            )

    def _page(self) -> tuple[bytes, int]:
        with self._order:
            self._made.at = time.time()
            return super()._page()

    def _was_read(self, news: int) -> None:
        self.book.write("scraped", time=self._made.at)
        super()._was_read(news)


class Folder(CheckpointFolder):
    """Writes down what a checkpoint held when its save returned, and which ones were left then."""

    book: Book

    def save(self, step: int, state: Mapping[str, Floats], *args: Any, **kwargs: Any) -> Path:
        self.book.write("saving", step=step)
        path = super().save(step, state, *args, **kwargs)
        files = {
            str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
            for file in sorted(path.rglob("*"))
            if file.is_file()
        }
        left = sorted(p.name for p in self.folder.glob("step-*"))
        self.book.write("saved", step=step, name=path.name, files=files, left=left)
        return path


def of_life(life: int) -> type[Training]:
    """Training whose rollouts and evals are those of this life alone."""

    class LifeTraining(Training):
        def _draw(
            self, stream: Any, step: int, count: int, prompts: Ints, extra: int = 0
        ) -> tuple[Ints, Floats, Floats]:
            trains = stream.name in ("ROLLOUT", "EVALUATION")
            return super()._draw(stream, step + (life * 1_000_000 if trains else 0), count, prompts, extra)

    return LifeTraining


class Process(process.TrainerProcess):
    """Goes back further than it must, and ends only when it may, where it is told to."""

    back: int
    noted: Path
    book: Book

    def run(self) -> int:
        code = super().run()
        if code == process.EXIT_DONE and self.leads and self.noted.exists():
            last = f"{self.book.life} {self.training.step}"
            until = time.monotonic() + PATIENCE
            while self.noted.read_text() != last and time.monotonic() < until:
                if self.termination.wait(0.1):
                    break
        return code

    def _resume(self) -> None:
        found = self.folder.all() if self.folder is not None else []
        if not self.back or not found or self.settings.resume != RESUME_AUTO:
            super()._resume()
        else:
            usable = found[: max(1, len(found) - self.back)]
            for checkpoint in reversed(usable):
                try:
                    self._load(checkpoint.path, checkpoint.run, checkpoint.step, load(checkpoint))
                    break
                except CheckpointError:
                    continue
        self.book.write("resumed", step=self.training.step)

    def _load(self, path: Path, run: Mapping[str, Any], step: int, state: Mapping[str, Floats]) -> None:
        files = {
            file.name: hashlib.sha256(file.read_bytes()).hexdigest()
            for file in path.iterdir()
            if file.is_file()
        }
        super()._load(path, run, step, state)
        self.book.write("loaded", step=step, path=str(path), files=files)


def hold_gpus(folder: Path, book: Book) -> list[Any]:
    """Lock this process's GPUs; the kernel lets them go with it. Whoever finds one taken writes that down."""
    held = []
    node = os.environ.get("NODE_NAME", "")
    for device in filter(None, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")):
        file = (folder / f"{node}-{device}").open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            with (folder / "twice.jsonl").open("a") as twice:
                facts = {"node": node, "device": device, "pod": socket.gethostname(), "time": time.time()}
                twice.write(json.dumps(facts) + "\n")
        held.append(file)
    return held


def main() -> int:
    settings = parse()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stdout)
    termination = Termination()
    termination.install()
    truth = Path(os.environ["TRUTH"])
    speaks = settings.index == 0
    life = lives_before(truth)
    book = Book(truth, life, speaks)
    client = Client(host=settings.host, port=settings.port, speaks=speaks)
    book.write(
        "life",
        pod=socket.gethostname(),
        attempt=str(client.attempt),
        node=os.environ.get("NODE_NAME", ""),
    )
    gpus = hold_gpus(Path(os.environ["TRUTH_GPUS"]), book)
    client.book = Folder.book = book  # type: ignore[misc]
    process.Training = of_life(life)  # type: ignore[misc]
    process.CheckpointFolder = Folder  # type: ignore[misc]
    back = json.loads((truth / "back.json").read_text()) if (truth / "back.json").exists() else []
    work = Process(settings, client, termination)
    work.book, work.noted = book, truth / "noted"
    work.back = back[life] if life < len(back) else 0
    code = 1
    try:
        code = work.run()
    except (CheckpointError, OSError) as fault:
        logging.error("%s", fault)
    finally:
        client.close()
        book.write("end", code=code)
        del gpus
    return code


if __name__ == "__main__":
    sys.exit(main())
