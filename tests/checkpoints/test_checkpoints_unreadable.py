"""What cannot be read is not missing, and hides nothing else: folders away, odd neighbours, odd entries."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from controller.checkpoints import securing
from controller.checkpoints.access import carry_out
from controller.checkpoints.errors import AccessError, Reason
from controller.checkpoints.layouts import LAYOUTS
from controller.checkpoints.request import BranchLife, Request, Result, Source
from controller.names import STEP_MAX
from tests.support.trainers_files import WAIT_FOR_ANOTHER, plain, save, write

OWNER = "0f2a1bb7-uid"
LIFE = BranchLife("1-aa01b2c3")


class Place:
    """A location and a retention folder, as the operator asks for work on them."""

    def __init__(self, root: Path, layout: str = "HuggingFace") -> None:
        self.location, self.retention, self.layout = root / "ckpt", root / "kept", layout
        self.location.mkdir()

    def ask(self, operation: str, step: int = 0, **more: Any) -> Result:
        more = {"branch": (LIFE,), **more} if operation != "claim" else more
        return carry_out(
            Request(operation, self.layout, OWNER, str(self.location), step, job="ns/run", **more)
        )

    def refused(self, operation: str, step: int = 0, **more: Any) -> Reason:
        with pytest.raises(AccessError) as caught:
            self.ask(operation, step, **more)
        return caught.value.reason

    def save(self, step: int, files: Any = None) -> Path:
        return save(self.location, self.layout, step, files)

    def record(self, step: int, files: Any) -> None:
        document = {
            "attempt": LIFE.attempt,
            "step": step,
            "name": f"checkpoint-{step}",
            "files": {name: len(data) for name, data in files.items()},
        }
        name = f"{LIFE.attempt}-{step}.json"
        write(self.location / ".evalstop" / "saves", {name: json.dumps(document).encode()})


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path)
    place.ask("claim", attempt="1")
    return place


def of(folder: Any) -> str:
    """The path of a folder, also of an open one."""
    return os.readlink(f"/proc/self/fd/{folder}") if isinstance(folder, int) else str(folder)


def failing(monkeypatch: pytest.MonkeyPatch, code: int, at: Callable[[str], bool]) -> None:
    """Let listing certain folders fail, as their file system would."""
    real = os.scandir

    def scandir(path: Any = ".") -> Any:
        text = of(path)
        if at(text):
            raise OSError(code, os.strerror(code), text)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)


# -- away is not missing -----------------------------------------------------------------------------------


def everything(place: Place, pin: Result) -> dict[str, Reason]:
    source = Source(pin.path, pin.digest, pin.step)
    to = str(place.retention)
    return {
        "secure": place.refused("secure", pin.step),
        "check": place.refused("check", pin.step, source=source),
        "retain": place.refused("retain", pin.step, source=source, destination=to),
    }


def test_a_location_that_is_away_is_unreachable_and_comes_back(place: Place) -> None:
    """It was answered as missing, for which the operator gives a pin up."""
    place.save(30)
    pin = place.ask("secure", 30)
    away = place.location.rename(place.location.with_name("away"))
    assert set(everything(place, pin).values()) == {Reason.STORE_UNREACHABLE}
    assert place.refused("restore", 30) is Reason.STORE_UNREACHABLE
    away.rename(place.location)
    assert place.ask("secure", 30).digest == pin.digest
    source = Source(pin.path, pin.digest, 30)
    kept = place.ask("retain", 30, source=source, destination=str(place.retention))
    gone = place.retention.rename(place.retention.with_name("gone"))
    kept_at = Source(kept.path, kept.digest, 30)
    to = str(place.retention)
    assert place.refused("restore", 30, source=kept_at, destination=to) is Reason.STORE_UNREACHABLE
    gone.rename(place.retention)
    assert place.ask("restore", 30, source=kept_at, destination=to).digest == pin.digest


def test_stale_handles_of_a_network_file_system_are_no_absence(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.save(30)
    pin = place.ask("secure", 30)
    failing(monkeypatch, errno.ESTALE, lambda path: path.startswith(pin.path))
    assert set(everything(place, pin).values()) == {Reason.STORE_UNREACHABLE}


def test_what_is_gone_from_a_folder_that_is_there_is_missing(place: Place) -> None:
    place.save(30)
    pin = place.ask("secure", 30)
    Path(pin.path).rename(place.location / "elsewhere")
    source = Source(pin.path, pin.digest, 30)
    assert place.refused("check", 30, source=source) is Reason.MISSING
    assert place.refused("retain", 30, source=source, destination=str(place.retention)) is Reason.MISSING
    assert place.refused("secure", 70) is Reason.MISSING


# -- odd neighbours ----------------------------------------------------------------------------------------


def circle(folder: Path) -> None:
    (folder / "x").symlink_to("x")


def dangling(folder: Path) -> None:
    (folder / "x").symlink_to("nowhere")


@pytest.mark.parametrize("oddity", [circle, dangling])
def test_an_odd_neighbour_keeps_no_best_from_being_pinned(place: Place, oddity: Any) -> None:
    place.save(10)
    place.save(40)
    oddity(place.location / "checkpoint-10")
    assert place.ask("secure", 40).step == 40
    assert place.ask("claim", attempt="2").note == "2 checkpoints lay there"
    assert place.refused("secure", 10) is Reason.INCOMPLETE
    with pytest.raises(AccessError, match="symbolic link"):
        place.ask("secure", 10)


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.ESTALE])
def test_a_neighbour_that_cannot_be_read_keeps_no_best_from_being_pinned(
    place: Place, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    for step in (10, 40, 50, 60):
        place.save(step)
    failing(monkeypatch, code, lambda path: path.endswith(("checkpoint-10", "checkpoint-60")))
    pin = place.ask("secure", 40)
    assert pin.evidence == "Manifest"
    denied = code == errno.EACCES
    assert place.refused("secure", 10) is (Reason.PERMISSION_DENIED if denied else Reason.STORE_UNREACHABLE)
    source = Source(pin.path, pin.digest, 40)
    kept = place.ask("retain", 40, source=source, destination=str(place.retention), keep_latest=True)
    assert kept.latest["step"] == 50
    assert place.ask("claim", attempt="2").note == "4 checkpoints lay there"


def test_what_could_not_be_read_before_a_process_started_is_not_that_process_s(place: Place) -> None:
    place.save(10)
    circle(place.location / "checkpoint-10")
    place.ask("claim", attempt="2")
    (place.location / "checkpoint-10" / "x").unlink()
    later = (BranchLife("2-9f2c41d0", after=0),)
    assert place.refused("secure", 10, branch=later) is Reason.INCOMPLETE
    with pytest.raises(AccessError, match="could not be read, before process 2-9f2c41d0 started"):
        place.ask("secure", 10, branch=later)


def test_a_claim_fails_where_nothing_at_all_can_be_read(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An inventory of a store that is away would make nobody's what lies there; it is asked again."""
    for step in (10, 40):
        place.save(step)
    failing(monkeypatch, errno.EIO, lambda path: "checkpoint-" in path)
    assert place.refused("claim", attempt="2") is Reason.STORE_UNREACHABLE


