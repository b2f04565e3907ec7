"""Access Jobs as the owner of the files: found by a stat, and told to the operator, which makes the Job anew.

Files as a normal image leaves them: safetensors 0.8 writes weights with mode 0600, in folders of mode 0755.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_checkpoints_access_jobs import RLHFJOB, TEMPLATE, build, pod_of, request_of

from controller.checkpoints import access
from controller.checkpoints.access_jobs import AccessRefused
from controller.checkpoints.request import REQUEST_ENV, BranchLife, Request
from controller.checkpoints.results import read_result
from controller.policy.job import AccessView, FileOwner, Operation, StartAccess
from tests.support.as_user import ACCESS, TRAINER, as_user, needs_root, open_location
from tests.support.trainers_files import hugging_face, write

OWNER = "0f2a1bb7-uid"
BRANCH = (BranchLife("1-aa01b2c3"),)


@pytest.fixture
def location() -> Iterator[Path]:
    """The trainer's folder, as its own mkdir made it."""
    with open_location(0o755) as place:
        os.chown(place, TRAINER, TRAINER)
        yield place


def saves(location: Path, step: int, user: int = TRAINER) -> None:
    """A checkpoint as safetensors 0.8 leaves it: weights for their owner alone."""
    folder = location / f"checkpoint-{step}"
    write(folder, hugging_face(step))
    for path in (folder, *folder.rglob("*")):
        os.chown(path, user, user)
        path.chmod(0o755 if path.is_dir() else 0o600)


def answer_as(user: int, location: Path, operation: str, step: int = 0, **more: Any) -> AccessView:
    """The access program's answer, run as that user without any capability."""
    if operation == "secure":
        more = {"branch": BRANCH, **more}
    request = Request(operation, "HuggingFace", OWNER, str(location), step, job="ns/run", **more)
    message = as_user(user, lambda: access.answer({REQUEST_ENV: request.to_json()}))
    job = {"metadata": {"labels": {"evalstop.dev/operation": operation}}}
    ended = {"state": {"terminated": {"message": message}}}
    pod = {"metadata": {"name": "p"}, "status": {"containerStatuses": [ended]}}
    return read_result(job, [pod], f"{operation}-{step}-1")


@needs_root
def test_the_whole_way_of_a_run_whose_user_nobody_named(location: Path) -> None:
    """It was StoreUnreachable for ever: 65532 can neither write beside the files nor read them."""
    claimed = answer_as(ACCESS, location, "claim", attempt="1", find_owner=True)
    assert (claimed.ok, claimed.deferred, claimed.file_owner) == (True, True, None), claimed.message
    assert os.listdir(location) == [], "what this user made there the trainer's could not change"
    saves(location, 40)
    asked = answer_as(ACCESS, location, "secure", 40, find_owner=True, empty_at="1")
    weights = "checkpoint-40/"
    assert (asked.ok, asked.reason) == (False, "OtherOwner")
    assert asked.file_owner is not None
    assert (asked.file_owner.user, asked.file_owner.group) == (TRAINER, TRAINER)
    assert asked.file_owner.by.startswith(weights)
    assert os.listdir(location) == ["checkpoint-40"]
    pinned = answer_as(TRAINER, location, "secure", 40, empty_at="1")
    assert (pinned.ok, pinned.step) == (True, 40), pinned.message
    assert answer_as(TRAINER, location, "claim", attempt="1").ok
    assert json.loads((location / ".evalstop/owner.json").read_text())["uid"] == OWNER


@needs_root
def test_what_a_claim_could_not_write_is_not_forgotten(location: Path) -> None:
    """An inventory that is made once the checkpoint lies there would make it an earlier process's."""
    saves(location, 40)
    without = answer_as(TRAINER, location, "claim", attempt="1")
    assert without.message == "1 checkpoint lay there"
    assert answer_as(TRAINER, location, "secure", 40).reason == "CheckpointIncomplete"
    shutil.rmtree(location / ".evalstop")
    assert answer_as(TRAINER, location, "claim", attempt="1", empty_at="1").message == ""
    assert answer_as(TRAINER, location, "secure", 40).ok


@needs_root
def test_a_claim_as_another_user_still_finds_that_the_folder_is_taken(location: Path) -> None:
    assert answer_as(TRAINER, location, "claim", attempt="1").ok
    record = location / ".evalstop/owner.json"
    record.write_text(json.dumps({"uid": "other", "job": "ns/b"}))
    found = answer_as(ACCESS, location, "claim", attempt="1", find_owner=True)
    assert (found.reason, found.holder) == ("LocationTaken", ("other", "ns/b"))


@needs_root
@pytest.mark.parametrize("mode", [0o700, 0o711])
def test_the_owner_of_a_folder_that_nobody_else_may_list_is_found(location: Path, mode: int) -> None:
    saves(location, 40)
    location.chmod(mode)
    found = answer_as(ACCESS, location, "secure", 40, find_owner=True)
    assert found.file_owner == FileOwner(TRAINER, TRAINER, "")


