"""Inputs that once found something: replayed by every `make test`, and where mutations start from, too."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

from tests.fuzz.target import Finding, Target

FOLDER = Path(__file__).with_name("corpus")
_PACKED = 2048  # bytes from which on an input is kept compressed: mostly it repeats itself


def load(target: Target, folder: Path = FOLDER) -> list[Path]:
    """The files of a target's inputs."""
    return sorted(path for path in (folder / target.name).glob("*") if path.is_file())


def read(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data


def save(finding: Finding, folder: Path) -> Path:
    """Write a finding's input; returns its file, in a folder of the target's name."""
    name = hashlib.sha256(finding.data).hexdigest()[:12]
    packed = len(finding.data) > _PACKED
    path = folder / finding.target / (f"{name}.gz" if packed else name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(finding.data, mtime=0) if packed else finding.data)
    return path
