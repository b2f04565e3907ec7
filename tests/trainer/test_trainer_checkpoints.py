"""Checkpoints: atomic, complete or unused, rotated in the order saved; the operator's are left alone."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from controller import names
from examples.trainer import checkpoints
from examples.trainer.checkpoints import CheckpointError, CheckpointFolder, load, read

REPOSITORY = Path(__file__).parents[2]
STATE = {"weights": np.arange(6.0).reshape(2, 3), "moment": np.ones(4)}


def saved(tmp_path: Path, *steps: int, keep: int = 5, attempt: int = 0) -> CheckpointFolder:
    folder = CheckpointFolder(tmp_path, keep)
    for step in steps:
        folder.save(step, {name: array + step for name, array in STATE.items()}, attempt=attempt)
    return folder


def steps_in(folder: Path) -> list[int]:
    return sorted(int(p.name.removeprefix("step-")) for p in folder.glob("step-*"))


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    path = CheckpointFolder(tmp_path).save(40, STATE, attempt=2, run={"seeds": [7]})
    assert path == tmp_path / "step-40"
    checkpoint = read(path)
    assert (checkpoint.step, checkpoint.attempt, checkpoint.run) == (40, 2, {"seeds": [7]})
    back = load(checkpoint)
    assert back.keys() == STATE.keys()
    assert all(np.array_equal(back[name], array) for name, array in STATE.items())
    assert [p.name for p in tmp_path.iterdir()] == ["step-40"]


def test_the_operator_finds_it_complete(tmp_path: Path) -> None:
    """By the operator's own reader of the layout."""
    from controller.checkpoints.layouts import Plain
    from controller.checkpoints.volume import Volume

    saved(tmp_path, 10, 20)
    layout, store = Plain(), Volume(str(tmp_path))
    found = layout.candidates(store)
    assert [c.step for c in found] == [20, 10]
    assert [layout.problem(c.content(store), c.step) for c in found] == [None, None]


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_rotation_keeps_the_newest(tmp_path: Path, keep: int) -> None:
    saved(tmp_path, *range(0, 80, 10), keep=keep)
    assert steps_in(tmp_path) == list(range(80 - 10 * keep, 80, 10))


def test_rotation_never_touches_what_is_not_its_own(tmp_path: Path) -> None:
    others = [f"{names.PINS_FOLDER}/uid/10/params.npz", "evals.jsonl", "step-x/file", "best/file"]
    for name in others:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("not yours")
    folder = saved(tmp_path, *range(0, 100, 10), keep=1)
    folder.clean()
    assert [(tmp_path / name).read_text() for name in others] == ["not yours"] * len(others)
    assert (tmp_path / "step-90").is_dir()
    assert not (tmp_path / "step-80").exists()


def test_a_pin_outlives_rotation_and_rewriting(tmp_path: Path) -> None:
    """Files are never changed in place: the inode a pin shares keeps its content."""
    folder = saved(tmp_path, 10, keep=2)
    pin = tmp_path / names.PINS_FOLDER / "uid" / "10"
    pin.mkdir(parents=True)
    os.link(tmp_path / "step-10" / "params.npz", pin / "params.npz")
    content = (pin / "params.npz").read_bytes()
    folder.save(10, {"weights": np.zeros(50)}, attempt=2)
    assert (pin / "params.npz").read_bytes() == content
    for step in (20, 30, 40):
        folder.save(step, STATE)
    folder.clean()
    assert steps_in(tmp_path) == [30, 40]
    assert (pin / "params.npz").read_bytes() == content


def test_a_resumed_attempt_counts_as_newer_than_the_branch_it_left(tmp_path: Path) -> None:
    saved(tmp_path, 70, 80, 90, keep=3, attempt=1)
    folder = CheckpointFolder(tmp_path, keep=3)
    folder.save(80, {"weights": np.full(3, -1.0)}, attempt=2)  # the same step again, in another life
    newest = folder.latest()
    assert newest is not None
    assert (newest[0].step, newest[0].attempt) == (80, 2)
    assert newest[1]["weights"].tolist() == [-1.0] * 3
    folder.save(81, STATE, attempt=2)
    folder.save(82, STATE, attempt=2)
    assert steps_in(tmp_path) == [80, 81, 82]
    own, former = folder.latest(attempt=2), folder.latest(attempt=1)
    assert own is not None
    assert own[0].step == 82
    assert former is None