# -- odd entries among the save records --------------------------------------------------------------------


def test_an_odd_entry_hides_no_save_record(place: Place) -> None:
    files = {"a.bin": b"a" * 10, "b.bin": b"b" * 20}  # whole by its record alone
    place.save(40, files)
    place.record(40, files)
    saves = place.location / ".evalstop" / "saves"
    (saves / "x").symlink_to("nowhere")
    (saves / f"{LIFE.attempt}-41.json").symlink_to("nowhere")
    (saves / "1-bb01b2c3-40.json").symlink_to("1-bb01b2c3-40.json")
    (saves / "2-bb01b2c3-40.json").mkdir()
    os.mkfifo(saves / "3-bb01b2c3-40.json")
    assert place.ask("secure", 40).evidence == "SaveRecord"


def test_a_record_s_temporary_file_that_goes_while_it_is_listed_hides_none(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"a.bin": b"a" * 10, "b.bin": b"b" * 20}
    place.save(40, files)
    place.record(40, files)
    temporary = place.location / ".evalstop" / "saves" / ".tmp-zz"
    for name in ("scandir", "listdir"):
        real = getattr(os, name)

        def listing(path: Any = ".", real: Any = real) -> Any:
            if not of(path).endswith("/saves"):
                return real(path)
            temporary.touch()
            found = real(path)
            if isinstance(found, list):
                temporary.unlink()
                return found
            entries = list(found)
            temporary.unlink()
            return _Entries(entries)

        monkeypatch.setattr(os, name, listing)
    assert place.ask("secure", 40).evidence == "SaveRecord"


