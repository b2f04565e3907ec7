"""A trainer that trains nothing: it plays a run whose length and evals are given, as the contract asks.

    python -m examples.played --work=40 --at=0.25,0.5,0.75,1 --scores=0.5,0.6,0.55,0.5 --checkpoints=/ckpt/a

It takes as long as the run would take (``--work`` seconds of training), reports each eval when that share of
the training is done, writes a checkpoint with each of them and whenever it is asked to, goes on from the
latest one after a preemption, and leaves on SIGTERM with what it has done in safety. So a cluster can be
shown a trace, with everything about it real but the training: `evalstop parity`. A process takes a tenth of
a second of CPU to start, and next to none afterwards. Followers of a gang (completion index above 0) keep
the leader's time and say nothing.

Its last words, the termination message, say when it trained from where to where (seconds since the epoch).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import math
import os
import shutil
import sys
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from evalstop_client.client import EvalStopClient
from examples.trainer.termination import EXIT_TERMINATED, Termination

STEPS = 1000  # of a whole run, however long: what its progress is counted in
STATE = "state.json"
MANIFEST = "manifest.json"
LAST_WORDS = Path("/dev/termination-log")
_POLL_S = 0.25  # between looks at what the operator asks for

log = logging.getLogger("played")


@dataclass(frozen=True, slots=True)
class Play:
    """The run to play. ``work``: s of training; ``at``: share of it done at each eval, rising, in (0, 1].

    ``scores``: one for each; NaN is an eval that failed. ``stderrs``: theirs, or empty.
    """

    work: float
    at: Sequence[float] = ()
    scores: Sequence[float] = ()
    stderrs: Sequence[float] = ()
    metric: str = "score"

    def __post_init__(self) -> None:
        if not 0.0 <= self.work < math.inf:
            raise ValueError(f"work: {self.work!r} is not allowed, expected a number of seconds from 0 up")
        for name in ("scores", "stderrs"):
            if len(getattr(self, name)) not in {len(self.at)} | ({0} if name == "stderrs" else set()):
                raise ValueError(
                    f"{name}: {len(getattr(self, name))} for {len(self.at)} evals, expected as many"
                )
        before = 0.0
        for number, share in enumerate(self.at):
            if not before < share <= 1.0:
                raise ValueError(
                    f"at[{number}]: {share!r} is not allowed, expected above {before!r} and at most 1"
                )
            before = share

    def step(self, share: float) -> int:
        """Return the step at which that share of the training is done; evals have steps of their own.

        Steps are thousandths of the run, or finer where two evals would share one.
        """
        return round(share * self.steps)

    @property
    def steps(self) -> int:
        gaps = [b - a for a, b in zip((0.0, *self.at), self.at, strict=False)]
        return max([STEPS, *(math.ceil(1.0 / gap) for gap in gaps)])


@dataclass(slots=True)
class Folder:
    """Checkpoints in the layout Plain (docs/use/trainer-contract.md), each a small file and a manifest.

    Rotation is not compressed as the trace is: three checkpoints that a real run keeps for hours would be
    gone in seconds here, the best before anybody could have secured it. So far more are kept than a run has
    evals while a checkpoint is being secured.
    """

    path: Path
    keep: int = 32

    def save(self, step: int, position: float, attempt: int) -> Path:
        """Return the new checkpoint's folder. Raises OSError; what is half written has no manifest."""
        final = self.path / f"step-{step}"
        draft = self.path / f".tmp-{final.name}-{os.getpid()}"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        content = json.dumps({"position": position}).encode()
        entry = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        sequence = max((s for s, _, _ in self._all()), default=0) + 1
        manifest = {"step": step, "attempt": attempt, "sequence": sequence, "files": {STATE: entry}}
        (draft / STATE).write_bytes(content)
        (draft / MANIFEST).write_text(json.dumps(manifest))
        shutil.rmtree(final, ignore_errors=True)
        draft.rename(final)
        for _, _, old in self._all()[: -self.keep]:
            (old / MANIFEST).unlink(missing_ok=True)  # first: what is half removed is seen to be incomplete
            shutil.rmtree(old, ignore_errors=True)
        return final

    def latest(self) -> float:
        """Return seconds of training of the newest checkpoint; 0 without one."""
        found = self._all()
        return found[-1][1] if found else 0.0

    def _all(self) -> list[tuple[int, float, Path]]:
        """(sequence, position, folder) of every whole checkpoint, oldest first."""
        found = []
        for path in self.path.glob("step-*"):
            try:
                sequence = int(json.loads((path / MANIFEST).read_bytes())["sequence"])
                found.append((sequence, position_of(path), path))
            except (OSError, ValueError, KeyError, TypeError):
                continue  # being written or removed
        return sorted(found)


