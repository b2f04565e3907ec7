"""A user's pins on real files: they outlive rotation and other pins, can be resumed from, and are let go."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from test_checkpoints_access_jobs import build, pod_of, request_of

from controller.checkpoints import volume
from controller.checkpoints.access import carry_out
from controller.checkpoints.access_jobs import parse_result
from controller.checkpoints.errors import AccessError, Reason
from controller.checkpoints.pins import parse_pin
from controller.checkpoints.request import Request, Source
from controller.policy.job.record import Operation
from controller.policy.job.types import StartAccess
from tests.faults.disk import Disk, Killed, watched
from tests.support.trainers_files import hugging_face, plain, save

OWNER = "0f2a1bb7-uid"


def ask(location: Path, operation: str, step: int, layout: str = "Plain", **more: Any) -> Any:
    return carry_out(Request(operation, layout, OWNER, str(location), step, **more))


def pins(location: Path) -> set[str]:
    return {path.name for path in (location / ".evalstop" / OWNER).iterdir() if parse_pin(path.name)}


def test_a_pin_is_a_secure_request_of_exactly_its_step() -> None:
    job = build(StartAccess("pin-400-3", Operation.PIN, 400))
    request = request_of(job)
    assert (request.operation, request.step, request.max_step_lag) == ("secure", 400, 0)
    assert request.source is None
    assert job["metadata"]["labels"]["evalstop.dev/operation"] == "pin"
    mounts = {mount["name"] for mount in pod_of(job)["containers"][0]["volumeMounts"]}
    assert len(mounts) == 1, "the retention volume is not needed"
    assert parse_result(job, []).operation is Operation.PIN


def test_a_pin_outlives_rotation_and_the_run_can_go_on_from_it(tmp_path: Path) -> None:
    for step in (100, 200):
        save(tmp_path, "Plain", step)
    pinned = ask(tmp_path, "secure", 100)
    best = ask(tmp_path, "secure", 200)
    for step in (100, 200):
        shutil.rmtree(tmp_path / f"step-{step}")  # the trainer's rotation
    assert pins(tmp_path) == {"0-100", "0-200"}
    again = ask(tmp_path, "secure", 100)
    assert (again.path, again.digest) == (pinned.path, pinned.digest), "asked for again, it is there already"
    assert again.method == pinned.method
    restored = ask(tmp_path, "restore", 100)
    assert (restored.step, restored.digest) == (100, pinned.digest)
    assert Path(restored.path, "manifest.json").is_file()
    assert best.digest != pinned.digest


def test_what_is_named_no_longer_goes_with_the_next_one(tmp_path: Path) -> None:
    for step in (100, 200, 300):
        save(tmp_path, "Plain", step)
    gone = ask(tmp_path, "secure", 100).path
    ask(tmp_path, "secure", 200)
    ask(tmp_path, "secure", 300, release=(gone, gone.replace("-100", "-999")))
    assert pins(tmp_path) == {"0-200", "0-300"}


def test_a_step_written_anew_in_place_spoils_its_pin_and_one_removed_before_does_not(tmp_path: Path) -> None:
    """The limit that docs/use/checkpoints.md states, and its cure."""
    for step in (100, 200):
        save(tmp_path, "Plain", step)
    pinned = {step: ask(tmp_path, "secure", step) for step in (100, 200)}
    for name, data in plain(100, b"anew").items():
        (tmp_path / "step-100" / name).write_bytes(data)
    shutil.rmtree(tmp_path / "step-200")
    save(tmp_path, "Plain", 200, plain(200, b"anew"))
    sources = {step: Source(pin.path, pin.digest, step) for step, pin in pinned.items()}
    with pytest.raises(AccessError, match="was written, added or removed"):
        ask(tmp_path, "check", 100, source=sources[100])
    assert ask(tmp_path, "check", 200, source=sources[200]).digest == pinned[200].digest


def cloning(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a file system that clones: the new file has the content, and shares nothing that is written."""

    def ioctl(target: int, request: int, source: int) -> int:
        assert request == volume.FICLONE
        os.write(target, os.pread(source, os.fstat(source).st_size, 0))
        return 0

    monkeypatch.setattr(volume.fcntl, "ioctl", ioctl)


def content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*.*"))}


def test_a_file_system_that_clones_gives_pins_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloning(monkeypatch)
    folder = save(tmp_path, "Plain", 100)
    pinned = ask(tmp_path, "secure", 100)
    assert (pinned.method, pinned.note) == ("clone", "")
    inodes = {path.stat().st_ino for path in folder.rglob("*")}
    assert not inodes & {path.stat().st_ino for path in Path(pinned.path).rglob("*")}


def test_one_that_does_not_is_asked_once_and_nothing_is_left_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def ioctl(*arguments: int) -> int:
        asked.append(arguments)
        raise OSError(errno.EOPNOTSUPP, "not here")

    monkeypatch.setattr(volume.fcntl, "ioctl", ioctl)
    folder = save(tmp_path, "HuggingFace", 100)
    pinned = carry_out(Request("secure", "HuggingFace", OWNER, str(tmp_path), 100))
    assert (pinned.method, len(asked)) == ("link", 1)
    assert content(Path(pinned.path)) == content(folder)