def corrupt(name: str, change: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda path: change(path / name)


NO_MANIFEST = "no usable manifest.json"
DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no manifest": (corrupt("manifest.json", Path.unlink), NO_MANIFEST),
    "half a manifest": (
        corrupt("manifest.json", lambda p: p.write_text('{"step": 4')),
        NO_MANIFEST,
    ),
    "manifest of another kind": (
        corrupt("manifest.json", lambda p: p.write_text("[]")),
        NO_MANIFEST,
    ),
    "name that leads out": (
        corrupt(
            "manifest.json",
            lambda p: p.write_text('{"step": 20, "files": {"../x": {"size": 1, "sha256": "0"}}}'),
        ),
        "file names must be plain names",
    ),
    "no parameters": (corrupt("params.npz", Path.unlink), "params.npz cannot be read"),
    "short parameters": (corrupt("params.npz", lambda p: p.write_bytes(p.read_bytes()[:-9])), "bytes"),
    "parameters not listed": (
        corrupt("manifest.json", lambda p: p.write_text('{"step": 20, "files": {}}')),
        "lists no params.npz",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_an_incomplete_checkpoint_is_named_and_the_one_before_is_used(tmp_path: Path, damage: str) -> None:
    folder = saved(tmp_path, 10, 20)
    change, message = DAMAGE[damage]
    change(tmp_path / "step-20")
    with pytest.raises(CheckpointError, match=message):
        load(read(tmp_path / "step-20"))
    found = folder.latest()
    assert found is not None
    assert found[0].step == 10


def test_one_altered_byte_is_seen(tmp_path: Path) -> None:
    saved(tmp_path, 10)
    file = tmp_path / "step-10" / "params.npz"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"differs from the sha256 in manifest\.json"):
        load(read(tmp_path / "step-10"))


def test_an_empty_or_missing_folder_has_none(tmp_path: Path) -> None:
    assert CheckpointFolder(tmp_path).latest() is None
    assert CheckpointFolder(tmp_path / "not-there").latest() is None


def test_a_failed_write_leaves_nothing_with_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = saved(tmp_path, 10)
    monkeypatch.setattr(
        checkpoints, "_write", lambda path, content: (_ for _ in ()).throw(OSError(28, "full"))
    )
    with pytest.raises(OSError, match="full"):
        folder.save(20, STATE)
    assert [p.name for p in tmp_path.iterdir()] == ["step-10"]


def test_clean_removes_what_a_killed_writer_left(tmp_path: Path) -> None:
    saved(tmp_path, 10)
    for left in (".tmp-step-20-99", ".old-step-10-99"):
        (tmp_path / left).mkdir()
        (tmp_path / left / "params.npz").write_bytes(b"half")
    folder = CheckpointFolder(tmp_path)
    assert [c.step for c in folder.all()] == [10]
    folder.clean()
    assert [p.name for p in tmp_path.iterdir()] == ["step-10"]


def test_keep_below_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep: expected an integer >= 1, got 0"):
        CheckpointFolder(tmp_path, 0)


def write_forever(folder: str) -> None:
    target = CheckpointFolder(Path(folder), keep=2)
    state = {"weights": np.random.default_rng(0).normal(size=200_000)}
    step = max((c.step for c in target.all()), default=0)
    while True:
        step += 1
        target.save(step, state)


def test_a_writer_killed_at_any_moment_leaves_only_complete_checkpoints(tmp_path: Path) -> None:
    """kill -9 at different moments; whatever has the name and a manifest must load."""
    context = multiprocessing.get_context("spawn")  # fork is not safe beside other tests' threads
    seen = 0
    for delay in (0.05, 0.083, 0.121):
        writer = context.Process(target=write_forever, args=(str(tmp_path),))
        writer.start()
        deadline = time.monotonic() + 60
        while max(steps_in(tmp_path), default=0) <= seen and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(delay)
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        folder = CheckpointFolder(tmp_path, keep=2)
        complete = folder.all()
        assert complete, "at least one survives every kill"
        for checkpoint in complete:
            assert load(checkpoint)["weights"].shape == (200_000,)
        newest = max(c.step for c in complete)
        assert newest > seen
        seen = newest
    folder.clean()
    folder.save(seen + 1, STATE)
    assert len(list(tmp_path.iterdir())) == 2


def crash_everywhere(root: Path) -> int:
    """Save with a crash at the first, second, third… act on the disk; returns how many there are.

    Each crash leaves its act half done, and no clean-up runs. Every checkpoint that then has its name and a
    manifest must load, one at least must be there, and the next writer must be able to go on.
    """
    for crash_at in range(1, 100):
        folder = CheckpointFolder(root / str(crash_at), keep=2)
        folder.save(10, STATE)
        folder.save(20, STATE)
        child = os.fork()
        if child == 0:
            _crash_at(crash_at)
            folder.save(20, STATE, attempt=2)  # over a former branch's
            folder.save(30, STATE, attempt=2)  # rotates
            os._exit(0)
        _, status = os.waitpid(child, 0)
        complete = folder.all()
        assert complete, f"crash {crash_at}: nothing left"
        for checkpoint in complete:
            load(checkpoint)
        folder.clean()
        folder.save(40, STATE)
        assert len(list(folder.folder.iterdir())) == 2
        if os.waitstatus_to_exitcode(status) == 0:
            return crash_at - 1
    raise AssertionError("the acts do not end")


def _crash_at(number: int) -> None:
    left = number

    def guarded(act: Callable[..., Any], half: Callable[..., object]) -> Callable[..., Any]:
        def either(*args: Any, **more: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                half(*args)
                os._exit(9)
            return act(*args, **more)

        return either

    def half_removed(path: Path, *_: object) -> None:
        (path / "params.npz").unlink(missing_ok=True)

    write = checkpoints._write
    checkpoints._write = guarded(write, lambda path, content: path.write_bytes(content[: len(content) // 2]))
    checkpoints._sync = guarded(checkpoints._sync, lambda *_: None)
    Path.rename = guarded(Path.rename, lambda *_: None)  # type: ignore[method-assign]
    Path.unlink = guarded(Path.unlink, lambda *_: None)  # type: ignore[method-assign]
    shutil.rmtree = guarded(shutil.rmtree, half_removed)  # type: ignore[assignment]


def test_a_crash_at_any_act_leaves_only_complete_checkpoints(tmp_path: Path) -> None:
    """In a process without threads, since it forks."""
    program = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import {__name__} as t; "
    program += f"from pathlib import Path; print(t.crash_everywhere(Path({str(tmp_path)!r})))"
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100, cwd=REPOSITORY
    )
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) >= 12


def test_the_manifest_is_as_documented(tmp_path: Path) -> None:
    saved(tmp_path, 40, attempt=3)
    document = json.loads((tmp_path / "step-40" / "manifest.json").read_text())
    assert set(document) == {"step", "attempt", "sequence", "run", "files"}
    entry = document["files"]["params.npz"]
    assert entry["size"] == (tmp_path / "step-40" / "params.npz").stat().st_size
    assert len(entry["sha256"]) == 64
