"""A fixed part of `python -m tests.torn`, without the libraries: savers that follow their code; its results.

No torn set passes for whole, with save records or without; with them every whole one is found.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from controller.checkpoints.access import carry_out
from controller.checkpoints.errors import AccessError
from tests.torn import content, environment, judge
from tests.torn.__main__ import HALVES, HALVES_OF, RESULTS, followed, half_deleted, half_deleted_of
from tests.torn.crash import Crash, Rank, recording, truth_of
from tests.torn.halves import files
from tests.torn.real_names import REAL
from tests.torn.savers import FIRST, VARIANTS

KILLS = 1  # of each way of writing; the command has 200


# row 3
@pytest.mark.parametrize("recorded", [True, False], ids=["save-records", "no-save-records"])
@pytest.mark.parametrize("name", VARIANTS)
def test_what_a_killed_saver_leaves_is_judged_rightly(name: str, recorded: bool) -> None:
    """Rotation and kills left sets that counted as whole: weights of one rank missing, no optimizer."""
    sums = followed(VARIANTS[name], KILLS, seed=7, recorded=recorded)
    assert sums.kills == KILLS
    assert sums.blessed == []
    if recorded:
        assert sums.refused == {}
        assert sums.found == sums.whole


# row 3
@pytest.mark.parametrize("recorded", [True, False], ids=["save-records", "no-save-records"])
def test_no_half_deleted_hugging_face_checkpoint_is_whole(recorded: bool) -> None:
    """850 of 2,700 such states counted as whole. 180 of them here."""
    sums = half_deleted(20, seed=7, recorded=recorded)
    assert (sums.kills, sums.torn) == (180, 180)
    assert sums.blessed == []


# row 3
@pytest.mark.parametrize("recorded", [True, False], ids=["save-records", "no-save-records"])
@pytest.mark.parametrize("kind", HALVES_OF.values())
def test_no_half_deleted_one_of_the_libraries_is_whole(kind: str, recorded: bool) -> None:
    sums = half_deleted_of(kind, 2, seed=7, recorded=recorded)
    assert sums.torn == sums.kills > 10
    assert sums.blessed == []


def test_openrlhf_is_not_whole_before_its_last_file(tmp_path: Path) -> None:
    """Both roles' states said how many ranks there were, and metric.json was not there or half written."""
    tag = tmp_path / "1-0" / "_actor" / "global_step10"
    tag.mkdir(parents=True)
    (tag / "mp_rank_00_model_states.pt").write_bytes(content.archive())
    (tag / "zero_pp_rank_0_mp_rank_00_optim_states.pt").write_bytes(content.archive())
    (tag.parent / "latest").write_text("global_step10")
    for metric in (None, "", '{"metric_key": nu'):
        if metric is not None:
            (tag / "metric.json").write_text(metric)
        sums = judge.tally(
            "OpenRLHF", [Crash(tag.parents[1], {10: {"_actor/global_step10/metric.json": 40}})]
        )
        assert (sums.torn, sums.blessed) == (1, [])


class _Cut(Exception):
    """The kill."""


def _left_by(name: str, folder: Path, waits: int | None) -> dict[str, bytes]:
    """Return what the first save of a saver leaves in ``folder``: finished, or ended when its one rank has
    waited for the others so often."""
    folder.mkdir(parents=True)
    waited = 0

    def wait() -> None:
        nonlocal waited
        waited += 1
        if waited == waits:
            raise _Cut

    class First(Rank):
        def saved(self, *_: object, **__: object) -> None:
            assert waits is None
            raise _Cut

    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        VARIANTS[name].saver(First(folder, 0, 1, wait, folder / "truth", nowhere))
    except _Cut:
        files = (path for path in folder.rglob("*") if path.is_file())
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
    finally:
        os.close(nowhere)
    raise AssertionError("a saver goes on for ever")