class _Entries(list[Any]):
    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *_: object) -> None: ...


# -- a pin that nothing was noted of ----------------------------------------------------------------------


class Killed(BaseException):
    """The end of a worker at this very point."""


@pytest.mark.parametrize("at", ["note", "publish"])
def test_killed_around_its_publication_a_pin_is_never_another_process_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """Another process wrote the step anew in place; its bytes were answered as the pin of the first."""
    place = Place(tmp_path, "Plain")
    place.ask("claim", attempt="1")
    place.save(40, plain(40, b"first"))
    note = securing._note_files

    def killed(*arguments: Any) -> None:
        if at == "publish":
            note(*arguments)
        raise Killed

    monkeypatch.setattr(securing, "_note_files", killed)
    with pytest.raises(Killed):
        place.ask("secure", 40)
    monkeypatch.setattr(securing, "_note_files", note)
    place.ask("claim", attempt="1-9f2c41d0")
    folder = place.location / "step-40"
    for name, data in plain(40, b"other").items():
        (folder / name).write_bytes(data)
    for _ in range(2):
        assert place.refused("secure", 40) is Reason.INCOMPLETE


def test_a_pin_without_its_note_is_damaged_and_made_anew_beside(tmp_path: Path) -> None:
    place = Place(tmp_path, "Plain")
    place.ask("claim", attempt="1")
    place.save(40)
    pin = place.ask("secure", 40)
    Path(f"{pin.path}.files.json").unlink()
    source = Source(pin.path, pin.digest, 40)
    assert place.refused("check", 40, source=source) is Reason.DIGEST_MISMATCH
    again = place.ask("secure", 40)
    assert again.path != pin.path
    assert again.digest == pin.digest
    assert place.ask("secure", 40).path == again.path
    Path(f"{again.path}.files.json").unlink()
    for path in (place.location / "step-40").rglob("*"):
        path.unlink(missing_ok=True) if path.is_file() else None
    assert place.refused("secure", 40) is Reason.INCOMPLETE


# -- steps -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_a_step_goes_as_far_in_the_store_as_on_the_page(tmp_path: Path, layout: str) -> None:
    place = Place(tmp_path, layout)
    place.ask("claim", attempt="1")
    for step in (1763840000000, STEP_MAX - 1, STEP_MAX):
        place.save(step)
        asked = Request("secure", layout, OWNER, str(place.location), step, branch=(LIFE,))
        request = Request.parse(asked.to_json())
        if layout in WAIT_FOR_ANOTHER and step == 1763840000000:
            continue  # the first one waits for the next
        pin = carry_out(request)
        assert pin.path.endswith(f"{LIFE.attempt}-{step}")
        other = pin.path.replace(str(step), "1")
        released = Request.parse(asked.to_json().replace('"release": []', f'"release": ["{pin.path}"]'))
        assert released.release == (pin.path,) != (other,)
    with pytest.raises(AccessError, match="from 0 to 999999999999999"):
        Request.parse(Request("secure", layout, OWNER, "/x", STEP_MAX + 1).to_json())


def test_a_step_of_the_page_is_a_step_of_the_api() -> None:
    from pydantic import TypeAdapter, ValidationError

    from controller.api.base import Step

    assert TypeAdapter(Step).validate_python(STEP_MAX) == STEP_MAX == 10**15 - 1
    with pytest.raises(ValidationError):
        TypeAdapter(Step).validate_python(STEP_MAX + 1)
