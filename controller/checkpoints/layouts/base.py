"""What layouts have in common: candidates, their files as one tree, and small questions all of them ask."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from controller.checkpoints.digest import Manifest
from controller.checkpoints.errors import Vanished
from controller.checkpoints.store import Store
from controller.checkpoints.weights import Content, truncation


@dataclass(frozen=True, slots=True)
class Candidate:
    """A checkpoint as its names promise it. ``parts``: (prefix inside it, folder in the store)."""

    step: int
    name: str  # the trainer's own name for it
    parts: tuple[tuple[str, str], ...]
    problem: str | None = None  # known from the names alone

    def content(self, store: Store) -> Folder:
        return Folder(store, self.parts)


class Folder:
    """A checkpoint's files as one tree, wherever its parts lie. Implements `weights.Content`."""

    def __init__(self, store: Store, parts: Sequence[tuple[str, str]]) -> None:
        self._store = store
        self._where: dict[str, str] = {}
        self._sizes: dict[str, int] = {}
        for prefix, folder in parts:
            for name, size in store.files(folder).items():
                inside = f"{prefix}/{name}" if prefix else name
                self._where[inside] = f"{folder}/{name}"
                self._sizes[inside] = size

    def files(self) -> Mapping[str, int]:
        return self._sizes

    def where(self, name: str) -> str:
        """The store's name of a file."""
        return self._where[name]

    def read(self, name: str, limit: int = 1 << 20) -> bytes:
        return self._store.read(self._where[name], limit)

    def read_range(self, name: str, start: int, length: int) -> bytes:
        return self._store.read_range(self._where[name], start, length)


class Layout(Protocol):
    name: str

    def candidates(self, store: Store) -> list[Candidate]:
        """Checkpoints by name, newest step first."""
        ...

    def problem(self, content: Content, step: int) -> str | None:
        """Why this is no complete checkpoint; None if it is. Reads names, sizes and small files only."""
        ...

    def mismatch(self, content: Content, manifest: Manifest) -> str | None:
        """Where content differs from what the checkpoint says of itself; None where it says nothing."""
        ...

    def own_name(self, step: int) -> str:
        """The folder name the trainer would give a checkpoint of this step."""
        ...

    def resume_files(self, step: int) -> Mapping[str, bytes]:
        """Small files beside the content without which the trainer does not find it when resuming."""
        ...


class Numbered:
    """Layouts whose checkpoint is one folder named by its step."""

    name = ""
    pattern: re.Pattern[str]
    form = ""

    def candidates(self, store: Store) -> list[Candidate]:
        found: list[Candidate] = []
        for folder in store.folders():
            match = self.pattern.fullmatch(folder)
            if match:
                found.append(Candidate(int(match["step"]), folder, (("", folder),)))
        return newest_first(found)

    def mismatch(self, content: Content, manifest: Manifest) -> str | None:
        return None

    def own_name(self, step: int) -> str:
        return self.form.format(step)

    def resume_files(self, step: int) -> Mapping[str, bytes]:
        return {}


def newest_first(found: list[Candidate]) -> list[Candidate]:
    """One candidate for each step, newest step first."""
    # step-5 and step-005 are the same step: the shorter name wins, whichever order the store lists them in.
    best: dict[int, Candidate] = {}
    for candidate in sorted(found, key=lambda c: (c.step, -len(c.name))):
        best[candidate.step] = candidate
    return sorted(best.values(), key=lambda c: -c.step)


def folders(store: Store, folder: str) -> list[str]:
    """The folders in a folder of the store; none when it is gone."""
    try:
        return store.folders(folder)
    except Vanished:
        return []


def truncated(content: Content) -> str | None:
    """The first file of weights that is shorter than it says of itself, in words; None: there is none."""
    for name in sorted(content.files()):
        if name.endswith((".safetensors", ".pt", ".pth", ".bin", ".distcp")):
            problem = truncation(content, name)
            if problem:
                return problem
    return None


def json_object(content: Content, name: str, limit: int = 1 << 20) -> dict[str, Any] | str:
    """A JSON object of the checkpoint, or why there is none."""
    if name not in content.files():
        return f"no {name}: the save is not finished, or this is no such checkpoint"
    try:
        document = json.loads(content.read(name, limit))
    except ValueError:
        return f"{name} is not whole JSON: the save is not finished"
    return document if isinstance(document, dict) else f"{name} holds no JSON object"
