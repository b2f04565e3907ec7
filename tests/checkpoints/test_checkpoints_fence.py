"""A worker that outlives its request takes nothing away of what a newer request has answered since."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from controller.checkpoints import access, errors, fence, inventory, retaining, securing
from controller.checkpoints.errors import Reason
from controller.checkpoints.object_store import ObjectStore
from controller.checkpoints.pins import pins_folder
from controller.checkpoints.request import BranchLife, Source
from tests.checkpoints.test_checkpoints_lives import OWNER, ask, refusal
from tests.support.trainers_files import plain, save

LIFE = BranchLife("1-aa01b2c3")
PINS = pins_folder(OWNER)


@pytest.fixture
def location(tmp_path: Path) -> Path:
    ask(tmp_path, "claim", attempt="1", id="claim-1-1")
    for step in (40, 80):
        save(tmp_path, "Plain", step, plain(step))
    return tmp_path


def meanwhile(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, act: Callable[[], object], before: bool = True
) -> None:
    """Have ``act`` happen once, right before ``module.name`` is called, or right after it."""
    real = getattr(module, name)

    def slow(*args: Any, **more: Any) -> Any:
        monkeypatch.setattr(module, name, real)
        if before:
            act()
        found = real(*args, **more)
        if not before:
            act()
        return found

    monkeypatch.setattr(module, name, slow)


def test_a_pin_that_was_made_again_since_is_not_let_go(
    location: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Request 3 pinned a newer best and was to let the former go; its node was thought dead, its Job given
    up. Then the user pins the former's step: the same folder. The worker comes back and does its last act."""
    former = ask(location, "secure", 40, branch=(LIFE,), id="secure-40-2")
    shutil.rmtree(location / "step-40")  # rotated away: the pin is all that there is of it
    pinned = []
    meanwhile(
        monkeypatch,
        access,
        "release",
        lambda: pinned.append(ask(location, "secure", 40, branch=(LIFE,), id="pin-40-4")),
    )
    late = refusal(
        Reason.INTERRUPTED, location, "secure", 80, branch=(LIFE,), id="secure-80-3", release=(former.path,)
    )
    assert "number 4" in late.message
    assert pinned[0].path == former.path
    assert ask(location, "check", source=Source(former.path, former.digest, 40), id="check-40-5").digest == (
        former.digest
    )


def test_whoever_was_told_to_leave_lets_nothing_go(location: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    former = ask(location, "secure", 40, branch=(LIFE,), id="secure-40-2")
    meanwhile(monkeypatch, access, "release", errors.interrupt)
    try:
        refusal(
            Reason.INTERRUPTED,
            location,
            "secure",
            80,
            branch=(LIFE,),
            id="secure-80-3",
            release=(former.path,),
        )
    finally:
        errors._interrupted.clear()
    assert Path(former.path).exists()
    again = ask(location, "secure", 80, branch=(LIFE,), id="secure-80-4", release=(former.path,))
    assert not Path(former.path).exists()
    assert Path(again.path).exists()


@pytest.mark.parametrize("copied", [True, False])
def test_what_a_run_is_resumed_from_is_not_cleared_by_an_earlier_request(
    copied: bool, location: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resume from step 40 was withdrawn for one from 80, and its worker goes on all the same."""
    kept = tmp_path / "kept"
    more: dict[str, Any] = {"branch": (LIFE,)}
    if copied:
        pin = ask(location, "secure", 40, branch=(LIFE,), id="secure-40-2")
        source = Source(pin.path, pin.digest, 40)
        copy = ask(location, "retain", 40, source=source, destination=str(kept), id="retain-40-3")
        more = {"source": Source(copy.path, copy.digest, 40), "destination": str(kept)}
    resumed = []
    meanwhile(
        monkeypatch,
        retaining,
        "_copied" if copied else "_relink",
        lambda: resumed.append(ask(location, "restore", 80, branch=(LIFE,), id="restore-80-5")),
    )
    refusal(Reason.INTERRUPTED, location, "restore", 40, id="restore-40-4", **more)
    assert all(Path(resumed[0].path, name).read_bytes() == data for name, data in plain(80).items())


def test_a_look_that_came_too_late_is_not_noted(location: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The claim of an earlier process would say that what the present one wrote lay there before."""
    meanwhile(
        monkeypatch,
        inventory,
        "_lying_there",
        lambda: ask(location, "claim", attempt="1-9f2c41d0", id="claim-1-3"),
    )
    refusal(Reason.INTERRUPTED, location, "claim", attempt="1-aa01b2c3", id="claim-1-2")
    noted = json.loads((location / PINS / inventory.INVENTORY_FILE).read_text())
    assert [one["attempt"] for one in noted["inventories"]] == ["1", "1-9f2c41d0"]


def test_whoever_begins_after_a_newer_request_does_nothing(location: Path) -> None:
    ask(location, "secure", 80, branch=(LIFE,), id="secure-80-7")
    late = refusal(Reason.INTERRUPTED, location, "secure", 40, branch=(LIFE,), id="secure-40-6")
    assert "given up" in late.message
    assert ask(location, "secure", 80, branch=(LIFE,), id="secure-80-7").step == 80, (
        "the same may be repeated"
    )
    assert ask(location, "secure", 40, branch=(LIFE,), id="secure-40-8").step == 40


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"serial": "9"}', '{"serial": -1}', '{"serial": true}', "{"]
)
def test_a_note_that_makes_no_sense_is_none(text: str, location: Path) -> None:
    (location / PINS / fence.NOTE).write_text(text)
    assert ask(location, "secure", 40, branch=(LIFE,), id="secure-40-2").step == 40
    assert json.loads((location / PINS / fence.NOTE).read_text()) == {"serial": 2}


def test_where_it_cannot_be_noted_a_pin_that_is_there_is_answered_all_the_same(
    location: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ask(location, "secure", 40, branch=(LIFE,), id="secure-40-2")

    def full(*_: object) -> None:
        raise errors.AccessError(Reason.OUT_OF_SPACE, "the disk is full")

    monkeypatch.setattr("controller.checkpoints.volume.Volume.write", full)
    monkeypatch.setattr(
        securing, "_pin", lambda *_: securing.intact(_[0].store, _[0].layout, f"{PINS}/1-aa01b2c3-40", 40)
    )
    assert ask(location, "secure", 40, branch=(LIFE,), id="secure-40-3").path == made.path


def test_in_object_stores_too(tmp_path: Path) -> None:
    root = f"file://{tmp_path}/bucket/run"
    ask(root, "claim", attempt="1", id="claim-1-1")
    store = ObjectStore.at(root)
    for step in (40, 80):
        for name, data in plain(step).items():
            store.write(f"step-{step}/{name}", data)
    former = ask(root, "secure", 40, branch=(LIFE,), id="secure-40-2")
    ask(root, "secure", 40, branch=(LIFE,), id="pin-40-4")
    refusal(Reason.INTERRUPTED, root, "secure", 80, branch=(LIFE,), id="secure-80-3", release=(former.path,))
    assert ask(root, "secure", 80, branch=(LIFE,), id="secure-80-5", release=(former.path,)).step == 80
    assert not store.published(f"{PINS}/1-aa01b2c3-40")
