"""Checkpoints in the layout "Plain": written atomically, verified before use, rotated.

``<folder>/step-<N>/`` holds ``params.npz`` and ``manifest.json``::

    {"step": 400, "attempt": 1, "sequence": 40, "run": {…},
     "files": {"params.npz": {"size": 81234, "sha256": "<hex>"}}}

A checkpoint is complete if its manifest is there and every file it lists has that size and sha256. Files are
never changed in place, so that a hard link to one stays what it was. ``.evalstop/`` (the operator's) is read,
never written.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from examples.trainer.task import Floats

MANIFEST = "manifest.json"
PARAMETERS = "params.npz"
PINS = ".evalstop"  # the operator's folder of hard links: <uid>/<attempt>-<step>/
_TEMPORARY = ".tmp-"
_REPLACED = ".old-"
_NAME = re.compile(r"step-(\d{1,12})")

log = logging.getLogger(__name__)


class CheckpointError(Exception):
    """A checkpoint that cannot be used; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint whose manifest could be read.

    ``attempt`` is the operator's number it was written under. ``sequence`` counts the saves of the folder: a
    later attempt may go back to an earlier step, so steps alone do not tell which checkpoint is newest.
    """

    path: Path
    step: int
    attempt: int
    sequence: int
    run: Mapping[str, Any]
    files: Mapping[str, tuple[int, str]]  # name -> (bytes, sha256 hex)


def read(path: Path) -> Checkpoint:
    """Return the checkpoint in a folder, its manifest checked for form and its files not yet (see `load`).

    Raises:
        CheckpointError: there is no manifest, or it is not of the documented form.
    """
    try:
        document = json.loads((path / MANIFEST).read_bytes())
        files = {name: (int(f["size"]), str(f["sha256"])) for name, f in document["files"].items()}
        if any(Path(name).name != name for name in files):
            raise ValueError("file names must be plain names")
        attempt, sequence = int(document.get("attempt", 0)), int(document.get("sequence", 0))
        return Checkpoint(path, int(document["step"]), attempt, sequence, document.get("run", {}), files)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as fault:
        raise CheckpointError(
            f"{path}: no usable {MANIFEST} ({type(fault).__name__}: {fault}); "
            'expected {"step": N, "files": {"<name>": {"size": bytes, "sha256": "<hex>"}}}'
        ) from fault


def load(checkpoint: Checkpoint) -> dict[str, Floats]:
    """Its arrays by name, after every file's size and sha256 were found right.

    Raises:
        CheckpointError: a file is missing, short or altered.
    """
    contents: dict[str, bytes] = {}
    for name, (size, sha256) in checkpoint.files.items():
        try:
            contents[name] = (checkpoint.path / name).read_bytes()
        except OSError as fault:
            raise CheckpointError(f"{checkpoint.path}: {name} cannot be read: {fault}") from fault
        if len(contents[name]) != size:
            raise CheckpointError(f"{checkpoint.path}: {name} has {len(contents[name])} of {size} bytes")
        if hashlib.sha256(contents[name]).hexdigest() != sha256:
            raise CheckpointError(f"{checkpoint.path}: {name} differs from the sha256 in {MANIFEST}")
    if PARAMETERS not in contents:
        raise CheckpointError(f"{checkpoint.path}: {MANIFEST} lists no {PARAMETERS}")
    with np.load(io.BytesIO(contents[PARAMETERS]), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


class CheckpointFolder:
    """The folder a run writes its checkpoints to. One writer; readers may come at any time.

    Args:
        folder: created if it does not exist.
        keep: how many checkpoints rotation leaves.
    """

    def __init__(self, folder: Path, keep: int = 5) -> None:
        if keep < 1:
            raise ValueError(f"keep: expected an integer >= 1, got {keep}")
        self.folder = folder
        self.keep = keep

    def save(
        self,
        step: int,
        state: Mapping[str, Floats],
        *,
        attempt: int = 0,
        run: Mapping[str, object] | None = None,
    ) -> Path:
        """Write, make durable, publish under its name, rotate; returns the path.

        Raises:
            OSError: the folder cannot be written (full, read-only); nothing half-written has the name.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        buffer = io.BytesIO()
        np.savez(buffer, **dict(state))  # type: ignore[arg-type]
        content = buffer.getvalue()
        entry = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        manifest = {
            "step": step,
            "attempt": attempt,
            "sequence": max((c.sequence for c in self.all()), default=0) + 1,
            "run": dict(run or {}),
            "files": {PARAMETERS: entry},
        }
        final = self.folder / f"step-{step}"
        draft = self.folder / f"{_TEMPORARY}{final.name}-{os.getpid()}"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        try:
            _write(draft / PARAMETERS, content)
            _write(draft / MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())
            _sync(draft)
            self._publish(draft, final)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        self._rotate(final)
        return final

    def all(self) -> list[Checkpoint]:
        """Checkpoints with a usable manifest, in the order they were saved."""
        found = []
        for path in self._named():
            try:
                found.append(read(path))
            except CheckpointError as fault:
                log.warning("skipped: %s", fault)
        return sorted(found, key=lambda c: (c.sequence, c.step))

    def latest(self, attempt: int | None = None) -> tuple[Checkpoint, dict[str, Floats]] | None:
        """Return the newest complete checkpoint and its arrays, of this attempt or of any; None if there is
        none."""
        for checkpoint in reversed(self.all()):
            if attempt is not None and checkpoint.attempt != attempt:
                continue
            try:
                return checkpoint, load(checkpoint)
            except CheckpointError as fault:
                log.warning("skipped: %s", fault)
        return None

    def of_step(self, step: int) -> tuple[Checkpoint, dict[str, Floats]] | None:
        """Return a step's complete checkpoint and its arrays: from the folder or, after rotation, from
        a pin."""
        for path in (self.folder / f"step-{step}", *sorted(self.folder.glob(f"{PINS}/*/*-{step}"))):
            try:
                checkpoint = read(path)
                if checkpoint.step == step:
                    return checkpoint, load(checkpoint)
            except CheckpointError as fault:
                log.debug("skipped: %s", fault)
        return None

    def clean(self) -> None:
        """Remove what an earlier process left half done. For the one writer, before its first save."""
        for path in self._entries():
            if path.name.startswith((_TEMPORARY, _REPLACED)):
                shutil.rmtree(path, ignore_errors=True)

    def _publish(self, draft: Path, final: Path) -> None:
        """Give the draft its name. A former branch's checkpoint of the same step is moved out of the way."""
        aside = self.folder / f"{_REPLACED}{final.name}-{os.getpid()}"
        if final.exists():
            shutil.rmtree(aside, ignore_errors=True)
            final.rename(aside)
        draft.rename(final)
        _sync(self.folder)
        shutil.rmtree(aside, ignore_errors=True)

    def _rotate(self, newest: Path) -> None:
        """Keep the newest complete ones, whatever their step; folders without a usable manifest go."""
        kept = {newest, *(checkpoint.path for checkpoint in self.all()[-self.keep :])}
        for path in self._named():
            if path not in kept:
                # The manifest goes first: what is half removed is then seen to be incomplete.
                (path / MANIFEST).unlink(missing_ok=True)
                shutil.rmtree(path, ignore_errors=True)

    def _named(self) -> list[Path]:
        return [path for path in self._entries() if _NAME.fullmatch(path.name) and path.is_dir()]

    def _entries(self) -> Iterator[Path]:
        try:
            yield from sorted(self.folder.iterdir())
        except FileNotFoundError:
            return


def _write(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    """Make a folder's entries durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