@needs_root
def test_who_owns_the_files_goes_on_and_says_so(location: Path) -> None:
    saves(location, 40)
    found = answer_as(TRAINER, location, "secure", 40, find_owner=True, empty_at="1")
    assert found.ok
    assert found.file_owner is not None
    assert found.file_owner.user == TRAINER


@needs_root
def test_the_newest_checkpoint_counts(location: Path) -> None:
    saves(location, 40, user=ACCESS)
    saves(location, 80)
    found = answer_as(ACCESS, location, "secure", 40, find_owner=True)
    assert found.file_owner is not None
    assert (found.file_owner.user, found.file_owner.by[:13]) == (TRAINER, "checkpoint-80")


@needs_root
def test_a_refusal_of_the_file_system_names_user_file_and_mode(location: Path) -> None:
    """It was told as an unreachable store: "see that the volume or the object store answers"."""
    saves(location, 40)
    found = answer_as(ACCESS, location, "secure", 40)
    assert found.reason == "PermissionDenied"
    assert f"runs as user {ACCESS}, group {ACCESS}" in found.message
    assert f"is of {TRAINER}:{TRAINER}, mode 0" in found.message


@pytest.mark.parametrize(
    ("raw", "read"),
    [
        ({"user": 0, "group": 0, "by": "checkpoint-1/a"}, FileOwner(0, 0, "checkpoint-1/a")),
        ({"user": 2**31 - 1, "group": 7, "by": "a\x1b[31m"}, FileOwner(2**31 - 1, 7, "a\ufffd[31m")),
        ({"user": 2**31, "group": 0, "by": "x"}, None),
        ({"user": -1, "group": 0, "by": "x"}, None),
        ({"user": True, "group": 0, "by": "x"}, None),
        ({"user": "0", "group": 0, "by": "x"}, None),
        ("root", None),
    ],
)
def test_an_answers_owner_is_checked(raw: object, read: FileOwner | None) -> None:
    ended = {"state": {"terminated": {"message": json.dumps({"ok": False, "fileOwner": raw})}}}
    pod = {"metadata": {"name": "p"}, "status": {"containerStatuses": [ended]}}
    assert read_result({"metadata": {}}, [pod], "secure-1-1").file_owner == read


# -- the Job's user ----------------------------------------------------------------------------------------

FILES = FileOwner(3000, 3001, "checkpoint-40/model.safetensors")


def made(
    pod: dict[str, Any] | None = None,
    container: dict[str, Any] | None = None,
    named: dict[str, int] | None = None,
    owner: FileOwner | None = None,
) -> dict[str, Any]:
    template, rlhfjob = copy.deepcopy(TEMPLATE), copy.deepcopy(RLHFJOB)
    template["spec"]["securityContext"] = pod or {}
    template["spec"]["containers"][0]["securityContext"] = container or {}
    if named is not None:
        rlhfjob["spec"]["checkpoints"]["runAs"] = named
    return build(StartAccess("secure-400-3", Operation.SECURE, 400, file_owner=owner), rlhfjob, template)


@pytest.mark.parametrize(
    ("given", "user", "group", "asked"),
    [
        ({}, None, None, True),
        ({"owner": FILES}, 3000, 3001, False),
        ({"owner": FILES, "named": {"user": 2000}}, 2000, 2000, False),
        ({"named": {"user": 2000, "group": 50}}, 2000, 50, False),
        ({"named": {"user": 2000}, "pod": {"runAsUser": 1000}}, 1000, None, False),
        ({"owner": FILES, "pod": {"runAsGroup": 77}}, 3000, 77, False),
        ({"owner": FileOwner(0, 0, "x")}, 0, 0, False),
    ],
)
def test_the_first_that_names_a_user_counts(
    given: dict[str, Any], user: int | None, group: int | None, asked: bool
) -> None:
    job = made(**given)
    context = pod_of(job)["securityContext"]
    assert (context.get("runAsUser"), context.get("runAsGroup")) == (user, group)
    assert context.get("runAsNonRoot") is (None if user == 0 else True)
    assert "fsGroup" not in context, "the kubelet would rewrite a whole volume under a running trainer"
    assert request_of(job).find_owner is asked


def test_the_trainers_container_counts_before_its_pod() -> None:
    job = made(pod={"runAsUser": 1000}, container={"runAsUser": 1001}, named={"user": 2000}, owner=FILES)
    assert pod_of(job)["containers"][0]["securityContext"]["runAsUser"] == 1001
    assert not request_of(job).find_owner


def test_a_template_that_forbids_root_is_not_gone_round() -> None:
    with pytest.raises(AccessRefused, match="runAsNonRoot: true") as caught:
        made(pod={"runAsNonRoot": True}, owner=FileOwner(0, 0, "checkpoint-40/model.safetensors"))
    assert caught.value.reason == "UserRefused"


def test_files_in_an_object_store_have_no_owner() -> None:
    template, rlhfjob = copy.deepcopy(TEMPLATE), copy.deepcopy(RLHFJOB)
    template["spec"]["securityContext"] = {}
    rlhfjob["spec"]["checkpoints"]["location"] = {"objectStore": {"uri": "s3://bucket/runs/a"}}
    job = build(StartAccess("secure-400-3", Operation.SECURE, 400), rlhfjob, template)
    assert not request_of(job).find_owner
