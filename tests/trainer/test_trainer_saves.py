"""Save records, and where a process starts: what the client leaves on the volume and reads there."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from evalstop_client.client import RECORDS_KEPT, EvalStopClient, Saved
from examples.played import Folder, Play, Player
from examples.trainer.termination import Termination

FILES = {"model.safetensors": 40, "optimizer/rank_0.pt": 7, "empty": 0}


def client(folder: Path, attempt: int = 1, life: str = "9f2c41d0", **more: Any) -> EvalStopClient:
    """One trainer process of attempt `attempt`; `more`: of run.json."""
    run = folder / "run"
    run.mkdir(exist_ok=True)
    (run / "run.json").write_text(json.dumps({"uid": "u-1", "attempt": attempt, **more}))
    return EvalStopClient(run, port=0, host="127.0.0.1", life=life)


def write(folder: Path, files: dict[str, int] = FILES) -> Path:
    for name, size in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x" * size)
    return folder


def save(c: EvalStopClient, step: int, files: dict[str, int] = FILES) -> Path:
    """As a trainer does: the folder, then the word that it is whole."""
    location = Path(c._run_file.parent.parent) / "ckpt"  # type: ignore[union-attr]
    folder = write(location / f"checkpoint-{step}", files)
    c.checkpoint_saved(step, folder)
    return folder


def records(location: Path) -> dict[str, dict[str, Any]]:
    """By name; what a killed process left under a temporary name is none."""
    return {p.name: json.loads(p.read_text()) for p in (location / ".evalstop" / "saves").glob("*.json")}


def test_a_save_record_names_the_life_the_step_and_every_file(tmp_path: Path) -> None:
    save(client(tmp_path, attempt=2), 400)
    assert records(tmp_path / "ckpt") == {
        "2-9f2c41d0-400.json": {
            "uid": "u-1",
            "attempt": "2-9f2c41d0",
            "step": 400,
            "sequence": 1,
            "name": "checkpoint-400",
            "files": FILES,
        }
    }


def test_a_checkpoint_in_folders_of_folders_is_named_from_the_location(tmp_path: Path) -> None:
    """OpenRLHF: one folder for each role, the step's folder inside it."""
    c, tag = client(tmp_path), "global_step40"
    roles = [
        write(tmp_path / "ckpt" / role / tag, {"mp_rank_00_model_states.pt": 5})
        for role in ("_critic", "_actor")
    ]
    c.checkpoint_saved(40, roles)
    c.checkpoint_saved(41, roles[1], location=tmp_path / "ckpt")
    found = records(tmp_path / "ckpt")
    name = "mp_rank_00_model_states.pt"
    assert found["1-9f2c41d0-41.json"]["files"] == {f"_actor/{tag}/{name}": 5}
    assert c.resume_path(tmp_path / "ckpt") == str(roles[1])
    c.checkpoint_saved(40, roles)
    found = records(tmp_path / "ckpt")
    assert found.keys() == {"1-9f2c41d0-40.json"}, "what 41 said of the same folder is said anew"
    assert found["1-9f2c41d0-40.json"]["files"] == {f"_actor/{tag}/{name}": 5, f"_critic/{tag}/{name}": 5}
    assert found["1-9f2c41d0-40.json"]["name"] == tag


def test_all_ranks_wait_and_one_records(tmp_path: Path) -> None:
    """Other ranks' files are not there yet when the first one has saved its own."""
    folder, waited = write(tmp_path / "ckpt" / "checkpoint-10"), []

    def barrier() -> None:
        waited.append(sorted(p.name for p in folder.iterdir()))
        (folder / "rank_1.pt").write_bytes(b"late")

    silent = client(tmp_path)
    silent.speaks = False
    silent.checkpoint_saved(10, folder, barrier=barrier)
    assert len(waited) == 1
    assert not (tmp_path / "ckpt" / ".evalstop").exists()
    (folder / "rank_1.pt").unlink()
    client(tmp_path).checkpoint_saved(10, folder, barrier=barrier)
    assert records(tmp_path / "ckpt")["1-9f2c41d0-10.json"]["files"] == {**FILES, "rank_1.pt": 4}


