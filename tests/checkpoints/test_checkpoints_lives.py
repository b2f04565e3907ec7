"""Whose checkpoint it is: told by save records and inventories, on real files; and who owns the folder."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from controller.checkpoints import judge, volume
from controller.checkpoints.access import answer, carry_out
from controller.checkpoints.errors import AccessError, Reason
from controller.checkpoints.request import BranchLife, Request, Result, Source
from controller.policy.job import key_of
from controller.policy.job.cures import cure_of
from tests.support.trainers_files import age, hugging_face, plain, save, sharded, torch_file, write

OWNER, OTHER = "0f2a1bb7-uid", "77aa-uid"
FIRST = BranchLife("1-aa01b2c3")
SECOND = BranchLife("1-9f2c41d0", after=20)


def ask(location: Path | str, operation: str, step: int = 0, layout: str = "Plain", **more: Any) -> Result:
    return carry_out(
        Request(operation, layout, more.pop("owner", OWNER), str(location), step, job="ns/run", **more)
    )


def refusal(reason: Reason, *args: Any, **more: Any) -> AccessError:
    with pytest.raises(AccessError) as caught:
        ask(*args, **more)
    assert caught.value.reason is reason, caught.value.message
    return caught.value


def record(location: Path, attempt: str, step: int, name: str, files: Any, more: int = 0) -> None:
    """As the trainer's client writes it once all ranks have saved."""
    sizes = {file: len(data) + more for file, data in files.items()}
    document = {"attempt": attempt, "step": step, "name": name, "files": sizes}
    write(location / ".evalstop" / "saves", {f"{attempt}-{step}.json": json.dumps(document).encode()})


# row 1
def test_the_same_step_of_two_lives_has_two_pins_and_one_is_let_go_by_its_path(tmp_path: Path) -> None:
    """A pod restarts from 20 and reaches 40 again: its checkpoint is pinned beside the one that was left.

    Before lives were known, both were `<uid>/40`: the first was answered for the second, and releasing step
    40 deleted every pin of it.
    """
    ask(tmp_path, "claim", attempt="1")
    for step in (20, 40):
        save(tmp_path, "Plain", step, plain(step, b"first life"))
    left = ask(tmp_path, "secure", 40, branch=(FIRST,))
    ask(tmp_path, "claim", attempt="1-9f2c41d0")
    gone = refusal(Reason.INCOMPLETE, tmp_path, "secure", 40, branch=(SECOND, FIRST))
    assert "first seen" in gone.message, "the one that was left is not answered for the new one"
    shutil.rmtree(tmp_path / "step-40")
    save(tmp_path, "Plain", 40, plain(40, b"second life"))
    best = ask(tmp_path, "secure", 40, branch=(SECOND, FIRST), release=(left.path,))
    assert left.path == f"{tmp_path}/.evalstop/{OWNER}/1-aa01b2c3-40"
    assert best.path == f"{tmp_path}/.evalstop/{OWNER}/1-9f2c41d0-40"
    assert (best.attempt, best.evidence) == ("1-9f2c41d0", "Manifest")
    assert best.digest != left.digest
    assert not Path(left.path).exists()
    assert b"second life" in Path(best.path, "params.npz").read_bytes()
    assert ask(tmp_path, "secure", 20, branch=(SECOND, FIRST)).attempt == "1-aa01b2c3", (
        "it went on from there"
    )


# row 10
def test_a_claim_tells_how_far_the_checkpoints_of_other_processes_go(tmp_path: Path) -> None:
    """Of a branch that was left, say, whose last evals nobody read."""
    assert ask(tmp_path, "claim", attempt="1").step == 0
    for step in (20, 40):
        save(tmp_path, "Plain", step, plain(step, b"first life"))
    save(tmp_path, "Plain", 60, plain(60, b"second life"))
    record(tmp_path, "1-9f2c41d0", 60, "step-60", plain(60, b"second life"))
    assert ask(tmp_path, "claim", attempt="1-9f2c41d0").step == 40, "its own say nothing"
    assert ask(tmp_path, "claim", attempt="2").step == 60


