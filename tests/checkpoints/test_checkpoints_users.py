"""Trainer and access Jobs under different users: whoever comes first, the other can write beside it."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from controller.checkpoints.access import carry_out
from controller.checkpoints.request import BranchLife, Request, Result
from evalstop_client.client import EvalStopClient
from tests.support.trainers_files import hugging_face, write

ACCESS, TRAINER, NEXT = 12001, 12002, 12003  # users that own nothing else here
OWNER = "0f2a1bb7-uid"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become two users")


@pytest.fixture
def location() -> Iterator[Path]:
    """A folder in which every user may write; pytest's own may be entered by one alone."""
    top = Path(tempfile.mkdtemp(prefix="evalstop-users-"))
    top.chmod(0o755)
    place = top / "ckpt"
    place.mkdir()
    place.chmod(0o777)
    (top / "run.json").write_text(json.dumps({"uid": OWNER, "attempt": 1}))
    yield place
    shutil.rmtree(top)


def as_user(uid: int, act: Callable[[], object]) -> None:
    """Do it in a process of that user, with no other group and the usual umask."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            os.umask(0o022)
            act()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, f"as user {uid}; its words are above"


def trains(place: Path, life: str, step: int) -> Callable[[], object]:
    def act() -> None:
        client = EvalStopClient(place.parent, port=0, host="127.0.0.1", speaks=True, life=life)
        folder = place / f"checkpoint-{step}"
        client.checkpoint_begins(folder)
        shutil.rmtree(folder, ignore_errors=True)
        write(folder, hugging_face(step))
        client.checkpoint_saved(step, folder)

    return act


def claims(place: Path) -> Callable[[], object]:
    return lambda: carry_out(Request("claim", "HuggingFace", OWNER, str(place), 0, job="ns/run", attempt="1"))


def secures(place: Path, life: str, step: int) -> Callable[[], object]:
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
