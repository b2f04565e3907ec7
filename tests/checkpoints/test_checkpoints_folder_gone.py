"""A trainer's rotation that removes ``.evalstop`` too: told as that, and what can be pinned is pinned."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from controller.checkpoints.access import answer, carry_out
from controller.checkpoints.errors import AccessError, Reason
from controller.checkpoints.request import BranchLife, ClaimMade, Request, Result, Source
from controller.policy.job import key_of
from controller.policy.wording import FOLDER_GONE
from tests.support.trainers_files import plain, save

OWNER = "0f2a1bb7-uid"
LIFE = BranchLife("1-aa01b2c3")
CLAIMED = ClaimMade("1")


def ask(location: Path | str, operation: str, step: int = 0, **more: Any) -> Result:
    return carry_out(Request(operation, "Plain", OWNER, str(location), step, job="ns/run", **more))


def refusal(*args: Any, **more: Any) -> AccessError:
    with pytest.raises(AccessError) as caught:
        ask(*args, **more)
    return caught.value


def claimed(location: Path, *steps: int) -> None:
    """A folder that was claimed while nothing lay there; the trainer has saved these steps since."""
    ask(location, "claim", attempt="1")
    for step in steps:
        save(location, "Plain", step, plain(step))


def test_what_the_process_saved_itself_is_pinned_though_its_inventory_is_gone(tmp_path: Path) -> None:
    claimed(tmp_path, 10, 20)
    ask(tmp_path, "secure", 10, branch=(LIFE,), claimed=CLAIMED)
    shutil.rmtree(tmp_path / ".evalstop")
    found = ask(tmp_path, "secure", 20, branch=(LIFE,), claimed=CLAIMED)
    assert (found.step, found.attempt, found.gone) == (20, "1-aa01b2c3", True)
    assert json.loads((tmp_path / ".evalstop/owner.json").read_text())["uid"] == OWNER
    save(tmp_path, "Plain", 30, plain(30))
    again = ask(tmp_path, "secure", 30, branch=(LIFE,), claimed=CLAIMED)
    assert (again.step, again.gone) == (30, False), "once it is left alone nothing is told any more"


def test_what_lay_there_when_the_folder_was_claimed_is_nobodys_still(tmp_path: Path) -> None:
    save(tmp_path, "Plain", 20, plain(20))
    lay = ask(tmp_path, "claim", attempt="1").step
    assert lay == 20
    shutil.rmtree(tmp_path / ".evalstop")
    save(tmp_path, "Plain", 30, plain(30))
    made = ClaimMade("1", lay)
    told = refusal(tmp_path, "secure", 20, branch=(LIFE,), claimed=made)
    assert "it lay there already" in told.message
    assert ask(tmp_path, "secure", 30, branch=(LIFE,), claimed=made).step == 30


def test_a_claim_for_the_next_attempt_leaves_what_the_former_one_saved_its_own(tmp_path: Path) -> None:
    claimed(tmp_path, 10, 20)
    shutil.rmtree(tmp_path / ".evalstop")
    assert ask(tmp_path, "claim", attempt="2", claimed=CLAIMED).gone
    save(tmp_path, "Plain", 30, plain(30))
    branch = (BranchLife("2-9f2c41d0", after=20), LIFE)
    found = [ask(tmp_path, "secure", step, branch=branch, claimed=ClaimMade("2", 20)) for step in (20, 30)]
    assert [one.attempt for one in found] == ["1-aa01b2c3", "2-9f2c41d0"]


def test_a_missing_pin_or_checkpoint_is_told_with_its_cause_and_has_the_cure_of_it(tmp_path: Path) -> None:
    claimed(tmp_path, 10)
    pin = ask(tmp_path, "secure", 10, branch=(LIFE,), claimed=CLAIMED)
    shutil.rmtree(tmp_path / ".evalstop")
    shutil.rmtree(tmp_path / "step-10")
    source = Source(pin.path, pin.digest, 10)
    for operation in ("check", "retain"):
        more = {"source": source, "destination": str(tmp_path / "kept")}
        told = refusal(tmp_path, operation, 10, claimed=CLAIMED, **more)
        assert told.message.startswith(f"{tmp_path}/.evalstop {FOLDER_GONE}: owner.json is not there; ")
        assert told.gone
        assert key_of(str(told.reason), told.message) == "EvalStopFolderGone"
    told = refusal(tmp_path, "secure", 10, branch=(LIFE,), claimed=CLAIMED)
    assert (told.reason, told.gone) == (Reason.MISSING, True)
    assert key_of(str(told.reason), told.message) == "EvalStopFolderGone", "and not to name another folder"


def test_nothing_is_told_of_a_folder_that_no_claim_has_written_to_or_that_is_another_ones(
    tmp_path: Path,
) -> None:
    save(tmp_path, "Plain", 10, plain(10))
    told = refusal(tmp_path, "secure", 20, branch=(LIFE,))
    assert not told.gone
    assert FOLDER_GONE not in told.message
    (tmp_path / ".evalstop").mkdir(exist_ok=True)
    (tmp_path / ".evalstop/owner.json").write_text('{"uid": "other", "job": "ns/b"}')
    told = refusal(tmp_path, "secure", 10, branch=(LIFE,), claimed=CLAIMED)
    assert (told.reason, told.gone) == (Reason.LOCATION_TAKEN, False)


def test_the_answer_says_so_in_its_message(tmp_path: Path) -> None:
    claimed(tmp_path, 10)
    request = Request("secure", "Plain", OWNER, str(tmp_path), 10, branch=(LIFE,), claimed=CLAIMED)
    assert Request.parse(request.to_json()) == request
    environment = {"EVALSTOP_REQUEST": request.to_json()}
    assert "gone" not in json.loads(answer(environment))
    shutil.rmtree(tmp_path / ".evalstop")
    assert json.loads(answer(environment))["gone"] is True
    shutil.rmtree(tmp_path / ".evalstop")
    shutil.rmtree(tmp_path / "step-10")
    said = json.loads(answer(environment))
    assert (said["ok"], said["gone"]) == (False, True)


@pytest.mark.parametrize("claimed", [{"newest": 3}, "1", {"attempt": "1", "newest": -1}])
def test_a_claim_of_another_form_is_refused_by_its_field(claimed: Any) -> None:
    raw = json.loads(Request("secure", "Plain", OWNER, "/c", 10).to_json()) | {"claimed": claimed}
    with pytest.raises(AccessError, match=r"claimed|newest") as caught:
        Request.parse(json.dumps(raw))
    assert caught.value.reason is Reason.BAD_REQUEST
