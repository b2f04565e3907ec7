"""A trainer that saves, and has its checkpoints evaluated by processes of their own: docs/use/trainers.md.

It serves no page itself. It computes nothing: scores rise, then fall.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from evalstop_client.client import EvalStopClient
from tests.story.small_trainer import save, score

SAVES = 3  # of which the last is evaluated


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--falls-after", type=int, default=5, metavar="SAVES")
    parser.add_argument("--evaluate", type=int, metavar="STEP")
    parser.add_argument("--apart", action="store_true", help="evaluations do not report as the trainer")
    given = parser.parse_args()
    return evaluation(given.evaluate, given.falls_after) if given.evaluate else training(given)


def training(given: argparse.Namespace) -> int:
    leave = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: leave.set())
    client = EvalStopClient()
    evaluator: subprocess.Popen[bytes] | None = None
    step = 0
    while not leave.wait(0.3):
        step += 10
        client.checkpoint_saved(step, save(given.checkpoints, step, keep=1000))
        if step % (10 * SAVES):
            continue
        if evaluator is not None:
            evaluator.communicate()
        command = [sys.executable, "-m", "tests.story.split_trainer", *sys.argv[1:], f"--evaluate={step}"]
        environment = {} if given.apart else client.environment()
        evaluator = subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ, **environment})
    return 143


def evaluation(step: int, falls_after: int) -> int:
    client = EvalStopClient()
    client.serve()
    client.report_eval("gold_reward", step, score(step, falls_after), stderr=0.001, samples=100)
    sys.stdin.read()
    end = time.monotonic() + 2 * client.scrape_interval
    while not client.all_read and time.monotonic() < end:
        time.sleep(0.1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