def test_a_record_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    """Killed at any moment of a save, what is there can be read, and the next process clears up."""
    location = tmp_path / "ckpt"
    for delay in (0.0, 0.002, 0.004, 0.006, 0.01, 0.015, 0.02, 0.03):
        pid = os.fork()
        if pid == 0:
            c = client(tmp_path, life=f"k{int(delay * 1000)}")
            for step in range(1000):
                save(c, step, {"w": 100})
            os._exit(0)
        time.sleep(0.05 + delay)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        for name, record in records(location).items():
            assert name == f"{record['attempt']}-{record['step']}.json"
            assert record["files"] == {"w": 100}
    save(client(tmp_path), 5000)
    assert not list(location.glob(".evalstop/saves/.tmp-*"))


def test_records_of_rotated_checkpoints_go_and_their_number_is_bounded(tmp_path: Path) -> None:
    c, location = client(tmp_path), tmp_path / "ckpt"
    for step in range(200):
        save(c, step, {"w": 1})
        shutil.rmtree(location / f"checkpoint-{step - 3}", ignore_errors=True)
    steps = sorted(record["step"] for record in records(location).values())
    assert steps[-4:] == [196, 197, 198, 199]
    assert 4 <= len(steps) <= RECORDS_KEPT + 4


def test_a_checkpoint_that_is_written_anew_has_one_record(tmp_path: Path) -> None:
    """The record of the branch that was left would bless whatever lies there now."""
    location = tmp_path / "ckpt"
    folder = save(client(tmp_path, life="a"), 40)
    save(client(tmp_path, life="a"), 50)
    again = client(tmp_path, life="b")
    again.checkpoint_begins(folder)
    assert records(location).keys() == {"1-a-50.json"}
    save(client(tmp_path, life="a"), 40)
    save(again, 40)
    assert records(location).keys() == {"1-a-50.json", "1-b-40.json"}


def test_a_record_that_cannot_be_written_costs_that_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    c = client(tmp_path)
    (tmp_path / "ckpt").mkdir()
    (tmp_path / "ckpt" / ".evalstop").write_text("a file where the folder should be")
    save(c, 40)
    c.checkpoint_saved(50, tmp_path / "ckpt" / "checkpoint-50")
    (tmp_path / "ckpt" / "checkpoint-60").mkdir()
    c.checkpoint_saved(60, tmp_path / "ckpt" / "checkpoint-60")
    said = [r.getMessage() for r in caplog.records]
    assert [message.partition(":")[0].partition(",")[0] for message in said] == [
        "no save record of step 40",
        "no save record of step 50",
        "no save record of step 60",
    ]
    assert "there are no files in" in said[2]
    assert b"rlhf_checkpoint_step 60.0" in c.exposition()


