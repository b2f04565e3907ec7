"""A model of an RLHF trainer, and the truth about it: what it evaluated, and what it wrote to its folder.

A life is one process of it. Its files are known byte for byte from the moment when a save returned; nothing
here reads what the product says of them.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from tests.support.trainers_files import dcp_metadata, torch_file

EVALS_ON_A_PAGE = 32


@dataclass(eq=False)
class Eval:
    """One evaluation. ``fault``: its score says nothing of the policy ("outlier", "nan", "nothing")."""

    step: int
    score: float
    life: Life
    at: float
    evaluator: str
    fault: str = ""
    guard: float | None = None
    shown: float | None = None  # s, when a scrape of the operator's first had it
    recorded: bool = False  # a status was written since it was shown
    samples: int | None = None
    stderr: float | None = None
    jumps: bool = False  # so far from the one before that a gate may wait for others, and drop it
    follows: bool = False  # one that jumps, and lies far from what a gate compares with if it drops that one
    young: bool = False  # so early of its process and evaluator that later ones may still show it was none
    left: bool = False  # the run went on from before it, and that was seen
    doubtful: bool = False  # it came with the news of another evaluator


@dataclass(eq=False)
class Saved:
    """A checkpoint whose save has returned. ``print``: fingerprint of its files."""

    step: int
    life: Life
    name: str
    files: dict[str, bytes]
    print: str
    lies: bool = True  # whole in the trainer's folder
    there: bool = True  # some of its files are, under the names it wrote
    spoilt: bool = False  # other bytes were written into its very files: its hard links hold those too


@dataclass(eq=False)
class Life:
    """A trainer process."""

    text: str  # "<attempt number>-<life>", as it calls itself
    number: int
    pod: str
    pod_created: float
    born: float
    source: Saved | None = None  # what it resumed from
    resumed: int = 0
    tells: bool = True  # its page says from which step it resumed
    by_hand: bool = (
        False  # not the operator has started it: its page is refused, and told, or it is started anew
    )
    before: tuple[Eval, ...] = ()  # evals on the way to what it resumed from
    evals: list[Eval] = field(default_factory=list)
    step: int = 0
    evaluator: str = "1"
    checkpoint_step: int | None = None
    served: int = 0
    alive: bool = True
    read: bool = False  # a scrape of the operator's met its page
    claimed: bool = False  # the folder was claimed while it ran
    saving: tuple[int, list[tuple[str, bytes]]] | None = None  # step, files still to be written

    @property
    def branch(self) -> list[Eval]:
        """All evals on the way to where it stands."""
        return [*self.before, *self.evals]

    def page(self) -> list[Eval]:
        return self.evals[-EVALS_ON_A_PAGE:]


@lru_cache(maxsize=256)
def _metadata(shards: tuple[tuple[str, int], ...]) -> bytes:
    return dcp_metadata(dict(shards))


def fingerprint(files: Iterable[tuple[str, bytes]]) -> str:
    total = hashlib.sha256()
    for name, data in sorted(files):
        total.update(f"{name} {len(data)} ".encode() + hashlib.sha256(data).digest())
    return total.hexdigest()


def read(folder: Path) -> Iterator[tuple[str, bytes]]:
    """(relative name, bytes) of all files below a folder."""
    for path, _, names in os.walk(folder):
        for name in names:
            full = os.path.join(path, name)
            with open(full, "rb") as file:
                yield os.path.relpath(full, folder), file.read()


class Files:
    """A trainer's checkpoint folder, written as real trainers of that layout write theirs.

    Args:
        layout: "Plain", "HuggingFace", or "HuggingFace/FSDP", whose ranks save side by side.
    """

    def __init__(self, folder: Path, layout: str) -> None:
        self.folder, self.layout = folder, layout
        self.saved: list[Saved] = []
        self.written = 0
        self.changes = 0  # by which pins may hold other bytes: they share them
        folder.mkdir(parents=True, exist_ok=True)

    def name(self, step: int) -> str:
        return f"step-{step}" if self.layout == "Plain" else f"checkpoint-{step}"

    def content(self, life: str, step: int) -> list[tuple[str, bytes]]:
        """The files of a save in the order in which they are written. No two saves have the same bytes."""
        self.written += 1
        seed = f"{life} {step} {self.written} ".encode()
        body = [seed * 3, seed * 5]
        if self.layout == "Plain":
            parts = [(f"part-{i}.bin", data) for i, data in enumerate(body)]
            said = {n: {"size": len(d), "sha256": hashlib.sha256(d).hexdigest()} for n, d in parts}
            return [*parts, ("manifest.json", json.dumps({"step": step, "files": said}).encode())]
        state = (
            "trainer_state.json",
            json.dumps({"global_step": step, "log_history": [self.written]}).encode(),
        )
        args = ("training_args.bin", torch_file(seed))
        if self.layout == "HuggingFace":
            header = json.dumps(
                {"w": {"dtype": "U8", "shape": [len(body[0])], "data_offsets": [0, len(body[0])]}}
            )
            weights = len(header).to_bytes(8, "little") + header.encode() + body[0]
            return [
                ("config.json", json.dumps({"seed": seed.decode()}).encode()),
                ("model.safetensors", weights),
                args,
                state,
            ]
        # Each rank writes at its own pace: its random state may come after the coordinator's last file.
        folder = "pytorch_model_fsdp_0"
        shards = [(f"__{rank}_0.distcp", data) for rank, data in enumerate(body)]
        metadata = _metadata(tuple((name, len(data)) for name, data in shards))
        return [
            *((f"{folder}/{name}", data) for name, data in shards),
            (f"{folder}/.metadata", metadata),
            args,
            ("rng_state_0.pth", b"\x80" + seed + b"."),
            state,
            ("rng_state_1.pth", b"\x80" + seed + b"."),
        ]

    def newest(self, life: Life | None = None) -> Saved | None:
        mine = [s for s in self.saved if s.lies and (life is None or s.life is life)]
        return max(mine, key=lambda s: s.step, default=None)

    def at(self, step: int) -> Saved | None:
        return next((s for s in reversed(self.saved) if s.step == step and s.lies), None)

    # -- saving ----------------------------------------------------------------------------------------

    def begin(self, life: Life, step: int, *, anew: bool) -> None:
        """Start a save. What lies there of that step goes: removed first (``anew``), or written over."""
        self._gone(step, spoilt=not anew, whole=True)
        path = self.folder / self.name(step)
        if anew:
            shutil.rmtree(path, ignore_errors=True)
        path.mkdir(exist_ok=True)
        record = self._record(life.text, step)
        if record.exists():
            record.unlink()
        life.saving = (step, self.content(life.text, step))
        self._pending: list[tuple[str, bytes]] = list(life.saving[1])

    def go_on(self, life: Life, most: int | None = None, *, recorded: bool = True) -> Saved | None:
        """Write the next files of the save under way; the checkpoint once all are there, and its save record
        then, as our client does."""
        assert life.saving is not None
        self.changes += 1
        step, left = life.saving
        path = self.folder / self.name(step)
        for name, data in left[:most]:
            file = path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)  # an old file of that name keeps its inode, as open(..., "wb") does
        left = left[most:] if most is not None else []
        if left:
            life.saving = (step, left)
            return None
        life.saving = None
        files = {n: d for n, d in self._pending if n}
        saved = Saved(step, life, self.name(step), files, fingerprint(files.items()))
        # A rotation that came in between may have taken what was written first.
        saved.lies = all((path / name).is_file() for name in files)
        self.saved.append(saved)
        if recorded:
            self._write_record(saved)
        life.checkpoint_step = max(step, life.checkpoint_step or 0)
        return saved

    def save(self, life: Life, step: int, *, anew: bool, recorded: bool = True) -> Saved:
        self.begin(life, step, anew=anew)
        saved = self.go_on(life, recorded=recorded)
        assert saved is not None
        return saved

    def leftover(self, life: Life, step: int) -> None:
        """A checkpoint that an earlier run left here: no client of ours has written it."""
        self.save(life, step, anew=True, recorded=False)

    def _record(self, life: str, step: int) -> Path:
        return self.folder / ".evalstop" / "saves" / f"{life}-{step}.json"

    def _write_record(self, saved: Saved) -> None:
        path = self._record(saved.life.text, saved.step)
        path.parent.mkdir(parents=True, exist_ok=True)
        document = {
            "attempt": saved.life.text,
            "step": saved.step,
            "name": saved.name,
            "files": {name: len(data) for name, data in saved.files.items()},
        }
        new = path.with_suffix(".tmp")
        new.write_text(json.dumps(document))
        os.replace(new, path)

    # -- rotation --------------------------------------------------------------------------------------

    def rotate(self, keep: int, *, files: int | None = None) -> list[int]:
        """Delete the checkpoints before the newest ``keep``; of each only ``files`` files (None: all)."""
        steps = sorted(int(p.name.rpartition("-")[2]) for p in self.folder.iterdir() if p.name[0] != ".")
        gone = steps[: max(0, len(steps) - keep)]
        for step in gone:
            self.delete(step, files=files)
        return gone

    def delete(self, step: int, *, files: int | None = None) -> None:
        self._gone(step, spoilt=False, whole=files is None)
        path = self.folder / self.name(step)
        if files is None:
            shutil.rmtree(path, ignore_errors=True)
            return
        there = sorted(p for p in path.rglob("*") if p.is_file())
        for file in there[:files]:
            file.unlink()

    def _gone(self, step: int, *, spoilt: bool, whole: bool) -> None:
        for saved in self.saved:
            if saved.step == step and saved.there:
                saved.lies = False
                saved.spoilt = saved.spoilt or spoilt
                saved.there = not whole
