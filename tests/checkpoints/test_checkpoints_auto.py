"""`spec.checkpoints.layout: Auto`: found by what lies there, told with its file, never guessed."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from test_checkpoints_access_jobs import RLHFJOB, build, request_of

from controller.checkpoints.access import carry_out
from controller.checkpoints.errors import AccessError, Reason
from controller.checkpoints.layouts import LAYOUTS
from controller.checkpoints.request import Request, Result, Source
from controller.checkpoints.results import read_result
from controller.policy.job import FoundLayout, Operation, StartAccess
from controller.untrusted_text import printable
from tests.support.trainers_files import WAIT_FOR_ANOTHER, plain, save

OWNER = "0f2a1bb7-uid"


def ask(location: Path, operation: str, step: int, **more: Any) -> Result:
    return carry_out(Request(operation, "Auto", OWNER, str(location), step, **more))


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_every_layout_is_found_and_the_answer_says_by_which_file(layout: str, tmp_path: Path) -> None:
    for step in (50, 100) if layout in WAIT_FOR_ANOTHER else (100,):
        save(tmp_path, layout, step)
    answer = ask(tmp_path, "secure", 100)
    assert answer.layout is not None
    name, by = answer.layout
    assert name == layout
    assert (tmp_path / by).is_file()
    named = carry_out(Request("secure", layout, OWNER, str(tmp_path), 100))
    assert (named.digest, named.layout) == (answer.digest, None)


def test_two_that_fit_are_told_and_nothing_is_secured(tmp_path: Path) -> None:
    save(tmp_path, "HuggingFace", 100)
    save(tmp_path, "NeMoRL", 100)
    with pytest.raises(AccessError) as refused:
        ask(tmp_path, "secure", 100)
    assert refused.value.reason is Reason.LAYOUT_AMBIGUOUS
    for text in (
        "HuggingFace (by checkpoint-100/trainer_state.json)",
        "NeMoRL (by step_100/training_info.json)",
    ):
        assert text in refused.value.message
    assert not (tmp_path / ".evalstop").exists()
    shutil.rmtree(tmp_path / "step_100")
    assert ask(tmp_path, "secure", 100).layout == ("HuggingFace", "checkpoint-100/trainer_state.json")


def test_names_alone_are_no_sign(tmp_path: Path) -> None:
    """Plain and TorchDCP share a name, and a folder of it may be a user's own."""
    (tmp_path / "step-100").mkdir()
    (tmp_path / "step-100" / "notes.txt").write_text("mine")
    with pytest.raises(AccessError, match="no checkpoint of any known layout"):
        ask(tmp_path, "secure", 100)


def test_a_claim_notes_whatever_lies_there(tmp_path: Path) -> None:
    save(tmp_path, "Plain", 100)
    save(tmp_path, "Verl", 100)
    assert ask(tmp_path, "claim", 0, attempt="1").note == "2 checkpoints lay there"


def test_it_is_known_by_its_pin_once_the_trainers_own_are_gone(tmp_path: Path) -> None:
    location, retention = tmp_path / "location", tmp_path / "retained"
    save(location, "Plain", 100)
    pinned = ask(location, "secure", 100)
    shutil.rmtree(location / "step-100")
    assert ask(location, "secure", 100).layout == ("Plain", f".evalstop/{OWNER}/0-100/manifest.json")
    source = Source(pinned.path, pinned.digest, 100)
    assert ask(location, "check", 100, source=source).layout is None, "no layout is needed for it"
    kept = ask(location, "retain", 100, source=source, destination=str(retention))
    source = Source(kept.path, kept.digest, 100)
    restored = ask(location, "restore", 100, source=source, destination=str(retention))
    assert Path(restored.path).name == "step-100"
    assert json.loads(Path(restored.path, "manifest.json").read_bytes()) == json.loads(
        plain(100)["manifest.json"]
    )


# on the operator's side


@pytest.mark.parametrize(
    ("raw", "read"),
    [
        ({"name": "Verl", "by": "global_step_1/actor/x"}, FoundLayout("Verl", "global_step_1/actor/x")),
        ({"name": "Verl", "by": "a\x1b[31m"}, FoundLayout("Verl", printable("a\x1b[31m", 256))),
        ({"name": "Verl", "by": "a" * 999}, FoundLayout("Verl", printable("a" * 999, 256))),
        ({"name": "Auto", "by": "x"}, None),
        ({"name": "Other", "by": "x"}, None),
        ({"name": ["Verl"], "by": "x"}, None),
        ("Verl", None),
        (None, None),
    ],
)
def test_an_answers_layout_is_checked(raw: object, read: FoundLayout | None) -> None:
    answer = {
        "ok": True,
        "step": 1,
        "path": "/x",
        "bytes": 1,
        "digest": f"sha256:{'0' * 64}",
        "sourceDigest": f"sha256:{'0' * 64}",
        "layout": raw,
    }
    ended = {"state": {"terminated": {"message": json.dumps(answer)}}}
    pod = {"metadata": {"name": "p"}, "status": {"containerStatuses": [ended]}}
    assert read_result({"metadata": {}}, [pod], "secure-1-1").layout == read


@pytest.mark.parametrize(
    ("named", "found", "asked"),
    [("Auto", "", "Auto"), ("Auto", "Verl", "Verl"), ("HuggingFace", "Verl", "HuggingFace")],
)
def test_a_layout_that_was_found_is_named_in_later_requests_where_the_spec_says_auto(
    named: str, found: str, asked: str
) -> None:
    job = copy.deepcopy(RLHFJOB)
    job["spec"]["checkpoints"]["layout"] = named
    action = StartAccess("secure-400-3", Operation.SECURE, 400, layout=found)
    assert request_of(build(action, job)).layout == asked
