"""A trainer that swaps a file of its checkpoint for a link while the access program copies it.

The program runs as in its Job, on two volumes in a temporary folder; no kubelet of the bench's would mount
them. Another RLHFJob's retained weights lie where the link points.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from controller.checkpoints.access import answer
from controller.checkpoints.request import REQUEST_ENV, Request, Source
from tests.support.trainers_files import hugging_face, write

UID = "0f2a1b3c-0000-4000-8000-000000000001"
SHARD = "model-00001-of-00002.safetensors"
SECRET = hugging_face(7)[SHARD].replace(bytes(range(64)), b"S" * 64)
_SWAP = """
import os, sys, time
real, target = sys.argv[1:]
parent = os.getppid()
link, aside = real + ".link", real + ".aside"
os.symlink(target, link)
os.link(real, aside)
while os.getppid() == parent:
    time.sleep(0.001)
    os.rename(link, real)
    os.symlink(target, link)
    os.link(aside, real + ".new")
    os.rename(real + ".new", real)
"""


class Racer:
    """Two volumes, a saved checkpoint, its pin, and a process that swaps its file as fast as it can."""

    def __init__(self, folder: Path) -> None:
        self.location, self.retained = folder / "data" / "run", folder / "retained"
        self.others = write(self.retained / "other-aaaaa" / "10", {SHARD: SECRET}) / SHARD
        saved = write(self.location / "checkpoint-10", hugging_face(10))
        self._tries = 0
        self._ask("claim")
        self._pin = self._ask("secure", 10)
        self._swapped = saved / SHARD
        self._process: subprocess.Popen[bytes] | None = None

    def once(self) -> bool:
        """Pin and retain it once more while it is swapped; return whether another's weights came with it."""
        if self._process is None:
            command = [sys.executable, "-c", _SWAP, str(self._swapped), str(self.others)]
            self._process = subprocess.Popen(command)
        self._tries += 1
        self._ask("secure", 10)
        if self._pin.get("ok"):
            source = Source(str(self._pin["path"]), str(self._pin["digest"]), 10)
            self._ask("retain", 10, source=source, destination=str(self.retained / "run-0f2a1"))
        return any(self._stolen(place) for place in (self.location, self.retained / "run-0f2a1"))

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _stolen(self, place: Path) -> bool:
        """Whether they are in a copy; in its own folder the trainer may put whatever it can reach."""
        copies = (path for path in place.rglob("*.safetensors") if path.parent != self._swapped.parent)
        return any(path.read_bytes() == SECRET for path in copies if not path.is_symlink())

    def _ask(self, operation: str, step: int = 0, **more: object) -> dict[str, object]:
        request = Request(
            operation=operation,
            layout="HuggingFace",
            owner=UID,
            location=str(self.location),
            step=step,
            id=f"r{self._tries}",
            attempt="1",
            location_within=str(self.location.parent),
            destination_within=str(self.retained) if "destination" in more else "",
            **more,  # type: ignore[arg-type]
        )
        found: dict[str, object] = json.loads(answer({**os.environ, REQUEST_ENV: request.to_json()}))
        return found
