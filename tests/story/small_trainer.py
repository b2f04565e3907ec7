"""A trainer that computes nothing: rising or falling scores, Plain checkpoints, all by the real client.

It starts in a tenth of the time that one with NumPy takes, and goes on until it is told to leave.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import sys
import threading
from pathlib import Path

from evalstop_client.client import EvalStopClient

EVERY = 1.0  # s between evals
KEPT = 4


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--host")
    parser.add_argument("--keep", type=int, default=KEPT, help="checkpoints")
    parser.add_argument("--falls-after", type=int, metavar="EVALS", help="from then on it gets worse")
    given = parser.parse_args()
    leave = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: leave.set())
    if os.environ.get("JOB_COMPLETION_INDEX", "0") != "0":  # only the first of a gang speaks and saves
        leave.wait()
        return 143
    client = EvalStopClient(host=given.host, port=9400)
    client.serve()
    step = 0
    while not leave.wait(EVERY):
        step += 10
        client.set_progress(step, 100_000)
        client.checkpoint_saved(step, save(given.checkpoints, step, given.keep))
        client.report_eval("gold_reward", step, score(step, given.falls_after), stderr=0.01, samples=100)
        client.report_eval("response_length", step, 100.0)
    client.close()
    return 143


def score(step: int, falls_after: int | None) -> float:
    peak = step if falls_after is None else 10 * falls_after
    return 0.5 + min(step, peak) / 1e4 - 0.005 * max(0, step - peak)


def save(folder: Path, step: int, keep: int) -> Path:
    """Write a checkpoint, publish it under its name, and remove the oldest."""
    content = f"parameters of step {step}".encode()
    files = {"params.npz": {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}}
    made, place = folder / f".tmp-{step}", folder / f"step-{step}"
    made.mkdir(parents=True)
    (made / "params.npz").write_bytes(content)
    (made / "manifest.json").write_text(json.dumps({"step": step, "files": files}))
    made.rename(place)
    old = folder / f"step-{step - keep * 10}"
    for name in ("params.npz", "manifest.json"):
        (old / name).unlink(missing_ok=True)
    if old.exists():
        old.rmdir()
    return place


if __name__ == "__main__":
    sys.exit(main())
