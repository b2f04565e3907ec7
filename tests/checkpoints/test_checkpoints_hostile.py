"""A trainer that attacks the store while an access Job works on it: it swaps files, folders and links.

The program runs as its Job would have it, with both volumes in a temporary folder. Another RLHFJob's retained
weights lie on the retention volume, which a trainer does not mount and an access pod may.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from test_checkpoints_access_jobs import CLAIMS, RLHFJOB, SETTINGS, TEMPLATE, UID

from controller.checkpoints.access import answer
from controller.checkpoints.access_jobs import access_job
from controller.checkpoints.request import REQUEST_ENV
from controller.policy.job.record import Operation, ProtectedCheckpoint
from controller.policy.job.types import StartAccess
from controller.policy.types import Attempt
from tests.support.trainers_files import hugging_face, write

SHARD = "model-00001-of-00002.safetensors"
OTHER = "best/team/other-aaaaa/7"  # another RLHFJob's retained checkpoint, from the root of its volume
SECRET = hugging_face(7)[SHARD].replace(bytes(range(64)), b"S" * 64)


class Stage:
    """Both volumes, a trainer's checkpoints in its location, and another's retained weights."""

    def __init__(self, root: Path) -> None:
        self.root, self.location = root, root / "data" / "runs" / "a"
        self.retained, self.others = root / "retained", root / "retained" / OTHER
        self.serial = 0
        write(self.others, {SHARD: SECRET})
        self.others.chmod(0o750)
        self.others.parent.chmod(0o750)
        self.before = self.snapshot()
        self.location.mkdir(parents=True)

    @property
    def own(self) -> Path:
        return self.location / ".evalstop" / UID

    def save(self, step: int) -> Path:
        return write(self.location / f"checkpoint-{step}", hugging_face(step))

    def snapshot(self) -> dict[str, tuple[int, bytes]]:
        """All of the other's, with rights and content."""
        top = self.others.parent
        return {
            str(path.relative_to(top)): (path.stat().st_mode, path.read_bytes() if path.is_file() else b"")
            for path in (top, *sorted(top.rglob("*")))
        }

    def ask(
        self, operation: Operation, step: int = 0, source: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        self.serial += 1
        kept = (
            ProtectedCheckpoint(source["step"], source["step"], source["path"], source["digest"], 0.0)
            if source
            else None
        )
        action = StartAccess(
            f"{operation}-{step}-{self.serial}", operation, step, source=kept, attempt=Attempt(1)
        )
        checkpoints = {**RLHFJOB["spec"]["checkpoints"], "layout": "HuggingFace", "keep": "BestAndLatest"}
        job = access_job(
            {**RLHFJOB, "spec": {"checkpoints": checkpoints}}, TEMPLATE, action, SETTINGS, claims=CLAIMS
        )
        env = job["spec"]["template"]["spec"]["containers"][0]["env"]
        text = next(e["value"] for e in env if e["name"] == REQUEST_ENV)
        for mount in ("/data", "/retained"):
            text = text.replace(f'"{mount}', f'"{self.root}{mount}')
        told: dict[str, Any] = json.loads(answer({REQUEST_ENV: text}))
        return told

    def secured(self, step: int) -> dict[str, Any]:
        told = self.ask(Operation.SECURE, step)
        assert told["ok"], told
        return told

    def stolen(self) -> list[str]:
        """Where the other's weights are, besides where they belong."""
        places = (self.retained / "best" / "team" / f"run-{UID[:5]}", self.root / "data")
        return [
            str(path)
            for place in places
            for path in place.rglob("*")
            if path.is_file() and not path.is_symlink() and b"S" * 64 in path.read_bytes()
        ]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


class Swap:
    """A name in the trainer's reach that is the real thing, or a symbolic link, as it pleases."""

    def __init__(self, path: Path, target: Path) -> None:
        self.path, self.target = path, target
        self.real = path.with_name(f"{path.name}.real")
        self.is_link = False

    def link(self) -> None:
        if not self.is_link:
            self.is_link = True
            self.path.rename(self.real)
            self.path.symlink_to(self.target)

    def back(self) -> None:
        if self.is_link:
            self.is_link = False
            self.path.unlink()
            self.real.rename(self.path)


def before(monkeypatch: pytest.MonkeyPatch, name: str, act: Callable[[str], None]) -> None:
    """Do something right before each call of a function of ``os``, told the path or name it is about."""
    real = getattr(os, name)

    def hooked(path: Any = ".", *args: Any, **more: Any) -> Any:
        act(str(path))
        return real(path, *args, **more)

    monkeypatch.setattr(os, name, hooked)


# -- at the worst moment -----------------------------------------------------------------------------------


def test_a_file_swapped_for_a_link_at_its_opening_brings_nobody_elses_weights(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its path was checked, and then opened by its text: the latest of a run was another's best."""
    stage.save(100)
    latest = stage.save(200)
    pin = stage.secured(100)
    swap = Swap(latest / SHARD, stage.others / SHARD)
    before(monkeypatch, "open", lambda path: swap.link() if path.endswith(SHARD) else None)
    before(monkeypatch, "lstat", lambda path: swap.back() if path.endswith(SHARD) else None)
    before(monkeypatch, "scandir", lambda path: swap.back())
    told = stage.ask(Operation.RETAIN, 100, pin)
    monkeypatch.undo()
    assert told["ok"], told
    assert stage.stolen() == []
    assert "digest" not in told.get("latest", {})


def test_a_folder_swapped_for_a_link_gets_nothing_written_into_anothers_copy(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`.evalstop/<uid>` was a folder when it was looked at, and a link when the copy was written there."""
    stage.save(100)
    kept = stage.ask(Operation.RETAIN, 100, stage.secured(100))
    swap = Swap(stage.own, stage.others.parent)
    before(monkeypatch, "mkdir", lambda path: swap.link() if ".tmp-" in path else None)
    stage.ask(Operation.RESTORE, 100, kept)
    monkeypatch.undo()
    assert swap.is_link, "it was tried"
    assert stage.snapshot() == stage.before


def test_a_file_exchanged_at_its_linking_is_not_pinned(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes and times can be set; the inode is whose it is."""
    shard = stage.save(100) / SHARD
    foreign = stage.location / "foreign"
    foreign.write_bytes(SECRET)
    os.utime(foreign, ns=(shard.stat().st_atime_ns, shard.stat().st_mtime_ns))
    kept_aside, link = stage.location / "aside", os.link

    def exchanged(source: Any, target: Any, **more: Any) -> None:
        if not str(source).endswith(SHARD):
            return link(source, target, **more)
        shard.rename(kept_aside)
        link(foreign, shard)
        try:
            return link(source, target, **more)
        finally:
            shard.unlink()
            kept_aside.rename(shard)

    monkeypatch.setattr(os, "link", exchanged)
    told = stage.ask(Operation.SECURE, 100)
    monkeypatch.undo()
    assert not told["ok"], told
    assert "was exchanged for another file while it was being linked" in told["message"]
    foreign.unlink()
    assert stage.stolen() == []


def test_a_location_that_is_a_link_leads_nowhere(stage: Stage) -> None:
    """All below the place that a link led to was taken for the location."""
    stage.save(100)
    pin = stage.secured(100)
    write(stage.others.parent / "checkpoint-200", {**hugging_face(200), SHARD: SECRET})
    theirs = stage.snapshot()
    stage.location.rename(stage.location.with_name("moved"))
    shutil.copytree(stage.location.with_name("moved") / ".evalstop", stage.others.parent / ".evalstop")
    theirs = stage.snapshot()
    stage.location.symlink_to(stage.others.parent)
    told = stage.ask(Operation.RETAIN, 100, pin)
    assert not told["ok"], told
    assert "symbolic links may not leave it" in told["message"]
    assert stage.stolen() == []
    assert stage.snapshot() == theirs


def test_a_location_that_is_a_link_inside_its_volume_is_followed(stage: Stage) -> None:
    stage.save(100)
    stage.location.rename(stage.location.with_name("moved"))
    stage.location.symlink_to("moved")
    pin = stage.secured(100)
    assert pin["path"].startswith(str(stage.location))
    (stage.location / "checkpoint-100" / SHARD).rename(stage.location / "shard")
    (stage.location / "checkpoint-100" / SHARD).symlink_to(stage.location / "shard")  # absolute, inside
    assert stage.ask(Operation.RESTORE, 100)["ok"]


def test_rights_of_another_folder_are_not_changed(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """What other users are to write in gets mode 1777: by its path, that was somebody else's folder."""
    assert stage.ask(Operation.CLAIM)["ok"]
    (stage.location / ".evalstop").chmod(0o755)
    swap = Swap(stage.location / ".evalstop", stage.others.parent)
    before(monkeypatch, "chmod", lambda path: swap.link())
    before(monkeypatch, "fchmod", lambda path: swap.link())
    stage.ask(Operation.CLAIM)
    monkeypatch.undo()
    assert swap.is_link, "it was tried"
    assert stage.snapshot() == stage.before


def test_a_tree_exchanged_at_its_publication_is_not_published(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is renamed must be what was filled and verified."""
    stage.save(100)
    pin = stage.secured(100)
    rename = os.rename

    def exchanged(source: Any, target: Any, **more: Any) -> None:
        if str(source).endswith("/tree"):
            (staged,) = (stage.retained / "best" / "team" / f"run-{UID[:5]}").glob(".tmp-*")
            rename(staged / "tree", staged / "aside")
            write(staged / "tree", {SHARD: b"something else"})
        rename(source, target, **more)

    monkeypatch.setattr(os, "rename", exchanged)
    told = stage.ask(Operation.RETAIN, 100, pin)
    monkeypatch.undo()
    assert not told["ok"], told
    assert not (stage.retained / "best" / "team" / f"run-{UID[:5]}" / "0-100").exists()


def test_what_is_written_has_no_second_name_elsewhere(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of a copy, exchanged for a hard link to another's, would be written through into that one."""
    stage.save(100)
    kept = stage.ask(Operation.RETAIN, 100, stage.secured(100))
    victim = stage.location / "victim"
    victim.write_bytes(b"v" * len(hugging_face(100)[SHARD]))
    done = []

    def exchange(path: str) -> None:
        for staged in stage.own.glob(f".tmp-*/tree/*/{SHARD}"):
            if not done and staged.stat().st_size:
                done.append(staged.unlink())
                os.link(victim, staged)

    before(monkeypatch, "pwrite", exchange)
    before(monkeypatch, "open", exchange)
    told = stage.ask(Operation.RESTORE, 100, kept)
    monkeypatch.undo()
    assert done
    assert victim.read_bytes() == b"v" * victim.stat().st_size, told


def test_the_latest_must_be_what_it_was_when_it_was_first_seen(stage: Stage) -> None:
    """Nothing had recorded its digest, so that between two tries it could become any other."""
    stage.save(100)
    latest = stage.save(200)
    pin = stage.secured(100)
    first = stage.ask(Operation.RETAIN, 100, pin)["latest"]
    assert first["step"] == 200
    shutil.rmtree(latest)
    write(latest, {**hugging_face(200), SHARD: SECRET})
    again = stage.ask(Operation.RETAIN, 100, pin)["latest"]
    assert "when it was first seen" in again["problem"]
    assert [p for p in stage.stolen() if "/retained/" in p] == []


@pytest.mark.parametrize("kind", ["pipe", "deep", "circle"])
def test_what_is_odd_in_a_checkpoint_holds_nothing_up(stage: Stage, kind: str) -> None:
    folder = stage.save(100)
    if kind == "pipe":
        (folder / SHARD).unlink()
        os.mkfifo(folder / SHARD)
    elif kind == "deep":
        top = os.open(folder, os.O_RDONLY)
        for _ in range(1500):  # deeper than a path is long, and than Python calls itself
            os.mkdir("d", dir_fd=top)
            below = os.open("d", os.O_RDONLY, dir_fd=top)
            os.close(top)
            top = below
        os.close(top)
    else:
        (folder / SHARD).unlink()
        (folder / "x").symlink_to("y/../x")
        (folder / "y").symlink_to("x")
    try:
        told = stage.ask(Operation.SECURE, 100)
    finally:  # pytest's own removal of it would not come to its end
        subprocess.run(["rm", "-rf", str(folder)], check=True)
    assert told["reason"] == "CheckpointIncomplete", told


# -- for real ----------------------------------------------------------------------------------------------

RACER = """
import os, sys
real, away = sys.argv[1:]
aside, link = real + ".real", real + ".away"
os.symlink(away, link)
if os.path.isdir(real):
    while True:
        try:
            os.rename(real, aside)
            os.rename(link, real)
            os.rename(real, link)
            os.rename(aside, real)
        except OSError: pass
os.link(real, aside)
while True:
    os.link(link, real + ".new", follow_symlinks=False)
    os.rename(real + ".new", real)
    os.link(aside, real + ".new")
    os.rename(real + ".new", real)
"""


class Race:
    """A process that swaps a name for a link and back as fast as it can."""

    def __init__(self, path: Path, target: Path) -> None:
        self._process = subprocess.Popen([sys.executable, "-c", RACER, str(path), str(target)])
        self._end = time.monotonic() + float(os.environ.get("EVALSTOP_TEST_RACE_SECONDS", "4"))
        self.tries = 0

    def __enter__(self) -> Race:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def goes_on(self) -> bool:
        self.tries += 1
        return time.monotonic() < self._end

    @contextmanager
    def paused(self) -> Iterator[None]:
        self._process.send_signal(signal.SIGSTOP)
        time.sleep(0.005)
        yield
        self._process.send_signal(signal.SIGCONT)


def test_a_racing_trainer_gets_nobody_elses_weights(stage: Stage) -> None:
    stage.save(100)
    latest = stage.save(200)
    assert stage.ask(Operation.CLAIM)["ok"]
    pin = stage.secured(100)
    mine = stage.retained / "best" / "team" / f"run-{UID[:5]}"
    with Race(latest / SHARD, stage.others / SHARD) as race:
        while race.goes_on():
            for found in mine.glob("*"):
                shutil.rmtree(found) if found.is_dir() else found.unlink()
            assert stage.ask(Operation.RETAIN, 100, pin)["ok"]
            with race.paused():  # or what is looked at here is swapped, too
                assert stage.stolen() == [], f"after {race.tries} tries"
    assert race.tries > 5


def test_a_racing_trainer_has_nothing_written_elsewhere(stage: Stage) -> None:
    stage.save(100)
    assert stage.ask(Operation.CLAIM)["ok"]
    kept = stage.ask(Operation.RETAIN, 100, stage.secured(100))
    assert kept["ok"]
    with Race(stage.own, stage.others.parent) as race:
        while race.goes_on():
            stage.ask(Operation.RESTORE, 100, kept)
            stage.ask(Operation.SECURE, 100)
            with race.paused():
                assert stage.snapshot() == stage.before, f"after {race.tries} tries"
    assert race.tries > 5
