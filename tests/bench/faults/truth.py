"""What really happened in a run, read from the book that its trainers kept (`trainer`)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Files = Mapping[str, str]  # name -> sha256


@dataclass(slots=True)
class Eval:
    life: int
    step: int
    score: float
    stderr: float | None
    samples: int | None
    at: float  # s, right before it was reported


@dataclass(slots=True)
class Save:
    """``at``: when the save returned; ``gone``: s, the latest moment at which it was there for certain (the
    next save but it had begun), None: it was never missed."""

    life: int
    step: int
    files: Files
    at: float
    gone: float | None = None


@dataclass(slots=True)
class Life:
    number: int
    began: float
    attempt: str = ""
    last: float = 0.0  # s, its last line
    ended: bool = False  # by itself
    resumed: int = 0
    parent: int | None = None  # the life whose checkpoint it loaded
    evals: list[Eval] = field(default_factory=list)
    scrapes: list[float] = field(default_factory=list)  # s, when a page was made that somebody read
    ready: bool = False  # it has said where it starts


@dataclass(slots=True)
class Truth:
    lives: list[Life]
    saves: list[Save]

    @staticmethod
    def read(folder: Path) -> Truth:
        return Truth.of(_lines(folder / "life.jsonl"))

    @staticmethod
    def of(lines: Iterator[Mapping[str, Any]]) -> Truth:
        """From the lines of a book, in their order. A line that SIGKILL cut short counts for nothing."""
        lives: dict[int, Life] = {}
        saves: list[Save] = []
        present: dict[str, Save] = {}
        began: float | None = None
        for line in lines:
            number, at = int(line["life"]), float(line["time"])
            if line["what"] == "life":
                lives[number] = Life(number, at)
            life = lives[number]
            life.last = max(life.last, at)  # a scrape's line comes after its time
            match line["what"]:
                case "loaded":
                    files = dict(line["files"])
                    same = next((s for s in reversed(saves) if s.files == files), None)
                    life.parent = same.life if same is not None else None
                case "resumed":
                    life.resumed, life.ready = int(line["step"]), True
                case "eval":
                    e = Eval(number, int(line["step"]), line["score"], line["stderr"], line["samples"], at)
                    life.evals.append(e)
                    life.attempt = line["attempt"]
                case "saving":
                    began = at
                case "saved":
                    save = Save(number, int(line["step"]), dict(line["files"]), at)
                    saves.append(save)
                    left = {*line["left"]}
                    for name in [n for n in present if n not in left or n == line["name"]]:
                        present.pop(name).gone = began
                    present[line["name"]] = save
                case "scraped":
                    life.scrapes.append(at)
                case "end":
                    life.ended = True
        return Truth([lives[n] for n in sorted(lives)], saves)

    def branch(self, number: int) -> list[Eval]:
        """The evals that led to this life, and its own: those of its parents up to where it went on."""
        life = self.lives[number]
        own = list(life.evals)
        if life.parent is None or life.parent == number:
            return own
        return [e for e in self.branch(life.parent) if e.step <= life.resumed] + own

    def score_of(self, files: Files) -> tuple[Save, float | None] | None:
        """The save that had exactly these files, and the score of its step in its life; None: no save had."""
        for save in reversed(self.saves):
            if dict(save.files) == dict(files):
                found = (e.score for e in self.lives[save.life].evals if e.step == save.step)
                return save, next(found, None)
        return None


def contents(folder: Path) -> Files:
    """name -> sha256 of every file below a folder; what goes away meanwhile is not there."""
    found = {}
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            try:
                found[str(file.relative_to(folder))] = hashlib.sha256(file.read_bytes()).hexdigest()
            except FileNotFoundError:
                continue
    return found


def kept_below(folder: Path, truth: Truth) -> list[tuple[Path, Save, float | None]]:
    """Every folder below that holds, byte for byte, what a save of the run wrote; with that eval's score."""
    found = []
    for manifest in sorted(folder.rglob("manifest.json")) if folder.is_dir() else ():
        known = truth.score_of(contents(manifest.parent))
        if known is not None:
            found.append((manifest.parent, *known))
    return found


def _lines(path: Path) -> Iterator[Mapping[str, Any]]:
    if not path.is_file():
        return
    for line in path.read_text().splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue
