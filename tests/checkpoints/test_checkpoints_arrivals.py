"""A folder's time after a save that ends in a rename, and after what rotation takes away."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from controller.checkpoints.judge import judge
from controller.checkpoints.layouts import LAYOUTS
from controller.checkpoints.volume import Volume
from tests.support.trainers_files import save, torch_dcp


def tick(folder: Path) -> None:
    """Wait until the file system's clock, which moves in steps of milliseconds, has moved on."""
    began = 0
    for number in itertools.count():
        probe = folder / f"probe{number}"
        probe.touch()
        now = probe.stat().st_mtime_ns
        began = began or now
        if now > began:
            return


def renamed(folder: Path, name: str) -> int:
    """Put a file in its place as torch does `.metadata`; return when it was written."""
    draft = folder / f"{name}.tmp"
    draft.write_bytes(b"x")
    (folder.parent / "clock").mkdir(exist_ok=True)
    tick(folder.parent / "clock")
    os.rename(draft, folder / name)
    return (folder / name).stat().st_mtime_ns


def changed(folder: Path) -> int:
    found = Volume(str(folder.parent)).folder_times(folder.name)
    assert found is not None
    return found["."]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "step-10"
    made.mkdir()
    (made / "other").write_bytes(b"x")
    return made


def test_the_rename_that_ends_a_save_is_no_loss(folder: Path) -> None:
    written = renamed(folder, ".metadata")
    assert folder.stat().st_mtime_ns > written, "the folder was altered after the last write"
    assert changed(folder) == written


def test_a_removal_after_it_is_one(folder: Path) -> None:
    renamed(folder, ".metadata")
    tick(folder.parent / "clock")
    (folder / "other").unlink()
    assert changed(folder) == folder.stat().st_mtime_ns


def test_a_file_with_a_second_name_tells_nothing(folder: Path) -> None:
    renamed(folder, ".metadata")
    os.link(folder / ".metadata", folder.parent / "pin")
    assert changed(folder) == folder.stat().st_mtime_ns


def test_a_file_that_was_written_long_before_tells_nothing(folder: Path) -> None:
    """Its status was changed by something else: its owner, mode or times were set when another one went."""
    renamed(folder, ".metadata")
    long_before = (folder / ".metadata").stat().st_mtime_ns - 3600 * 10**9
    os.utime(folder / ".metadata", ns=(long_before, long_before))
    (folder / "other").unlink()
    assert changed(folder) == folder.stat().st_mtime_ns


def test_the_only_whole_one_before_a_torn_one_is_found(tmp_path: Path) -> None:
    """torch.distributed.checkpoint alone: the second save was killed, so no other has the same files."""
    for step in (10, 20):
        save(tmp_path, "TorchDCP", step, dict(torch_dcp(step)))
    renamed(tmp_path / "step-10", "extra")
    (tmp_path / "step-20" / ".metadata").unlink()
    store, layout = Volume(str(tmp_path)), LAYOUTS["TorchDCP"]
    assert {c.step: judge(layout, store, c) for c in layout.candidates(store)}[10] is None
    tick(tmp_path / "clock")
    (tmp_path / "step-10" / "extra").unlink()
    assert judge(layout, store, layout.candidates(store)[1]), "rotation has begun with it"