# row 10
@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize(("again", "strange"), [(False, True), (True, False)])
def test_a_claim_tells_whether_its_process_started_from_another_branchs_checkpoint(
    recorded: bool, again: bool, strange: bool, tmp_path: Path
) -> None:
    """The second process went back to 20, and the third started from 40: from the first one's, which still
    lies there, or from the second's, if that has saved the step ``again``."""
    lives = {FIRST.attempt: (20, 40), SECOND.attempt: (40,) if again else ()}
    ask(tmp_path, "claim", attempt="1")
    for life, steps in lives.items():
        if recorded and life != FIRST.attempt:
            age(tmp_path / ".evalstop" / "saves")
        for step in steps:
            shutil.rmtree(tmp_path / f"step-{step}", ignore_errors=True)
            files = plain(step, life.encode())
            save(tmp_path, "Plain", step, files)
            if recorded:
                record(tmp_path, life, step, f"step-{step}", files)
        if life == FIRST.attempt:
            assert not ask(tmp_path, "claim", attempt=SECOND.attempt, branch=(SECOND, FIRST)).other_branch
    third = BranchLife("1-c3c3c3c3", after=40)
    found = ask(tmp_path, "claim", attempt=third.attempt, branch=(third, SECOND, FIRST))
    assert found.other_branch is strange
    assert json.loads(found.to_json()).get("otherBranch", False) is strange


# row 10
@pytest.mark.parametrize(
    ("writer", "before", "strange"),
    [("1-0d0d0d0d", False, True), (SECOND.attempt, False, False), ("1-0d0d0d0d", True, False)],
    ids=["a process that nobody saw", "one that is known", "what lay there before the job"],
)
def test_a_process_began_elsewhere_if_an_unseen_one_has_saved_and_its_own_start_is_gone(
    writer: str, before: bool, strange: bool, tmp_path: Path
) -> None:
    """The operator was away: a process came and went, the next one started from what it had saved."""

    def left() -> None:
        files = plain(60, writer.encode())
        save(tmp_path, "Plain", 60, files)
        record(tmp_path, writer, 60, "step-60", files)

    if before:
        left()
    ask(tmp_path, "claim", attempt="1")
    if not before:
        left()
    third = BranchLife("1-c3c3c3c3", after=40)
    known = (FIRST.attempt, SECOND.attempt, third.attempt)
    found = ask(tmp_path, "claim", attempt=third.attempt, branch=(third, SECOND, FIRST), known=known)
    assert found.other_branch is strange


@pytest.mark.parametrize("recorded", [True, False])
def test_a_process_that_saves_the_step_it_started_from_anew_has_its_own(
    recorded: bool, tmp_path: Path
) -> None:
    """As it does whose last step that was: its eval of the step is another one than that of before. It was
    refused, and the best lost (`python -m tests.bench faults --runs 1 --seed 400048`)."""
    ask(tmp_path, "claim", attempt="1")
    save(tmp_path, "Plain", 20, plain(20, b"first life"))
    if recorded:
        record(tmp_path, "1-aa01b2c3", 20, "step-20", plain(20, b"first life"))
    started_from = ask(tmp_path, "secure", 20, branch=(SECOND, FIRST))
    assert started_from.attempt == "1-aa01b2c3", "what it started from will do as long as it saves no other"
    ask(tmp_path, "claim", attempt="1-9f2c41d0")
    shutil.rmtree(tmp_path / "step-20")
    save(tmp_path, "Plain", 20, plain(20, b"second life"))
    if recorded:
        age(tmp_path / ".evalstop" / "saves")
        record(tmp_path, "1-9f2c41d0", 20, "step-20", plain(20, b"second life"))
    own = ask(tmp_path, "secure", 20, branch=(SECOND, FIRST))
    assert own.attempt == "1-9f2c41d0"
    assert b"second life" in Path(own.path, "params.npz").read_bytes()