# row 7
@pytest.mark.parametrize("clones", [False, True], ids=["links", "clones"])
def test_a_step_saved_again_in_place_50_times_leaves_the_old_bytes_or_is_told_as_lost(
    clones: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Hugging Face's Trainer does after going back: the same inodes, killed anywhere in between."""
    if clones:
        cloning(monkeypatch)
    dice, told = random.Random(7), Counter[Reason]()
    for number in range(50):
        location, retention = tmp_path / f"l{number}", tmp_path / f"r{number}"
        files = hugging_face(20)
        folder = save(location, "HuggingFace", 20, files)
        secured = ask(location, "secure", 20, layout="HuggingFace")
        before = content(Path(secured.path))
        written = 0
        for name in dice.sample(sorted(files), dice.randint(1, len(files))):
            data = bytes(byte ^ 1 for byte in files[name])
            part = data[: dice.randint(1, len(data))]
            with (folder / name).open("r+b") as file:  # in place, killed after so many bytes
                file.write(part)
            written += len(part)
        assert written
        source = Source(secured.path, secured.digest, 20)
        # What a stop rests on, what a going back does, and what any other Job at the location sees.
        for operation, destination in (("check", ""), ("retain", str(retention)), ("detach", "")):
            more = {"layout": "HuggingFace", "source": source, "destination": destination}
            try:
                ask(location, operation, 20, **more)
            except AccessError as error:
                told[error.reason] += 1
            else:
                assert content(Path(secured.path)) == before, operation
        assert ask(location, "claim", 0, layout="HuggingFace").changed == (() if clones else (secured.path,))
    assert told == ({} if clones else {Reason.DIGEST_MISMATCH: 150})


def overwrite(folder: Path, files: dict[str, bytes], names: list[str]) -> None:
    """Write other bytes into files that are there, as a trainer that saves a step again in place."""
    for name in names:
        with (folder / name).open("r+b") as file:
            file.write(bytes(byte ^ 1 for byte in files[name]))


# row 7
def test_a_linked_pin_that_is_detached_before_its_step_comes_again_keeps_the_old_bytes_50_times(
    tmp_path: Path,
) -> None:
    """Going back copies the pin; killed anywhere in that, it is done again; then the step is saved in place.

    The trainer is sometimes faster: then the pin is told as lost, and nothing is published.
    """
    dice, ends = random.Random(8), Counter[str]()
    for number in range(50):
        location = tmp_path / f"l{number}"
        files = hugging_face(20)
        folder = save(location, "HuggingFace", 20, files)
        secured = ask(location, "secure", 20, layout="HuggingFace")
        assert secured.method == "link"
        before, source = content(Path(secured.path)), Source(secured.path, secured.digest, 20)

        again = dice.sample(sorted(files), dice.randint(1, len(files)))
        moment = dice.randint(0, 40)
        disk, write_again = Disk(), partial(overwrite, folder, files, again)
        how = dice.choice(("in time", "killed", "beside", "too late"))
        if how == "too late":
            write_again()
        with watched(disk):
            if how == "killed":
                disk.begin(moment, disk.kill)
                with suppress(Killed):
                    ask(location, "detach", 20, layout="HuggingFace", source=source)
            disk.begin(moment if how == "beside" else None, write_again)
            detached, refused = None, None
            try:
                detached = ask(location, "detach", 20, layout="HuggingFace", source=source)
            except AccessError as error:
                refused = error
        if detached is None:
            assert refused is not None
            assert (refused.reason, refused.changed) == (Reason.DIGEST_MISMATCH, (secured.path,))
            assert how in ("beside", "too late")
            assert pins(location) == {Path(secured.path).name}
            ends["lost"] += 1
            continue
        overwrite(folder, files, sorted(files))
        assert how != "too late"
        assert (detached.method, detached.digest) == ("copy", secured.digest)
        assert detached.path != secured.path
        assert content(Path(detached.path)) == before
        repeated = ask(
            location, "detach", 20, layout="HuggingFace", source=Source(detached.path, secured.digest, 20)
        )
        assert repeated.path == detached.path, "what shares nothing is left as it is"
        ask(location, "check", 20, layout="HuggingFace", source=Source(detached.path, secured.digest, 20))
        ends["kept"] += 1
    assert ends["kept"] > 20
    assert ends["lost"] > 5


def test_a_copy_that_reads_back_otherwise_is_not_published_and_its_pin_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, "Plain", 100)
    secured = ask(tmp_path, "secure", 100)
    source = Source(secured.path, secured.digest, 100)

    def copy(self: volume.Volume, old: str, new: str) -> None:
        with self.create(new) as file:
            file.write(b"what the device kept")

    with monkeypatch.context() as patch:
        patch.setattr(volume.Volume, "copy", copy)
        with pytest.raises(AccessError, match="has digest") as told:
            ask(tmp_path, "detach", 100, source=source)
    assert (told.value.reason, told.value.changed) == (Reason.COPY_DAMAGED, ())
    assert pins(tmp_path) == {"0-100"}
    assert ask(tmp_path, "check", 100, source=source).method == "link"
    assert ask(tmp_path, "detach", 100, source=source).method == "copy"
