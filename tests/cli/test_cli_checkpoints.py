"""`evalstop checkpoints FOLDER`: what an access Job would find, without a cluster."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from controller.checkpoints.rights import User, pinning
from controller.cli.main import app
from tests.support.trainers_files import FOLDERS, MAKERS, safetensors_file, save, sharded, torch_file

ENV = {"KUBECONFIG": "/nowhere", "COLUMNS": "200"}
WRITER = os.getuid()


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["checkpoints", *map(str, arguments)], env=ENV)


def document(*arguments: object) -> dict[str, Any]:
    done = run(*arguments, "--json")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Steps 100 and 200 are whole, of 300 rotation took a file away."""
    for step in (100, 200):
        save(tmp_path, "HuggingFace", step)
    (save(tmp_path, "HuggingFace", 300) / "optimizer.pt").unlink()
    return tmp_path


def test_each_checkpoint_is_told_with_its_evidence_and_what_loads_it(folder: Path) -> None:
    done = run(folder)
    lines = done.stdout.splitlines()
    assert done.exit_code == 0
    assert lines[0] == "layout HuggingFace, by checkpoint-300/trainer_state.json"
    assert lines[3].split()[:3] == ["300", "checkpoint-300", "no"]
    assert "it lacks optimizer.pt" in lines[3]
    assert lines[4].split()[:4] == ["200", "checkpoint-200", "yes", "Manifest"]
    assert lines[4].endswith("from_pretrained")


def test_as_json(folder: Path) -> None:
    found = document(folder)
    assert (found["layout"], found["by"]) == ("HuggingFace", "checkpoint-300/trainer_state.json")
    assert [(c["step"], c["whole"]) for c in found["checkpoints"]] == [
        (300, False),
        (200, True),
        (100, True),
    ]
    size = sum(p.stat().st_size for p in (folder / "checkpoint-200").iterdir())
    assert found["checkpoints"][1] == {
        "step": 200,
        "name": "checkpoint-200",
        "whole": True,
        "bytes": size,
        "files": len(MAKERS["HuggingFace"](200)),
        "evidence": "Manifest",
        "loads": "from_pretrained",
    }


@pytest.mark.parametrize("layout", sorted(FOLDERS))
def test_every_layout_is_found_by_itself(layout: str, tmp_path: Path) -> None:
    for step in (100, 200):
        save(tmp_path, layout, step)
    found = document(tmp_path)
    assert found["layout"] == layout
    assert [c["whole"] for c in found["checkpoints"]] == [True, True]
    assert found == {**document(tmp_path, "--layout", layout), "by": found["by"]}


def test_sharded_states_are_told_with_the_merge_before_them(tmp_path: Path) -> None:
    states = {**sharded("pytorch_model_fsdp_0"), "trainer_state.json": b'{"global_step": 100}'}
    save(tmp_path, "HuggingFace", 100, states)
    assert "accelerate merge-weights pytorch_model_fsdp_0" in document(tmp_path)["checkpoints"][0]["loads"]


def test_two_layouts_that_fit_are_told_not_guessed(folder: Path) -> None:
    save(folder, "NeMoRL", 100)
    done = run(folder)
    assert done.exit_code == 2
    for text in ("HuggingFace (by checkpoint-300/trainer_state.json)", "NeMoRL (by step_100/", "--layout"):
        assert text in done.stderr
    assert run(folder, "--layout", "NeMoRL").exit_code == 0


def test_plain_and_dcp_share_a_name_and_are_told_apart_by_content(tmp_path: Path) -> None:
    save(tmp_path, "Plain", 100)
    assert document(tmp_path)["layout"] == "Plain"
    save(tmp_path, "TorchDCP", 200)
    assert (
        "Plain (by step-100/manifest.json) and TorchDCP (by step-200/.metadata) fit" in run(tmp_path).stderr
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--layout", "Foo"], "--layout: 'Foo', expected one of Auto, Plain,"),
        (["--as", "me"], "--as: 'me', expected a user's number"),
        ([], "no checkpoint of any known layout"),
    ],
)
def test_what_cannot_be_asked_is_refused_with_what_would_be_right(
    arguments: list[str], said: str, tmp_path: Path
) -> None:
    done = run(tmp_path, *arguments)
    assert (done.exit_code, said in done.stderr) == (2, True), done.stderr


def test_where_none_is_whole_scripts_can_tell(folder: Path) -> None:
    for step in (100, 200):
        (folder / f"checkpoint-{step}" / "training_args.bin").unlink()
    assert run(folder).exit_code == 1


# whether an access Job of a user could pin them


def test_weights_that_only_their_owner_reads_cannot_be_pinned_by_another(folder: Path) -> None:
    """safetensors 0.8 writes with mode 0600: the access Job of another user could not read them."""
    weights = folder / "checkpoint-200" / "model-00001-of-00002.safetensors"
    weights.chmod(0o600)
    folder.chmod(0o777)
    done = run(folder, "--as", f"{WRITER + 1000}")
    by_step = {c["step"]: c for c in document(folder, "--as", f"{WRITER + 1000}")["checkpoints"]}
    assert done.exit_code == 0, "another one could be"
    problem = by_step[200]["pin"]["problem"]
    assert f"mode 0600 and is of {WRITER}:" in problem
    assert f"user {WRITER + 1000} cannot read it" in problem
    assert by_step[100]["pin"] == {"method": "copy", "problem": None}, "what it only reads it cannot link"
    assert document(folder, "--as", WRITER)["checkpoints"][1]["pin"]["method"] == "link"


def test_a_folder_that_cannot_be_written_to_is_told_with_its_mode(folder: Path) -> None:
    folder.chmod(0o755)
    done = run(folder, "--as", WRITER + 1000)
    assert done.exit_code == 1
    assert "has mode 0755" in done.stdout
    assert "cannot make .evalstop" in done.stdout
    (folder / ".evalstop").mkdir()
    (folder / ".evalstop").chmod(0o1777)
    assert run(folder, "--as", WRITER + 1000).exit_code == 0


@pytest.mark.parametrize(
    ("mode", "user", "method"),
    [
        (0o600, User(WRITER), "link"),
        (0o640, User(WRITER + 1, (os.getgid(),)), "copy"),
        (0o660, User(WRITER + 1, (os.getgid(),)), "link"),
        (0o604, User(WRITER + 1, (os.getgid(),)), ""),  # the group's bits count, not those of others
        (0o644, User(WRITER + 1), "copy"),
        (0o666, User(WRITER + 1), "link"),
        (0o000, User(WRITER), ""),  # also for root: access Jobs have no capability
    ],
)
def test_the_bits_of_owner_group_and_others(mode: int, user: User, method: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    file = tmp_path / "w.safetensors"
    file.write_bytes(safetensors_file() + torch_file())
    file.chmod(mode)
    assert pinning(str(tmp_path), {"w": "w.safetensors"}, user).method == method


@pytest.mark.parametrize("text", ["", "x", "-1", "1:", "1:2,x", "1" * 11, "\u0661"])
def test_users_are_numbers(text: str) -> None:
    with pytest.raises(ValueError, match="expected a user's number"):
        User.parse(text)
    assert User.parse("1000:1000,2000") == User(1000, (1000, 2000))