@pytest.mark.parametrize("recorded", [True, False])
def test_what_a_process_started_from_is_on_its_way_whichever_branch_it_was_of(
    recorded: bool, tmp_path: Path
) -> None:
    """The second process went back to 20. The third started from the 40 that the first had left there."""
    third = BranchLife("1-c3c3c3c3", after=40, base=40)
    ask(tmp_path, "claim", attempt="1")
    for step in (20, 40):
        files = plain(step, b"first life")
        save(tmp_path, "Plain", step, files)
        if recorded:
            record(tmp_path, FIRST.attempt, step, f"step-{step}", files)
    for branch in ((SECOND, FIRST), (third, SECOND, FIRST)):
        refusal(Reason.INCOMPLETE, tmp_path, "secure", 40, branch=branch)
        ask(tmp_path, "claim", attempt=branch[0].attempt, branch=branch)
    refusal(Reason.INCOMPLETE, tmp_path, "secure", 40, branch=(SECOND, FIRST))
    pinned = ask(tmp_path, "secure", 40, branch=(third, SECOND, FIRST))
    assert b"first life" in Path(pinned.path, "params.npz").read_bytes()


@pytest.mark.parametrize("rotated", [False, True])
@pytest.mark.parametrize("recorded", [True, False])
def test_what_a_process_that_nobody_saw_saved_over_is_not_what_the_next_one_started_from(
    recorded: bool, rotated: bool, tmp_path: Path
) -> None:
    """The first process saved 20 and was pinned; one that nobody saw saved 20 anew; the third started from
    that one's (tests/faults/traces/s1-41006240.json, s1-41008480.json)."""
    third = BranchLife("1-c3c3c3c3", after=20, base=20)
    ask(tmp_path, "claim", attempt="1")
    first = plain(20, b"first life")
    save(tmp_path, "Plain", 20, first)
    if recorded:
        record(tmp_path, FIRST.attempt, 20, "step-20", first)
    former = ask(tmp_path, "secure", 20, branch=(FIRST,))
    shutil.rmtree(tmp_path / "step-20")
    unseen = plain(20, b"nobody saw")
    save(tmp_path, "Plain", 20, unseen)
    if recorded:
        age(tmp_path / ".evalstop" / "saves")
        record(tmp_path, "1-ee55ee55", 20, "step-20", unseen)
    ask(tmp_path, "claim", attempt=third.attempt, branch=(third, FIRST))
    if rotated:
        shutil.rmtree(tmp_path / "step-20")
        gone = refusal(Reason.INCOMPLETE, tmp_path, "secure", 20, branch=(third, FIRST))
        assert "went on from" in gone.message
        assert Path(former.path).exists()
        return
    pinned = ask(tmp_path, "secure", 20, branch=(third, FIRST))
    assert b"nobody saw" in Path(pinned.path, "params.npz").read_bytes()


def test_what_the_next_process_saved_is_not_what_one_started_from_whose_claim_came_late(
    tmp_path: Path,
) -> None:
    """Its claim hung, was given up, and went on once the next process had saved its first step anew."""
    second, third = (BranchLife(life, after=20, base=20) for life in ("1-9f2c41d0", "1-c3c3c3c3"))
    ask(tmp_path, "claim", attempt="1")
    for life, by in ((FIRST, b"first life"), (second, b"second life"), (third, b"third life")):
        shutil.rmtree(tmp_path / "step-20", ignore_errors=True)
        save(tmp_path, "Plain", 20, plain(20, by))
        if (saves := tmp_path / ".evalstop" / "saves").exists():
            age(saves)
        record(tmp_path, life.attempt, 20, "step-20", plain(20, by))
    for life in (second, third):
        ask(tmp_path, "claim", attempt=life.attempt, branch=(life, FIRST))
    told = refusal(Reason.INCOMPLETE, tmp_path, "secure", 20, branch=(second, FIRST))
    assert "written anew after the save record" in told.message
    assert ask(tmp_path, "secure", 20, branch=(third, FIRST)).attempt == third.attempt


