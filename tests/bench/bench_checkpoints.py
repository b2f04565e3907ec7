"""Securing and retaining a checkpoint, beside the shell commands that do the same work on as many cores.

Securing reads each file once for its sha256: `sha256sum`, as many files at a time as there are cores.
Retaining copies, flushes and reads back from the device: `cp`, `sync`, `sha256sum`. Both take turns on the
same files.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from controller.checkpoints.access import carry_out
from controller.checkpoints.request import Request, Source
from tests.bench.rows import Row

FILES, SIZE = 8, 2 * 10**9  # bytes in all
ROUNDS = 3
STEP = 100
OWNER = "bench-uid"


def run(progress: Callable[[str], None]) -> Iterator[Row]:
    """Yield rates in GB/s: the product's, and as the baseline the shell's. The goal is a ratio of 0.8."""
    where = Path(os.environ.get("EVALSTOP_BENCH_FOLDER", "build"))
    where.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=where, prefix="checkpoints-") as name:
        folder = Path(name).resolve()
        save(folder / "location")
        cores = len(os.sched_getaffinity(0))
        progress(f"{SIZE / 1e9:g} GB in {FILES} files, {cores} cores, in {folder}")
        rates: dict[str, list[float]] = {}
        for number in range(ROUNDS):
            for what, seconds in one_round(folder, cores).items():
                rates.setdefault(what, []).append(SIZE / 1e9 / seconds)
                progress(f"round {number + 1}: {what} {seconds:.1f} s")
        for what in ("secure", "retain"):
            ours, shell = rates[what], rates[f"{what}, shell"]
            ratio = statistics.median(a / b for a, b in zip(ours, shell, strict=True))
            baseline = statistics.median(shell)
            yield Row(f"checkpoints: {what}", ratio * baseline, "GB/s", baseline)


def save(location: Path) -> None:
    """Write a checkpoint of layout Plain: its shards, and the manifest that says what they are."""
    folder = location / f"step-{STEP}"
    folder.mkdir(parents=True)
    block, listed = os.urandom(1 << 20), {}
    for number in range(FILES):
        path, left = folder / f"shard-{number}.bin", SIZE // FILES
        with path.open("wb") as file:
            while left:
                left -= file.write(block[: min(left, len(block))])
        told = subprocess.run(["sha256sum", path], capture_output=True, text=True, check=True).stdout
        listed[path.name] = {"size": SIZE // FILES, "sha256": told.split()[0]}
    (folder / "manifest.json").write_text(json.dumps({"step": STEP, "files": listed}))
    subprocess.run(["sync", "-f", folder], check=True)


def one_round(folder: Path, cores: int) -> dict[str, float]:
    """Return seconds of each, the files in memory for all alike."""
    location, source = folder / "location", folder / "location" / f"step-{STEP}"
    shutil.rmtree(location / ".evalstop", ignore_errors=True)
    for place in ("retained", "copied"):
        shutil.rmtree(folder / place, ignore_errors=True)
    (folder / "retained").mkdir()
    subprocess.run(["sync", "-f", folder], check=True)
    # As the product does, the copy is read back from the device: what the kernel remembers of it is dropped.
    each = f"find . -type f -print0 | xargs -0 -P{cores}"
    copied = (
        f"mkdir ../../copied && {each} -I% cp --reflink=never % ../../copied/% && cd ../../copied"
        f" && {each} -n1 sync && {each} -I% dd if=% iflag=nocache count=0 status=none && {each} -n1 sha256sum"
    )
    hashed, found = f"{each} -n1 sha256sum", {}
    shell(hashed, source)
    found["secure, shell"] = shell(hashed, source)
    began = time.monotonic()
    pinned = carry_out(Request("secure", "Plain", OWNER, str(location), STEP))
    found["secure"] = time.monotonic() - began
    found["retain, shell"] = shell(copied, source)
    made = Source(pinned.path, pinned.digest, STEP)
    request = Request(
        "retain", "Plain", OWNER, str(location), STEP, source=made, destination=str(folder / "retained")
    )
    began = time.monotonic()
    assert carry_out(request).digest == pinned.digest
    found["retain"] = time.monotonic() - began
    return found


def shell(command: str, folder: Path) -> float:
    """Return the seconds that a command takes in a folder."""
    began = time.monotonic()
    subprocess.run(["sh", "-ec", command], cwd=folder, stdout=subprocess.DEVNULL, check=True)
    return time.monotonic() - began
