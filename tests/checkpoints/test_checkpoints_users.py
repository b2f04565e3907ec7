"""Trainer and access Jobs under different users: whoever comes first, the other can write beside it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from controller.checkpoints.access import carry_out
from controller.checkpoints.request import BranchLife, Request, Result
from evalstop_client.client import EvalStopClient
from tests.support.as_user import ACCESS, NEXT, TRAINER, as_user, needs_root, open_location
from tests.support.trainers_files import hugging_face, write

OWNER = "0f2a1bb7-uid"

pytestmark = needs_root


@pytest.fixture
def location() -> Iterator[Path]:
    """A folder in which every user may write, with the run.json of its trainer beside it."""
    with open_location(0o777) as place:
        (place.parent / "run.json").write_text(json.dumps({"uid": OWNER, "attempt": 1}))
        yield place


def trains(place: Path, life: str, step: int) -> Callable[[], None]:
    def act() -> None:
        client = EvalStopClient(place.parent, port=0, host="127.0.0.1", speaks=True, life=life)
        folder = place / f"checkpoint-{step}"
        client.checkpoint_begins(folder)
        shutil.rmtree(folder, ignore_errors=True)
        write(folder, hugging_face(step))
        client.checkpoint_saved(step, folder)

    return act


def claims(place: Path) -> Callable[[], None]:
    def act() -> None:
        carry_out(Request("claim", "HuggingFace", OWNER, str(place), 0, job="ns/run", attempt="1"))

    return act


def secures(place: Path, life: str, step: int) -> Callable[[], None]:
    def act() -> None:
        branch = (BranchLife(f"1-{life}"),)
        asked = Request("secure", "HuggingFace", OWNER, str(place), step, job="ns/run", branch=branch)
        found: Result = carry_out(asked)
        assert (found.step, found.evidence) == (step, "SaveRecord"), found

    return act


def test_a_trainer_writes_its_records_where_another_users_claim_came_first(location: Path) -> None:
    """The claim made `.evalstop` for its own user alone: no save record could be written from then on."""
    as_user(ACCESS, claims(location))
    as_user(TRAINER, trains(location, "aa01", 40))
    assert (location / ".evalstop/saves/1-aa01-40.json").stat().st_uid == TRAINER
    as_user(ACCESS, secures(location, "aa01", 40))


def test_an_access_job_works_where_another_users_trainer_came_first(location: Path) -> None:
    as_user(TRAINER, trains(location, "aa01", 40))
    as_user(ACCESS, claims(location))
    as_user(ACCESS, secures(location, "aa01", 40))


def test_a_trainer_clears_the_records_of_another_users_process_but_not_its_pins(location: Path) -> None:
    as_user(ACCESS, claims(location))
    as_user(TRAINER, trains(location, "aa01", 40))
    as_user(ACCESS, secures(location, "aa01", 40))
    (location / "checkpoint-40").rename(location / "moved")  # in a folder of all, any of them may
    as_user(NEXT, trains(location, "bb02", 40))
    assert sorted(os.listdir(location / ".evalstop/saves")) == ["1-bb02-40.json"]

    def takes() -> None:
        with pytest.raises(PermissionError):
            (location / ".evalstop" / OWNER).rename(location / "taken")
        with pytest.raises(PermissionError):
            (location / ".evalstop" / "owner.json").unlink()

    as_user(TRAINER, takes)