def test_what_a_later_process_saved_is_not_what_one_started_from_though_only_its_claim_came(
    tmp_path: Path,
) -> None:
    """It saved nothing itself, and the later one was never noted: the request says that it came later."""
    second, third = (BranchLife(life, after=20, base=20) for life in ("1-9f2c41d0", "1-c3c3c3c3"))
    ask(tmp_path, "claim", attempt="1")
    for life, by in ((FIRST, b"first life"), (third, b"third life")):
        shutil.rmtree(tmp_path / "step-20", ignore_errors=True)
        save(tmp_path, "Plain", 20, plain(20, by))
        if (saves := tmp_path / ".evalstop" / "saves").exists():
            age(saves)
        record(tmp_path, life.attempt, 20, "step-20", plain(20, by))
    ask(tmp_path, "claim", attempt=second.attempt, branch=(second, FIRST))
    told = refusal(Reason.INCOMPLETE, tmp_path, "secure", 20, branch=(second, FIRST), later=(third.attempt,))
    assert f"process {third.attempt}" in told.message
    assert ask(tmp_path, "secure", 20, branch=(third, FIRST)).attempt == third.attempt


# row 11
def test_what_lay_there_before_the_first_start_is_nobodys(tmp_path: Path) -> None:
    """Leftovers of an earlier run count for nothing, except the one that this run went on from."""
    for step in (10, 40):
        save(tmp_path, "Plain", step, plain(step, b"an earlier run"))
    ask(tmp_path, "claim", attempt="1")
    told = refusal(Reason.INCOMPLETE, tmp_path, "secure", 40, branch=(FIRST,))
    assert "it lay there already, before process 1-aa01b2c3 started" in told.message
    assert "; nothing that lies there is of this run; step 40" in told.message
    assert key_of(str(told.reason), told.message) == "OtherFolder", "it may save elsewhere"
    went_on = (BranchLife("1-aa01b2c3", after=10, base=10),)
    assert ask(tmp_path, "secure", 10, branch=went_on).attempt == "0"
    refusal(Reason.INCOMPLETE, tmp_path, "secure", 40, branch=went_on)


# row 11
@pytest.mark.parametrize("done", [1, 2, 3])
def test_a_step_written_anew_in_place_is_the_new_lifes_and_half_of_it_nobodys(
    done: int, tmp_path: Path
) -> None:
    """Files of the same names and sizes, some of the new save and some of the old: no size tells it."""
    folder = save(tmp_path, "Plain", 40, plain(40, b"1"))
    ask(tmp_path, "claim", attempt="1")
    anew = list(plain(40, b"2").items())
    write(folder, dict(anew[:done]))
    if done < 3:
        told = refusal(Reason.INCOMPLETE, tmp_path, "secure", 40, branch=(FIRST,))
        assert "mixture" in told.message or "differs" in told.message
    else:
        assert ask(tmp_path, "secure", 40, branch=(FIRST,)).attempt == "1-aa01b2c3"


# row 1
def test_copies_are_named_by_process_and_step_and_the_latest_is_of_the_present_branch(tmp_path: Path) -> None:
    """The run went back from 80 to 20 and has come to 60: the newest checkpoint that lies there is of the
    branch that was left. Copies of one step by two processes lie side by side."""
    location, kept = tmp_path / "ckpt", tmp_path / "kept"
    location.mkdir()
    ask(location, "claim", attempt="1")
    for step in (20, 40, 80):
        save(location, "Plain", step, plain(step, b"first life"))
    first = ask(location, "secure", 40, branch=(FIRST,))
    ask(location, "claim", attempt="1-9f2c41d0")
    shutil.rmtree(location / "step-40")
    for step in (40, 60):
        save(location, "Plain", step, plain(step, b"second life"))
    both = (SECOND, FIRST)
    second = ask(location, "secure", 40, branch=both)
    copies = []
    for pin in (first, second):
        source = Source(pin.path, pin.digest, 40)
        more = {"source": source, "destination": str(kept), "keep_latest": True, "branch": both}
        copies.append(ask(location, "retain", 40, **more))
    assert [Path(c.path).name for c in copies] == ["1-aa01b2c3-40", "1-9f2c41d0-40"]
    assert [c.latest["path"] for c in copies] == [f"{kept}/1-9f2c41d0-60"] * 2
    for copy, life in zip(copies, (b"first life", b"second life"), strict=True):
        assert life in Path(copy.path, "params.npz").read_bytes()