def position_of(checkpoint: Path) -> float:
    """Return seconds of training done in a checkpoint. Raises OSError, ValueError, KeyError: it is none of
    ours."""
    return float(json.loads((checkpoint / STATE).read_bytes())["position"])


@dataclass(slots=True)
class Player:
    """One process of a played run."""

    play: Play
    client: EvalStopClient
    folder: Folder
    termination: Termination
    words: Path = LAST_WORDS
    began: float = 0.0  # s since the epoch
    start: float = 0.0  # s of training done then
    evals: list[tuple[int, float]] = field(default_factory=list)  # step, and when it was reported
    asked: list[tuple[int, float]] = field(default_factory=list)  # request served, and when
    _clock: float = 0.0
    _next: int = 0
    _saved: int = -1

    def run(self) -> int:
        """Play to the end or to SIGTERM; the exit code.

        Raises OSError: metrics cannot be served. A checkpoint that cannot be written costs that one.
        """
        play, client = self.play, self.client
        self.start = self._resume()
        self._next = bisect_right(play.at, self.start / play.work) if play.work else 0
        first = play.step(self.start / play.work) if play.work else 0
        client.resumed(first)
        client.set_progress(first, play.steps)
        client.serve()
        self.began, self._clock = time.time(), time.monotonic()
        while (position := self._position()) < play.work and not self.termination.requested:
            due = play.at[self._next] * play.work if self._next < len(play.at) else play.work
            self.termination.wait(min(_POLL_S, max(0.0, due - position)))
            self._catch_up()
        left = self.termination.requested
        if left:
            self._save(self._position())
        else:
            self._catch_up()  # what came due while the last round took its time
        self._write_last_words(left)
        return EXIT_TERMINATED if left else 0

    def _position(self) -> float:
        return min(self.start + time.monotonic() - self._clock, self.play.work)

    def _catch_up(self) -> None:
        """Report what is due, and do what the operator asks for."""
        play, position = self.play, self._position()
        while self._next < len(play.at) and play.at[self._next] * play.work <= position:
            share, score = play.at[self._next], play.scores[self._next]
            self._save(share * play.work)  # first: when the score is seen, there is something to keep
            error = play.stderrs[self._next] if len(play.stderrs) else math.nan
            stderr = None if math.isnan(error) else error
            self.client.report_eval(play.metric, play.step(share), score, stderr)
            self.evals.append((play.step(share), time.time()))
            self._next += 1
        self.client.set_progress(play.step(position / play.work), play.steps)
        requests = self.client.poll()
        if requests.checkpoint or requests.stop:
            self._save(position)
            self.asked.append((requests.id, time.time()))
        self.client.served(requests.id)

    def _resume(self) -> float:
        """Return seconds of training done already, by the checkpoint this process goes on from."""
        path = self.client.resume_path(self.folder.path)
        position = position_of(Path(path)) if path is not None else self.folder.latest()
        return min(position, self.play.work)

    def _save(self, position: float) -> None:
        step = self.play.step(position / self.play.work) if self.play.work else 0
        if not self.client.speaks or step == self._saved:
            return
        try:
            path = self.folder.save(step, position, self.client.attempt_number)
        except OSError as fault:
            log.error("checkpoint of step %d not written: %s", step, fault)
            return
        self._saved = step
        self.client.checkpoint_saved(step, path)

    def _write_last_words(self, left: bool) -> None:
        last_words = {
            "attempt": self.client.attempt_number,
            "began": self.began,
            "ended": time.time(),
            "from": self.start,
            "to": self._position(),
            "left": left,
            "evals": self.evals[-32:],
            "asked": self.asked[-4:],
        }
        try:
            self.words.write_text(json.dumps(last_words))
        except OSError as fault:
            log.warning("last words not written: %s", fault)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.played", description=__doc__)
    numbers = _numbers
    parser.add_argument("--work", type=float, required=True, help="seconds of training")
    parser.add_argument("--at", type=numbers, default=(), help="shares of the training done at each eval")
    parser.add_argument("--scores", type=numbers, default=(), help="what each reports; nan: none")
    parser.add_argument("--stderrs", type=numbers, default=(), help="their standard errors; nan: unknown")
    parser.add_argument("--metric", default="score", help="its name")
    parser.add_argument("--checkpoints", type=Path, required=True, help="folder on the shared volume")
    parser.add_argument("--port", type=int, default=9400, help="of /metrics")
    given = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        play = Play(given.work, given.at, given.scores, given.stderrs, given.metric)
    except ValueError as error:
        parser.error(str(error))
    termination = Termination()
    termination.install()
    client = EvalStopClient(port=given.port)
    return Player(play, client, Folder(given.checkpoints), termination).run()


def _numbers(text: str) -> tuple[float, ...]:
    """Return numbers that are separated by commas."""
    return tuple(map(float, filter(None, text.split(","))))


if __name__ == "__main__":
    sys.exit(main())