@pytest.mark.parametrize(
    ("finished", "killed", "waits", "why"),
    [
        ("TorchDCP/shards", "TorchDCP/more", 3, "it is the newest one: nothing tells whether more than"),
        ("OpenRLHF/actor", "OpenRLHF/actor-critic", 6, "it is the first one here: nothing tells whether"),
    ],
)
def test_where_nothing_tells_a_finished_first_save_from_a_torn_one(
    tmp_path: Path, finished: str, killed: str, waits: int, why: str
) -> None:
    """The whole ones that are not found without save records: a save that was killed has left the same
    bytes under the same names, so that whoever takes the one for whole takes the other for it too."""
    layout = finished.partition("/")[0]
    whole = _left_by(finished, tmp_path / "whole" / "1-0", None)
    torn = _left_by(killed, tmp_path / "torn" / "1-0", waits)
    assert whole == torn != {}
    for folder in ("whole", "torn"):
        with pytest.raises(AccessError, match=f"nothing tells that it is whole: {why}"):
            carry_out(judge.request(layout, tmp_path / folder / "1-0", FIRST))
    location = tmp_path / "whole" / "1-0"
    (saved,) = (path.parent for path in location.rglob("*") if path.name in (".metadata", "metric.json"))
    recording(tmp_path / "run").checkpoint_saved(FIRST, [saved], location=location)
    assert carry_out(judge.request(layout, location, FIRST)).evidence == "SaveRecord"


# the test itself


@dataclass(frozen=True)
class _Yes:
    """The answer of a judge that says yes to whatever is there."""

    path: str
    evidence: str = "Trust"


def _folder(root: Path, *steps: int) -> dict[int, dict[str, int]]:
    truth = {}
    for step in steps:
        folder = root / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        for name, data in files(step).items():
            (folder / name).write_bytes(data)
        truth[step] = {f"{folder.name}/{name}": len(data) for name, data in files(step).items()}
    return truth


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda folder: None, ""),
        (lambda folder: (folder / "optimizer.pt").unlink(), "1-0 step 20: ['optimizer.pt']"),
        (lambda folder: (folder / "config.json").write_text("{}"), "1-0 step 20: ['config.json']"),
    ],
)
def test_a_judge_that_believes_everything_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: Any, said: str
) -> None:
    location = tmp_path / "1-0"
    truth = _folder(location, 10, 20)
    harm(location / "checkpoint-20")
    monkeypatch.setattr(judge, "carry_out", lambda asked: _Yes(f"{asked.location}/checkpoint-{asked.step}"))
    sums = judge.tally("HuggingFace", [Crash(location, truth)])
    assert sums.blessed == ([said] if said else [])
    assert (sums.whole, sums.found, sums.torn) == ((2, 2, 0) if not said else (1, 1, 1))


def test_a_save_that_had_not_returned_is_torn_unless_every_byte_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = tmp_path / "1-0"
    truth = _folder(location, 10, 20, 30)
    del truth[20], truth[30]
    (location / "checkpoint-30" / "rng_state.pth").write_bytes(b"half")
    monkeypatch.setattr(judge, "carry_out", lambda asked: _Yes(f"{asked.location}/checkpoint-{asked.step}"))
    sums = judge.tally("HuggingFace", [Crash(location, truth)])
    assert (sums.whole, sums.unreturned, sums.blessed) == (1, 1, ["1-0 step 30: the save had not ended"])


def test_a_first_save_is_held_against_one_that_was_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the only crash, in its first save, nothing says how a finished one looks."""
    location = tmp_path / "1-0"
    files_ = _folder(location, 10)
    monkeypatch.setattr(judge, "carry_out", lambda asked: _Yes(f"{asked.location}/checkpoint-{asked.step}"))
    sums = judge.tally("HuggingFace", [Crash(location, {})], whole=lambda: files_)
    assert (sums.whole, sums.unreturned, sums.blessed) == (0, 1, [])
    (location / "checkpoint-10" / "rng_state.pth").unlink()
    sums = judge.tally("HuggingFace", [Crash(location, {})], whole=lambda: files_)
    assert sums.blessed == ["1-0 step 10: the save had not ended"]


def test_a_truth_that_was_cut_off_counts_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "truth"
    assert truth_of(path) == {}
    path.write_text('{"step": 1, "files": {"a": 1}}\n{"step": 1, "files": {"a": 2}}\n{"step": 2, "fi')
    assert truth_of(path) == {1: {"a": 2}}


# what the libraries' own savers left: measured by the command, kept beside it


def test_the_results_that_are_kept_are_of_these_versions_and_have_no_torn_set() -> None:
    kept = json.loads(RESULTS.read_text())
    assert kept["versions"] == environment.versions()
    rows = kept["rows"]
    assert {name.partition(",")[0] for name in rows} <= {*VARIANTS, *REAL, HALVES, *HALVES_OF}
    assert any("the library" in name for name in rows)
    for name, row in rows.items():
        assert row["judged whole though torn"] == 0, name
        if row["save records"]:
            assert row["found"] == row["whole"], name
    assert sum(row["torn"] for row in rows.values()) > 0