def test_a_save_record_is_the_first_evidence_and_tells_the_writer(tmp_path: Path) -> None:
    files = dict(hugging_face(40))
    del files["training_args.bin"]  # of no kind that the format would prove whole
    folder = save(tmp_path, "HuggingFace", 40, files)
    ask(tmp_path, "claim", attempt="1", layout="HuggingFace")
    refusal(Reason.INCOMPLETE, tmp_path, "secure", 40, layout="HuggingFace", branch=(FIRST,))
    record(tmp_path, "1-aa01b2c3", 40, "checkpoint-40", files)
    done = ask(tmp_path, "secure", 40, layout="HuggingFace", branch=(FIRST,))
    assert (done.attempt, done.evidence) == ("1-aa01b2c3", "SaveRecord")
    shutil.rmtree(done.path)
    other = refusal(Reason.INCOMPLETE, tmp_path, "secure", 40, layout="HuggingFace", branch=(SECOND,))
    assert "process 1-aa01b2c3 wrote it, as its save record says" in other.message
    record(tmp_path, "1-aa01b2c3", 40, "checkpoint-40", files, more=1)
    short = refusal(Reason.INCOMPLETE, tmp_path, "secure", 40, layout="HuggingFace", branch=(FIRST,))
    assert "in the save record" in short.message
    record(tmp_path, "1-aa01b2c3", 40, "checkpoint-40", files)
    (folder / "tokenizer.json").unlink()
    lost = refusal(Reason.INCOMPLETE, tmp_path, "secure", 40, layout="HuggingFace", branch=(FIRST,))
    assert "tokenizer.json is missing (the save record lists it)" in lost.message


def test_a_save_over_a_recorded_one_voids_the_record(tmp_path: Path) -> None:
    """A process that nobody has seen yet writes over it with files of the same sizes."""
    files = hugging_face(40)
    folder = save(tmp_path, "HuggingFace", 40, files)
    record(tmp_path, "1-aa01b2c3", 40, "checkpoint-40", files)
    age(tmp_path / ".evalstop" / "saves")
    write(folder, {"model-00001-of-00002.safetensors": files["model-00001-of-00002.safetensors"]})
    told = refusal(Reason.INCOMPLETE, tmp_path, "secure", 40, layout="HuggingFace", branch=(FIRST,))
    assert "was written anew after the save record" in told.message


def test_a_step_saved_again_by_the_same_process_is_torn_until_it_is_recorded_again(tmp_path: Path) -> None:
    """It has taken the old record away. Half of the new save beside half of the old one has all names and
    sizes, and no inventory is made between two saves of one process.
    """
    ask(tmp_path, "claim", attempt="1", layout="HuggingFace")
    fsdp = {**sharded("pytorch_model_fsdp_0"), "rng_state_0.pth": torch_file()}
    saves = {n: {**fsdp, "trainer_state.json": json.dumps({"global_step": n}).encode()} for n in (20, 40)}
    for step, files in saves.items():
        save(tmp_path, "HuggingFace", step, files)
        record(tmp_path, FIRST.attempt, step, f"checkpoint-{step}", files)
    own = tmp_path / ".evalstop" / "saves" / f"{FIRST.attempt}-40.json"
    told = own.read_bytes()
    own.unlink()
    shard = tmp_path / "checkpoint-40" / "pytorch_model_fsdp_0" / "__0_0.distcp"
    shard.write_bytes(bytes(reversed(shard.read_bytes())))
    half = refusal(Reason.INCOMPLETE, tmp_path, "secure", 40, layout="HuggingFace", branch=(FIRST,))
    assert f"process {FIRST.attempt} writes save records, and has written none of this one" in half.message
    own.write_bytes(told)
    done = ask(tmp_path, "secure", 40, layout="HuggingFace", branch=(FIRST,))
    assert done.evidence == "SaveRecord"


