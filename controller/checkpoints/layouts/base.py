"""Base of the layouts: candidates, their files as one tree, and small questions all of them ask."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from controller import bounded
from controller.checkpoints.digest import Manifest
from controller.checkpoints.errors import Vanished
from controller.checkpoints.store import Store, read_json
from controller.checkpoints.weights import Content, truncation
from controller.frozen import dataclass

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A checkpoint as its names promise it.

    ``parts``: (prefix inside it, folder in the store). ``files``: single files beside those folders, as (name
    inside it, name in the store).
    """

    step: int
    name: str  # the trainer's own name for it
    parts: tuple[tuple[str, str], ...]
    problem: str | None = None  # known from the names alone
    unproven: str | None = None  # why the location, as it is now, does not prove that it is whole
    files: tuple[tuple[str, str], ...] = ()

    def content(self, store: Store) -> Folder:
        return Folder(store, self.parts, self.files)


def entries(
    store: Store,
    listing: Callable[[str], Mapping[str, T]],
    parts: Sequence[tuple[str, str]],
    files: Sequence[tuple[str, str]],
) -> Iterator[tuple[str, str, T]]:
    """Yield of each file of a `Candidate`: its name inside it, its name in the store, what a listing of its
    folder has of it. Raises: Vanished, Damaged."""
    for prefix, folder in parts:
        for name, found in listing(folder).items():
            yield f"{prefix}/{name}" if prefix else name, f"{folder}/{name}", found
    for inside, name in files:
        folder, _, last = name.rpartition("/")
        there = listing(folder)
        if last not in there:
            raise Vanished(f"{store.path(name)} is not there")
        yield inside, name, there[last]


class Folder:
    """A checkpoint's files as one tree, wherever its parts lie. Implements `weights.Content`."""

    def __init__(
        self, store: Store, parts: Sequence[tuple[str, str]], files: Sequence[tuple[str, str]] = ()
    ) -> None:
        self._store = store
        self._where: dict[str, str] = {}
        self._sizes: dict[str, int] = {}
        for inside, name, size in entries(store, store.files, parts, files):
            self._where[inside], self._sizes[inside] = name, size

    def files(self) -> Mapping[str, int]:
        return self._sizes

    def where(self, name: str) -> str:
        """Return the store's name of a file."""
        return self._where[name]

    def read(self, name: str, limit: int = 1 << 20) -> bytes:
        return self._store.read(self._where[name], limit)

    def read_range(self, name: str, start: int, length: int) -> bytes:
        return self._store.read_range(self._where[name], start, length)


@dataclass(frozen=True, slots=True)
class Times:
    """Times (ns) at which a candidate's files were last written, and entries of its folders added or removed,
    where the store tells them. A trainer writes what ends a save last, a rotation takes entries away long
    after that; both times are the store's.
    """

    files: Mapping[str, int]
    folders: Mapping[str, int]  # by name inside the checkpoint; "." is its own

    def unaltered(self, *below: str) -> bool:
        """Return whether no entry of its folders was added or removed after its newest file was written.

        ``below``: of these folders and what lies in them alone; none: of all.
        """
        asked = [
            at
            for name, at in self.folders.items()
            if not below or any(f"{name}/".startswith(f"{one}/") for one in below)
        ]
        # A store that makes folders' times up (0, or now) says nothing by them.
        plausible = max(self.folders.values()) >= min(self.files.values())
        return plausible and max(asked, default=0) <= max(self.files.values())


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence that a format gives about one checkpoint alone.

    ``unfinished``: why its save is not through, as far as its trainer's order of writing says. ``unproven``:
    why this alone does not prove that every file is there; None: it does.
    """

    unfinished: str | None = None
    unproven: str | None = None
    sure: bool = False  # it lists every file with its size: no other checkpoint needs to be asked


class Layout(Protocol):
    name: str

    def candidates(self, store: Store) -> list[Candidate]:
        """Checkpoints by name, newest step first; there may be several of one step."""
        ...

    def problem(self, content: Content, step: int) -> str | None:
        """Return what is certainly wrong with it: a file that is listed and missing, cut off, of another
        step.

        Reads names, sizes, small files, and the beginnings and ends of large ones.
        """
        ...

    def evidence(self, content: Content, step: int, times: Times | None) -> Evidence:
        """Return whether the checkpoint says of itself that it is whole. ``times``: None where the store has
        none."""
        ...

    def mismatch(self, content: Content, manifest: Manifest) -> str | None:
        """Return where content differs from what the checkpoint says of itself; None where it says
        nothing."""
        ...

    def own_name(self, step: int) -> str:
        """Return the folder name the trainer would give a checkpoint of this step."""
        ...

    def resume_files(self, step: int) -> Mapping[str, bytes]:
        """Small files beside the content without which the trainer does not find it when resuming."""
        ...

    def fits(self, names: Collection[str]) -> str | None:
        """Return the file by which a checkpoint's content is known to be of this layout; None: it is not."""
        ...

    def loads(self, content: Content) -> str:
        """Return what loads the weights of a whole checkpoint: a call, or the merge that comes before it."""
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


def by_times(times: Times | None, *below: str) -> str | None:
    """Return why the folders' own times do not prove that nothing was taken away since the save.

    ``below``: of these folders and what lies in them alone; none: of all.
    """
    if times is None:
        return "the store does not tell when something was last removed from a folder"
    if not times.unaltered(*below):
        return "entries of its folder were added or removed after its last file was written"
    return None


def newest_first(found: list[Candidate]) -> list[Candidate]:
    """Return one candidate for each step, newest step first."""
    # step-5 and step-005 are the same step: the shorter name wins, whichever order the store lists them in.
    best: dict[int, Candidate] = {}
    for candidate in sorted(found, key=lambda c: (c.step, -len(c.name))):
        best[candidate.step] = candidate
    return sorted(best.values(), key=lambda c: -c.step)


def folders(store: Store, folder: str) -> list[str]:
    """Return the folders in a folder of the store; none when it is gone."""
    try:
        return store.folders(folder)
    except Vanished:
        return []


def truncated(content: Content) -> str | None:
    """Return the first file of weights that is shorter than it says of itself, in words; None: there is
    none."""
    for name in sorted(content.files()):
        if name.endswith((".safetensors", ".pt", ".pth", ".bin", ".distcp", ".json")):
            problem = truncation(content, name)
            if problem:
                return problem
    return None


def json_object(content: Content, name: str, limit: int = 1 << 20) -> dict[str, Any] | str:
    """Return a JSON object of the checkpoint, or why there is none."""
    if name not in content.files():
        return f"no {name}: the save is not finished, or this is no such checkpoint"
    try:
        document = read_json(content, name, limit, python=True)
    except bounded.Unbounded as error:
        return f"{error}: the save is not finished"
    return document if isinstance(document, dict) else f"{name} holds no JSON object"
