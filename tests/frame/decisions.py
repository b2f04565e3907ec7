"""The same histories and decision logs by the code of two trees, each in processes of its own, compared.

Each slot has one process of either tree. They take turns, because both play in the same folder: its path
stands in what is decided, so it has to be the same.

A change of decisions that was meant is named by a patch that undoes it (``meant`` of the rename table). The
tree after is played with all such changes undone: then it must be equal byte for byte. The first histories
are played as they are too, and with each change undone alone, which tells by which of them they differ.
"""

from __future__ import annotations

import difflib
import json
import lzma
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, TextIO

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LOGS = HERE / "logs"
CHUNK = 10  # histories that one tree plays before it is the other's turn
EACH = 20  # histories of which is told by which change that was meant they differ
SHOWN = 3  # differences that are printed in full
LINES = 80  # of each of those
EVERY = 10.0  # s between two lines of progress


class Failed(Exception):
    """A tree cannot be played at all."""


class Player:
    """A process that answers `recorder.py`'s commands by the code of one tree.

    Args:
        tree: its root. side: "before" or "after". words: table ``decisions`` of words.toml.
        root: the folder in which it plays, made anew for each history.
    """

    def __init__(self, tree: Path, side: str, words: Mapping[str, Any], root: Path) -> None:
        self.tree = tree
        environment = {
            **os.environ,
            "PYTHONPATH": str(tree),
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(HERE / "recorder.py")],
            cwd=tree,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.at = self.ask(side=side, words=dict(words), root=str(root))["at"]

    def ask(self, **command: Any) -> dict[str, Any]:
        """Raise `Failed` where there is no answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise Failed(f"{self.tree}: the process that plays it ended, {self._process.wait()}")
        said: dict[str, Any] = json.loads(line)
        if "error" in said:
            raise Failed(f"{self.tree}: {said['error']}")
        return said

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait()


@dataclass
class Result:
    """What came of it.

    Attributes:
        done: how many histories or lines.
        counts: records by hook, of the tree before.
        meant: how many were equal once a change that was meant was undone, by the names of these.
        together: how many were equal once all of these were undone, and played in no other way.
        differ: where, and both sides.
    """

    done: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    meant: Counter[str] = field(default_factory=Counter)
    together: int = 0
    differ: list[tuple[str, str]] = field(default_factory=list)


def undone(after: Path, meant: Mapping[str, str], folder: Path) -> dict[str, Path]:
    """Write trees like ``after`` in which changes that were meant are undone.

    Args:
        after: root of the tree after.
        meant: by patch that undoes a change of ``controller/``, why it was made.
        folder: an empty one for the trees.

    Returns:
        By name, the root of a tree: one for each change alone, and one without any of them.

    Raises:
        Failed: a patch does not fit the tree.
    """
    patches = [Path(name) for name in meant]
    chosen = {patch.stem: [patch] for patch in patches}
    if len(patches) > 1:
        chosen["several"] = patches
    for name, some in chosen.items():
        tree = folder / name
        tree.mkdir(parents=True)
        for entry in after.iterdir():
            if entry.name not in ("controller", ".git"):
                (tree / entry.name).symlink_to(entry)
        shutil.copytree(
            after / "controller", tree / "controller", ignore=shutil.ignore_patterns("__pycache__")
        )
        for patch in some:
            applied = subprocess.run(
                ["git", "apply", "--include=controller/*", str(patch.resolve())],
                cwd=tree,
                env={**os.environ, "GIT_CEILING_DIRECTORIES": str(tree.parent.resolve())},
                capture_output=True,
                text=True,
            )
            if applied.returncode:
                raise Failed(f"{patch.name} does not undo its change of {after}: {applied.stderr.strip()}")
    return {name: folder / name for name in chosen}


def commit_of(tree: Path) -> str:
    """Return the commit that is checked out there.

    Raises:
        Failed: it is no checkout.
    """
    asked = subprocess.run(["git", "-C", str(tree), "rev-parse", "HEAD"], capture_output=True, text=True)
    if asked.returncode:
        raise Failed(f"{tree}: {asked.stderr.strip()}; without its commit, name the rename table by --words")
    return asked.stdout.strip()


class Pair:
    """Both trees in one slot, and those like the second in which changes are undone (`undone`)."""

    def __init__(
        self,
        before: Path,
        after: Path,
        words: Mapping[str, Any],
        root: Path,
        without: Mapping[str, Path] | None = None,
    ) -> None:
        self._terms: tuple[Mapping[str, Any], Path] = (words, root)
        self._without = dict(without or {})
        self._playing: dict[str, Player] = {}  # of those, once one was asked for
        self.before = Player(before, "before", words, root)
        try:
            self.after = Player(after, "after", words, root)
        except Failed:
            self.before.close()
            raise

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_: object) -> None:
        for player in (self.before, self.after, *self._playing.values()):
            player.close()

    def together(self, seeds: list[int]) -> Iterator[tuple[int, dict[str, int], str]]:
        """Return (seed, records by hook, how they differ or "") of each, all meant changes undone."""
        players = (self.before, self._all_undone())
        sides = [[player.ask(play=seed) for seed in seeds] for player in players]
        for seed, a, b in zip(seeds, *sides, strict=True):
            yield seed, a["counts"], "" if _same(a, b) else self.explained(seed)

    def each(self, seeds: list[int]) -> Iterator[tuple[int, dict[str, int], str, str]]:
        """Return (seed, records by hook, change that was meant or "", how they differ or "") of each."""
        sides = [[player.ask(play=seed) for seed in seeds] for player in (self.before, self.after)]
        for seed, a, b in zip(seeds, *sides, strict=True):
            if _same(a, b):
                yield seed, a["counts"], "", ""
                continue
            name = next((n for n in self._without if _same(a, self._undone(n).ask(play=seed))), "")
            yield seed, a["counts"], name, "" if name else self.explained(seed)

    def _undone(self, name: str) -> Player:
        if name not in self._playing:
            words, root = self._terms
            self._playing[name] = Player(self._without[name], "after", words, root)
        return self._playing[name]

    def _all_undone(self) -> Player:
        """Return the player of the tree after without any of the changes that were meant."""
        last = list(self._without)[-1:]
        return self._undone(last[0]) if last else self.after

    def explained(self, seed: int) -> str:
        """Return the first record of a history that the two trees wrote otherwise, both sides.

        Of the tree after as it is without any of the changes that were meant.
        """
        players = (self.before, self._all_undone())
        sides = [player.ask(play=seed, digests=True)["digests"] for player in players]
        pairs = enumerate(zip(*sides, strict=False))
        number = next((n for n, (x, y) in pairs if x != y), min(map(len, sides)))
        texts = [player.ask(play=seed, show=number)["shown"] for player in players]
        return f"record {number} of {len(sides[0])} and {len(sides[1])}\n{unified(*texts)}"

    def logged(self, lines: Iterator[str]) -> Iterator[tuple[int, str, str]]:
        """(line, kind, how it differs or "") of each line of a decision log, decided anew by both."""
        version = self.after.ask(version=True)["version"]
        for number, line in enumerate(lines, start=1):
            a = self.before.ask(replay=line, version=version)
            if not a["same"]:
                raise Failed(f"line {number}: {self.before.tree} did not write this log")
            b = self.after.ask(replay=a["line"])
            yield (
                number,
                a["kind"],
                "" if a["text"] == b["text"] and b["same"] else unified(a["text"], b["text"]),
            )


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return (one["digest"], one["counts"]) == (other["digest"], other["counts"])


def unified(before: str, after: str) -> str:
    """Both texts as indented JSON, and where they differ."""
    sides = [json.dumps(json.loads(text), indent=1).splitlines() if text else [] for text in (before, after)]
    what = sides[0] or sides[1]
    head = next((line.strip() for line in what if line.startswith(' "of"')), "")
    lines = list(difflib.unified_diff(*sides, "before", "after", n=6, lineterm=""))
    return "\n".join([head, *lines]) if lines else f"{head}\n(the same, but not what follows from it)"


def histories(
    before: Path,
    after: Path,
    words: Mapping[str, Any],
    seeds: range,
    jobs: int,
    each: int = EACH,
    out: TextIO = sys.stderr,
) -> Result:
    """Play the histories of ``seeds`` by both trees on ``jobs`` cores.

    Args:
        each: of so many of the first is told by which change that was meant they differ: that takes a play
            for each such change. The others are played by two trees alone.

    Raises:
        Failed: a tree cannot be played.
    """
    chunks: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
    bounds = [seeds.start, *range(min(seeds.start + each, seeds.stop), seeds.stop, CHUNK), seeds.stop]
    for first, end in pairwise(bounds):
        for start in range(first, end, CHUNK):
            chunks.put(list(range(start, min(start + CHUNK, end))))
    result, lock, failed = Result(), threading.Lock(), list[Exception]()
    shm = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="evalstop-frame-", dir=shm if shm.is_dir() else None))
    try:
        without = undone(after, words.get("meant", {}), folder / "undone")
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise

    def work(slot: int) -> None:
        try:
            with Pair(before, after, words, folder / str(slot), without) as pair:
                while not failed:
                    try:
                        some = chunks.get_nowait()
                    except queue.Empty:
                        return
                    alone = some[0] < seeds.start + each or not without
                    played = pair.each(some) if alone else ((s, c, "", d) for s, c, d in pair.together(some))
                    for seed, counts, meant, difference in played:
                        with lock:
                            result.done += 1
                            result.counts.update(counts)
                            result.meant.update([meant] if meant else [])
                            result.together += not alone and not difference
                            if difference:
                                result.differ.append((f"seed {seed}", difference))
        except Exception as error:
            failed.append(error)

    began = time.monotonic()
    threads = [
        threading.Thread(target=work, args=(slot,)) for slot in range(min(jobs, max(1, chunks.qsize())))
    ]
    try:
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            threads[0].join(EVERY) if threads[0].is_alive() else time.sleep(0.1)
            _progress(result, len(seeds), time.monotonic() - began, out)
    except BaseException:
        failed.append(Failed("interrupted"))  # so that the threads end
        raise
    finally:
        for thread in threads:
            thread.join()
        shutil.rmtree(folder, ignore_errors=True)
    if failed:
        raise failed[0]
    return result


def _progress(result: Result, total: int, seconds: float, out: TextIO) -> None:
    rate = result.done / seconds if seconds else 0.0
    left = f"{(total - result.done) / rate / 60:.1f} min left" if rate else "starting"
    print(
        f"{result.done}/{total} histories, {rate:.2f} a second, {left}, {len(result.differ)} differ",
        file=out,
        flush=True,
    )


def logs(before: Path, after: Path, words: Mapping[str, Any], paths: list[Path]) -> Result:
    """Replay decision logs (``.jsonl`` or ``.jsonl.xz``) by both trees.

    Raises:
        Failed: a log was not written by the tree before, or cannot be read.
    """
    result = Result()
    with tempfile.TemporaryDirectory() as folder, Pair(before, after, words, Path(folder)) as pair:
        for path in paths:
            with lzma.open(path, "rt") if path.suffix == ".xz" else path.open() as lines:
                try:
                    for number, kind, difference in pair.logged(line for line in lines if line.strip()):
                        result.done += 1
                        result.counts[kind] += 1
                        if difference:
                            result.differ.append((f"{path.name} line {number}", difference))
                except Failed as error:
                    raise Failed(f"{path}: {error}") from None
    return result


def report(what: str, result: Result, folder: Path) -> int:
    """Print what came of it; the differences in full go to files in ``folder``. 1: there are some."""
    counted = ", ".join(f"{number} {name}" for name, number in sorted(result.counts.items()))
    for number, (where, text) in enumerate(sorted(result.differ)[:SHOWN]):
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{where.replace(' ', '-')}.diff"
        path.write_text(text + "\n")
        lines = text.splitlines()
        print(f"{where}: {lines[0]}", *lines[1:LINES], sep="\n")
        if len(lines) > LINES:
            print(f"… {len(lines) - LINES} more lines in {path}")
        if number == SHOWN - 1 and len(result.differ) > SHOWN:
            print(
                f"… and {len(result.differ) - SHOWN} more:",
                ", ".join(name for name, _ in sorted(result.differ)[SHOWN:][:20]),
            )
    for name, number in sorted(result.meant.items()):
        print(f"{number} equal once this change is undone: {name}")
    if result.meant or result.together:
        as_they_are = result.done - result.meant.total() - result.together - len(result.differ)
        print(f"{as_they_are} equal as they are")
    if result.together:
        print(f"{result.together} equal once all changes that were meant are undone, played in no other way")
    print(f"{result.done} {what} ({counted}): {len(result.differ) or 'none'} differ")
    return 1 if result.differ else 0