def test_without_an_inventory_only_a_save_record_tells_whose_it_is(tmp_path: Path) -> None:
    files = plain(40)
    save(tmp_path, "Plain", 40, files)
    refusal(Reason.INCOMPLETE, tmp_path, "secure", 40, branch=(FIRST,))
    record(tmp_path, "1-aa01b2c3", 40, "step-40", files)
    assert ask(tmp_path, "secure", 40, branch=(FIRST,)).evidence == "SaveRecord"


def test_a_later_lifes_checkpoint_is_not_an_earlier_ones(tmp_path: Path) -> None:
    ask(tmp_path, "claim", attempt="1")
    ask(tmp_path, "claim", attempt="2")
    save(tmp_path, "Plain", 40)
    branch = (BranchLife("2-bb", after=60), FIRST)
    told = refusal(Reason.INCOMPLETE, tmp_path, "secure", 40, branch=branch)
    assert "written after process 1-aa01b2c3 had ended" in told.message


# row 11
def test_a_folder_has_one_owner_and_both_are_named(tmp_path: Path) -> None:
    place = tmp_path / "a"
    place.mkdir()
    ask(place, "claim", attempt="1")
    ask(place, "claim", attempt="1")
    for location in (place, place / "inside", tmp_path):
        location.mkdir(exist_ok=True)
        told = refusal(Reason.LOCATION_TAKEN, location, "claim", owner=OTHER, attempt="1")
        assert told.holder == (OWNER, "ns/run")
        assert OWNER in told.message
        assert "ns/run" in told.message
    (tmp_path / "beside").mkdir()
    ask(tmp_path / "beside", "claim", owner=OTHER, attempt="1")
    save(place, "Plain", 40)
    refusal(Reason.LOCATION_TAKEN, place, "secure", 40, owner=OTHER)


def test_a_job_made_anew_takes_its_predecessors_folder_over(tmp_path: Path) -> None:
    ask(tmp_path, "claim", attempt="1")
    ask(tmp_path, "claim", owner=OTHER, attempt="1", former=(OWNER,))
    ask(tmp_path, "claim", owner=OTHER, attempt="2")
    assert refusal(Reason.LOCATION_TAKEN, tmp_path, "claim", attempt="2").holder == (OTHER, "ns/run")


def test_a_refused_claim_tells_the_holder_in_its_message(tmp_path: Path) -> None:
    ask(tmp_path, "claim", attempt="1")
    request = Request("claim", "Plain", OTHER, str(tmp_path), attempt="1", job="ns/other")
    said = json.loads(answer({"EVALSTOP_REQUEST": request.to_json()}))
    assert (said["reason"], said["holder"]) == ("LocationTaken", {"uid": OWNER, "job": "ns/run"})


@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_object_stores_know_owners_and_lives_too(scheme: str, tmp_path: Path) -> None:
    import fsspec  # type: ignore[import-untyped]

    files = fsspec.filesystem(scheme)
    root = f"{tmp_path}/ckpt"
    location = f"{scheme}://{root}"

    def put(step: int, salt: bytes) -> None:
        for name, data in plain(step, salt).items():
            files.makedirs(f"{root}/step-{step}/{name}".rpartition("/")[0], exist_ok=True)
            files.pipe_file(f"{root}/step-{step}/{name}", data)

    put(40, b"an earlier run")
    ask(location, "claim", attempt="1")
    refusal(Reason.INCOMPLETE, location, "secure", 40, branch=(FIRST,))
    refusal(Reason.LOCATION_TAKEN, location, "claim", owner=OTHER, attempt="1")
    files.rm(f"{root}/step-40", recursive=True)
    put(40, b"this one, longer")
    done = ask(location, "secure", 40, branch=(FIRST,))
    assert done.attempt == "1-aa01b2c3"
    assert "/1-aa01b2c3-40/" in done.path
    source = Source(done.path, done.digest, 40)
    assert ask(location, "check", source=source).digest == done.digest
    ask(location, "claim", attempt="1", release=(done.path,))
    assert refusal(Reason.MISSING, location, "check", source=source)
    if scheme == "memory":
        files.rm("/", recursive=True)