@pytest.mark.parametrize(
    ("path", "location", "message"),
    [
        ("s3://bucket/checkpoint-1", None, "expected the folder of a checkpoint on a volume"),
        ([], None, "expected the folder of a checkpoint on a volume"),
        (["/a/_actor/global_step1", "/a/_critic/global_step2"], None, "folders of one name"),
        ("/a/checkpoint-1", "/b", "expected a folder inside of the location /b, got /a/checkpoint-1"),
        ("/a", "/a", "expected a folder inside of the location /a"),
    ],
)
def test_a_path_that_cannot_be_is_refused(tmp_path: Path, path: Any, location: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        client(tmp_path).checkpoint_saved(1, path, location=location)


# where a process starts


# row 17
def test_a_restarted_process_goes_on_from_what_its_attempt_saved(tmp_path: Path) -> None:
    """Every restart of the pod went back to the resume point, and lost what the attempt had done."""
    location = tmp_path / "ckpt"
    old = save(client(tmp_path, attempt=1), 400)
    resume = {"path": str(old), "step": 400}
    assert client(tmp_path, attempt=2, resume=resume, life="b").resume_path(location) == str(old)
    newer = save(client(tmp_path, attempt=2, resume=resume, life="b"), 420)
    assert client(tmp_path, attempt=2, resume=resume, life="c").resume_path(location) == str(newer)


def test_where_a_process_starts(tmp_path: Path) -> None:
    location = tmp_path / "ckpt"
    assert client(tmp_path).resume_path(location) is None
    first = save(client(tmp_path, life="a"), 10)
    second = save(client(tmp_path, life="a"), 20)
    assert client(tmp_path, life="b").resume_path(location) == str(second)
    save(client(tmp_path, life="b"), 10)  # put back, and on again: the newest save, not the highest step
    assert client(tmp_path, life="c").resume_path(location) == str(first)
    assert client(tmp_path, attempt=2).resume_path(location) == str(first)  # preempted
    (first / "model.safetensors").write_bytes(b"half")
    assert client(tmp_path, life="c").resume_path(location) == str(second)
    assert client(tmp_path, life="c").resume_path(location, usable=lambda path: path == "?") is None
    (second / "empty").unlink()
    assert client(tmp_path, life="c").resume_path(location) is None
    write(location / "checkpoint-99")  # without a record it may be torn
    assert client(tmp_path, life="c").resume_path(location) is None
    named = {"path": ".evalstop/u-1/resume/checkpoint-10"}
    assert client(tmp_path, resume=named).resume_path(location) == str(location / named["path"])


def test_the_page_says_where_it_starts_without_being_told(tmp_path: Path) -> None:
    """Else each restart would look like a run from step 0, and its rule would forget all evals before."""
    location = tmp_path / "ckpt"
    save(client(tmp_path), 20)

    def said(found: EvalStopClient) -> bool:
        return b"\nrlhf_resumed_step 20.0\n" in found.exposition()

    silent = client(tmp_path, life="b")
    assert not said(silent)
    silent.resume_path(location)
    assert said(silent)
    for before in (True, False):  # what the trainer says itself counts
        told = client(tmp_path, life="c")
        steps = [lambda told=told: told.resumed(0), lambda told=told: told.resume_path(location)]
        for step in steps if before else reversed(steps):
            step()
        assert not said(told)


def test_another_run_s_attempt_of_the_same_number_is_not_this_one(tmp_path: Path) -> None:
    """Leftovers of an earlier RLHFJob in the folder: its attempt 1 is not ours, and resumes by name count."""
    location, run = tmp_path / "ckpt", tmp_path / "run"
    left = save(client(tmp_path), 400)
    (run / "run.json").write_text(
        json.dumps({"uid": "u-2", "attempt": 1, "resume": {"path": "/retained/400", "step": 400}})
    )
    assert EvalStopClient(run).resume_path(location) == "/retained/400"
    (run / "run.json").write_text(json.dumps({"uid": "u-2", "attempt": 1}))
    assert EvalStopClient(run).resume_path(location) == str(left)


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"name": 3}', '{"name": "x", "files": {"a": -1}}', '{"name": "x", "files": 1}'],
)
def test_what_is_no_record_is_passed_over(tmp_path: Path, content: str) -> None:
    folder = save(client(tmp_path), 10)
    saves = tmp_path / "ckpt" / ".evalstop" / "saves"
    (saves / "1-zz-900.json").write_text(content)
    (saves / "notes.txt").write_text("mine")
    assert client(tmp_path).resume_path(tmp_path / "ckpt") == str(folder)
    save(client(tmp_path), 20)
    assert (saves / "notes.txt").read_text() == "mine"


# row 17
def test_a_played_run_that_restarts_goes_on_from_its_own_attempt(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "ckpt")
    named = folder.save(200, 2.0, 1)
    play = Play(10.0)

    def player() -> Player:
        c = client(tmp_path, attempt=2, resume={"path": str(named), "step": 200})
        return Player(play, c, folder, Termination(), tmp_path / "words")

    one = player()
    assert one._resume() == 2.0
    one._save(5.0)
    assert player()._resume() == 5.0


def test_a_record_knows_when_its_checkpoint_is_gone(tmp_path: Path) -> None:
    write(tmp_path / "a" / "t", {"x": 1}), write(tmp_path / "b" / "t", {"x": 1})
    record = Saved("", "1-a", 1, 1, "t", {"a/t/x": 1, "b/t/x": 1})
    assert record.whole(tmp_path)
    shutil.rmtree(tmp_path / "a")
    assert not record.whole(tmp_path)
    assert not record.rotated_away(tmp_path)
    shutil.rmtree(tmp_path / "b")
    assert record.rotated_away(tmp_path)
