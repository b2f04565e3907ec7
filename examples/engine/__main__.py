"""``python -m examples.engine --socket PATH``: serve until SIGTERM."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from examples.engine.batching import Batch, Times
from examples.engine.server import Server


def main() -> int:
    default = Times()
    parser = argparse.ArgumentParser(
        prog="python -m examples.engine",
        description="A small rollout engine: continuous batching by a NumPy model, at the pace it is told.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--socket", type=Path, required=True, help="Unix socket to listen on")
    parser.add_argument("--slots", type=_slots, default=8, help="responses that are live at a time")
    parser.add_argument("--iteration", type=_seconds, default=default.iteration, help="s of an iteration")
    parser.add_argument(
        "--sequence", type=_seconds, default=default.sequence, help="s on top for each live response"
    )
    parser.add_argument(
        "--prefill", type=_seconds, default=default.prefill, help="s for each token of a prefill"
    )
    parser.add_argument(
        "--start", type=_seconds, default=0.0, help="s that the start takes, as loading a model does"
    )
    parser.add_argument(
        "--weights", type=Path, metavar="DIR", help="shared folder of weights; without it they are pushed"
    )
    given = parser.parse_args()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    if given.start:
        until = time.monotonic() + given.start
        while not stop.is_set() and (left := until - time.monotonic()) > 0:
            stop.wait(min(left, 0.5))
    batch = Batch(given.slots, Times(given.iteration, given.sequence, given.prefill))
    try:
        server = Server(given.socket, batch, given.weights)
    except OSError as fault:
        print(f"--socket {given.socket}: {fault}", file=sys.stderr)
        return 1
    worker = threading.Thread(target=batch.run, name="batch", daemon=True)
    worker.start()
    serving = threading.Thread(target=server.serve_forever, args=(0.1,), name="server", daemon=True)
    serving.start()
    while not stop.is_set() and worker.is_alive():
        stop.wait(0.5)
    batch.close()
    server.server_close()
    given.socket.unlink(missing_ok=True)
    return 0 if stop.is_set() else 1


def _slots(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 4096:
        raise argparse.ArgumentTypeError(f"expected 1 to 4096, got {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 3600.0:
        raise argparse.ArgumentTypeError(f"expected 0 to 3600 s, got {text!r}")
    return value


if __name__ == "__main__":
    sys.exit(main())