def test_a_pin_is_checked_by_what_was_noted_with_its_digest(tmp_path: Path) -> None:
    folder = save(tmp_path, "Plain", 40)
    done = ask(tmp_path, "secure", 40)
    source = Source(done.path, done.digest, 40)
    checked = ask(tmp_path, "check", source=source)
    assert (checked.digest, checked.files, checked.bytes) == (done.digest, done.files, done.bytes)
    shutil.rmtree(folder)
    assert ask(tmp_path, "check", source=source).digest == done.digest, "rotation does not touch a pin"
    other = Source(done.path, "sha256:" + "0" * 64, 40)
    assert "was recorded" in refusal(Reason.DIGEST_MISMATCH, tmp_path, "check", source=other).message
    pinned = Path(done.path, "params.npz")
    pinned.write_bytes(pinned.read_bytes()[::-1])
    assert (
        "params.npz was written" in refusal(Reason.DIGEST_MISMATCH, tmp_path, "check", source=source).message
    )
    shutil.rmtree(done.path)
    refusal(Reason.MISSING, tmp_path, "check", source=source)
    outside = Source("/etc", done.digest, 40)
    refusal(Reason.BAD_REQUEST, tmp_path, "check", source=outside)


def test_files_that_change_while_they_are_linked_are_not_pinned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save(tmp_path, "Plain", 40)
    link = os.link

    def racing(source: str, *args: Any, **more: Any) -> None:
        link(source, *args, **more)
        write(folder, {"late.bin": b"another file of the save"})

    monkeypatch.setattr(os, "link", racing)
    told = refusal(Reason.INCOMPLETE, tmp_path, "secure", 40)
    assert "while it was being linked" in told.message


def test_a_pin_whose_files_were_written_into_is_not_answered_again(tmp_path: Path) -> None:
    """Of the same sizes, in a format that does not tell."""
    files = hugging_face(40)
    folder = save(tmp_path, "HuggingFace", 40, files)
    record(tmp_path, FIRST.attempt, 40, "checkpoint-40", files)
    ask(tmp_path, "secure", 40, layout="HuggingFace", branch=(FIRST,))
    with (folder / "tokenizer_config.json").open("r+b") as shared:  # a hard link of the pin's
        shared.write(b"[]")
    shutil.rmtree(folder)
    told = refusal(Reason.INCOMPLETE, tmp_path, "secure", 40, layout="HuggingFace", branch=(FIRST,))
    assert "changed since it was pinned" in told.message


def test_a_copy_that_came_out_short_is_not_a_pin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing in the format tells: by its save record the checkpoint is whole, and so are its files."""
    files = hugging_face(40)
    save(tmp_path, "HuggingFace", 40, files)
    record(tmp_path, "1-aa01b2c3", 40, "checkpoint-40", files)
    duplicate = volume.Volume.duplicate

    def short(store: Any, source: str, target: str) -> str:
        if not source.endswith("trainer_state.json"):
            return duplicate(store, source, target)
        with store.create(target) as new:
            new.write(b"{}")
        return "copy"

    monkeypatch.setattr(volume.Volume, "duplicate", short)
    told = refusal(Reason.INCOMPLETE, tmp_path, "secure", 40, layout="HuggingFace", branch=(FIRST,))
    assert "not what was there before" in told.message


@pytest.mark.parametrize("operation", ["secure", "restore"])
def test_what_rotation_takes_between_the_verdict_and_the_links_is_missed(
    operation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its record it was whole when it was looked at."""
    files = hugging_face(40)
    folder = save(tmp_path, "HuggingFace", 40, files)
    record(tmp_path, "1-aa01b2c3", 40, "checkpoint-40", files)
    read = judge.read_record

    def racing(*args: Any) -> Any:
        found = read(*args)
        (folder / sorted(files)[0]).unlink(missing_ok=True)
        return found

    monkeypatch.setattr(judge, "read_record", racing)
    refusal(
        Reason.INCOMPLETE,
        tmp_path,
        operation,
        40,
        layout="HuggingFace",
        branch=(BranchLife("1-aa01b2c3", -1),),
    )


