"""A run of one pod, or of two that agree over TCP: it trains nothing, and saves and reports as trainers do.

    python3 trainer.py FOLDER

Of two pods the second reaches the first by its name behind the Service (RANK_0), as torchrun's do. Each rank
writes down what it was asked for, and at which step, in FOLDER/acts<rank>.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
from safetensors.numpy import save_file

from evalstop_client.ranks import Ranks
from evalstop_client.run import Run

PORT = 29500
STEP_S = 0.25
EVERY = 20  # steps between two evals
PEAK, STEPS = 6, 4000  # evals until the score falls; steps in all


class SocketRanks(Ranks):
    """One of two ranks, each in a pod of its own. Each call waits for the other rank's, as collectives do."""

    size = 2

    def __init__(self, line: socket.socket) -> None:
        self._line, self._said = line, line.makefile("r", encoding="utf-8")

    @classmethod
    def met(cls, rank: int, first: str) -> SocketRanks:
        """Return the rank once it has met the other one; ``first``: host name of rank 0."""
        if rank == 0:
            with socket.create_server(("", PORT)) as server:
                return cls(server.accept()[0])
        while True:
            try:
                line = socket.create_connection((first, PORT), timeout=5.0)
                line.settimeout(None)  # a rank that leaves the other one alone ends the agreement
                return cls(line)
            except OSError:  # its pod, or its name, is not there yet
                time.sleep(0.2)

    def highest(self, values: Sequence[int]) -> list[int]:
        return [max(pair) for pair in zip(values, self._exchange("highest", list(values)), strict=True)]

    def one(self, text: str | None) -> str | None:
        return text or self._exchange("one", text)

    def barrier(self) -> None:
        self._exchange("barrier", None)

    def _exchange(self, what: str, value: Any) -> Any:
        self._line.sendall(json.dumps([what, value]).encode() + b"\n")
        other, found = json.loads(self._said.readline())
        if other != what:
            raise RuntimeError(f"collective mismatch: {what} here, {other} there")
        return found


def save(step: int, folder: Path) -> Path:
    """Return the step's checkpoint: weights by safetensors, and the layout Plain's list of them."""
    made = folder / f"step-{step}"
    made.mkdir(parents=True, exist_ok=True)
    weights = made / "model.safetensors"
    save_file({"weight": numpy.full(4096, float(step), dtype=numpy.float32)}, weights)
    entry = {"size": weights.stat().st_size, "sha256": hashlib.sha256(weights.read_bytes()).hexdigest()}
    (made / "manifest.json").write_text(json.dumps({"step": step, "files": {weights.name: entry}}))
    return made


def main() -> None:
    folder, rank = Path(sys.argv[1]), int(os.environ["JOB_COMPLETION_INDEX"])
    first = os.environ.get("RANK_0")
    run = Run("score", ranks=SocketRanks.met(rank, first) if first else Ranks())
    folder.mkdir(parents=True, exist_ok=True)
    run.begin(0, STEPS)
    with (folder / f"acts{rank}").open("a", buffering=1) as acts:
        for step in range(1, STEPS + 1):
            time.sleep(STEP_S)
            wanted = run.step(step, STEPS)
            if wanted.checkpoint or wanted.evaluate or wanted.stop:
                told = "leaving" if run.leaving else f"request {wanted.id}"
                acts.write(
                    f"{told}: step {step}, eval {wanted.evaluate}, save {wanted.checkpoint}, "
                    f"stop {wanted.stop}\n"
                )
            if step % EVERY == 0 or wanted.checkpoint:
                run.saved(step, save(step, folder) if rank == 0 else folder / f"step-{step}", folder)
            if step % EVERY == 0 or wanted.evaluate:
                run.evaluated(step, 1.0 - abs(PEAK - step / EVERY) * 0.1, samples=1000)
            if run.ends:
                break
    run.finish()


if __name__ == "__main__":
    main()