def test_a_step_that_another_process_saved_anew_is_not_the_former_ones(tmp_path: Path) -> None:
    """Rotation left the former record behind, and both saves have the same sizes."""
    files = hugging_face(40)
    save(tmp_path, "HuggingFace", 40, files)
    record(tmp_path, "1-aa01b2c3", 40, "checkpoint-40", files)
    first = tmp_path / ".evalstop" / "saves" / "1-aa01b2c3-40.json"
    record(tmp_path, "1-9f2c41d0", 40, "checkpoint-40", files)
    at = first.stat().st_mtime_ns
    os.utime(tmp_path / ".evalstop" / "saves" / "1-9f2c41d0-40.json", ns=(at + 1, at + 1))
    told = refusal(Reason.INCOMPLETE, tmp_path, "secure", 40, layout="HuggingFace", branch=(FIRST,))
    assert "process 1-9f2c41d0 saved it anew after 1-aa01b2c3" in told.message
    done = ask(tmp_path, "secure", 40, layout="HuggingFace", branch=(SECOND,))
    assert done.attempt == "1-9f2c41d0"


@pytest.mark.parametrize("layout", ["Plain", "Auto", "HuggingFace"])
def test_a_checkpoint_whose_name_has_no_step_is_told_with_the_name_that_is_expected(
    tmp_path: Path, layout: str
) -> None:
    """The cure was to name that very folder in the spec, which restarted the run and cured nothing."""
    location = tmp_path / "run"
    location.mkdir()
    (location / "notes").mkdir()
    save(location, "Plain", 40, plain(40)).rename(location / "step-latest")
    told = refusal(Reason.MISSING, location, "secure", 40, layout=layout, branch=(FIRST,))
    what = "manifest.json, as a checkpoint of layout Plain does, and has not the name of one"
    assert f"; step-latest holds {what}: expected step-<step> in the location" in told.message
    key = key_of(str(told.reason), told.message)
    assert key == "CheckpointMisnamed"
    cure = cure_of(key).filled("run", "lab", "pool", "Plain", told.message)
    assert "named by its step" in cure.text
    assert (cure.command, cure.patch, cure.apply) == ("", "", "")
    inside = refusal(Reason.MISSING, location / "step-latest", "secure", 40, layout=layout, branch=(FIRST,))
    assert "; the location itself, step-latest, holds manifest.json" in inside.message
    assert key_of(str(inside.reason), inside.message) == "CheckpointMisnamed"
    (location / "step-latest").rename(location / "step-40.tmp")
    saving = refusal(Reason.MISSING, location, "secure", 40, layout=layout, branch=(FIRST,))
    assert "no checkpoint of any known layout" in saving.message
    (location / "step-40.tmp").rename(location / "step-40")
    named = refusal(Reason.MISSING, location / "step-40", "secure", 40, layout=layout, branch=(FIRST,))
    assert "it is one itself (manifest.json), and is to lie in the location" in named.message
    assert key_of(str(named.reason), named.message) == "OtherFolder"


def test_links_in_place_of_checkpoints_are_named_and_have_a_cure_of_their_own(tmp_path: Path) -> None:
    location, elsewhere = tmp_path / "ckpt", tmp_path / "elsewhere"
    location.mkdir()
    elsewhere.mkdir()
    for step in (10, 20, 30, 40):
        (location / f"step-{step}").symlink_to(save(elsewhere, "Plain", step, plain(step)))
    told = refusal(Reason.MISSING, location, "secure", 40, branch=(FIRST,))
    assert (
        "; 4 symbolic links do: step-10, step-20, step-30 and 1 more; links are not followed" in told.message
    )
    assert key_of(str(told.reason), told.message) == "CheckpointsAreLinks"
    (location / "notes").mkdir()
    for step in (10, 20, 30, 40):
        (location / f"step-{step}").unlink()
    told = refusal(Reason.MISSING, location, "secure", 40, branch=(FIRST,))
    assert key_of(str(told.reason), told.message) == "OtherFolder"
