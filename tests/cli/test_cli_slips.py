"""Slips that cost a stranger time: a name that is wrong or in capitals, a run that is over, a broken pipe."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from controller.api.rlhfjob import Resume
from controller.cli.failure import USERS, Exit, of_api
from controller.cli.job_view import read
from controller.cli.main import app
from controller.cli.screen import wishes
from controller.kube.errors import ApiError
from tests.support import cli_world as w
from tests.support.stub_api import stub_api

COMMAND = [sys.executable, "-m", "controller.cli"]


def world() -> list[dict[str, Any]]:
    return [w.whole(name, record, "team") for name, record in w.records().items()]


def run(folder: Path, *words: str, namespace: str = "team", only: str = "") -> Result:
    with stub_api(folder, world(), namespace, only) as kubeconfig:
        return CliRunner().invoke(app, words, env={"KUBECONFIG": str(kubeconfig), "COLUMNS": "200"})


def test_of_several_names_those_that_are_there_are_printed_first(tmp_path: Path) -> None:
    told = run(tmp_path, "get", "over", "nope", "healthy", "neither", "-o", "name")
    assert told.exit_code == Exit.NOT_FOUND
    assert told.stdout.split() == ["rlhfjob.evalstop.dev/over", "rlhfjob.evalstop.dev/healthy"]
    assert told.stderr.count("error: there is no RLHFJob") == 2
    assert "'nope'" in told.stderr
    assert "'neither'" in told.stderr
    several = run(tmp_path, "get", "over", "nope", "-o", "json")
    assert json.loads(several.stdout)["kind"] == "List", "as for two names that are there"
    assert run(tmp_path, "get", "nope", "neither", "-o", "json").stdout == ""


def test_a_name_in_capitals_is_known(tmp_path: Path) -> None:
    assert "did you mean over?" in run(tmp_path, "get", "OVER").stderr


def test_the_mode_of_a_run_that_has_ended_is_told_to_do_nothing(tmp_path: Path) -> None:
    done = run(tmp_path, "mode", "done", "Off")
    assert done.exit_code == 0
    assert "team/done has ended (" in done.stderr
    assert "its mode does nothing any more" in done.stderr
    assert "has ended" not in run(tmp_path, "mode", "healthy", "Off").stderr


@pytest.mark.parametrize(
    ("asked", "only", "said"),
    [
        ("empty", "", "namespace empty has no RLHFJob, 7 are in other namespaces, expected the jobs"),
        ("empty", "empty", "namespace empty has no RLHFJob, expected the jobs"),
    ],
)
def test_a_past_of_an_empty_namespace_names_it(tmp_path: Path, asked: str, only: str, said: str) -> None:
    told = run(tmp_path, "export", "-n", asked, namespace="empty", only=only)
    assert (told.exit_code, said in told.stderr) == (Exit.USAGE, True), told.stderr


def test_a_past_of_a_namespace_that_is_not_there_is_told_as_that(tmp_path: Path) -> None:
    told = run(tmp_path, "export", "-n", "tema")
    assert told.exit_code == Exit.NOT_FOUND
    assert "there is no namespace 'tema'" in told.stderr


@pytest.mark.parametrize(
    "words", [["export", "--evals"], ["export"], ["report", "over", "--out", "-"], ["list"]], ids=" ".join
)
def test_a_reader_that_has_seen_enough_ends_a_command_quietly(tmp_path: Path, words: list[str]) -> None:
    with stub_api(tmp_path, world()) as kubeconfig:
        reads, writes = os.pipe()
        os.close(reads)
        environ = {**os.environ, "KUBECONFIG": str(kubeconfig)}
        with os.fdopen(writes, "w") as gone:
            done = subprocess.run(
                [*COMMAND, *words], env=environ, stdout=gone, stderr=subprocess.PIPE, text=True, check=False
            )
    assert (done.returncode, "roken pipe" in done.stderr, "BrokenPipe" in done.stderr) == (0, False, False)


def test_a_pin_of_a_run_that_has_ended_is_told_to_need_a_checkpoint_that_lies_there(tmp_path: Path) -> None:
    """It was taken without a word, though the run saves no step any more."""
    done = run(tmp_path, "pin", "done", "100")
    assert done.exit_code == 0
    assert "team/done has ended (" in done.stderr
    assert "that of step 100 can be pinned only where the trainer's rotation has left it" in done.stderr
    for words in (["pin", "healthy", "100"], ["pin", "done", "100", "--remove"]):
        assert "has ended" not in run(tmp_path, *words).stderr


def test_two_requests_of_one_second_are_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two resumes of one second had the same id, and both were confirmed, though one was carried out."""
    monkeypatch.setattr("controller.cli.change.time.strftime", lambda *_: "20261128T091809Z")
    pattern = re.compile(r"\(request (cli-20261128T091809Z-[0-9a-f]{8})\)")
    said = [run(tmp_path, "resume", "over", "--from", word).stdout for word in ("best", "latest")]
    ids = [found[1] for text in said if (found := pattern.search(text))]
    assert len(set(ids)) == 2, said
    job = read(w.whole("over", w.records()["over"]))
    by_key = {
        wish.spec["resume"]["id"] for _ in range(2) if isinstance(wish := wishes.resume(job), wishes.Wish)
    }
    assert len(by_key) == 2
    for found in (*ids, *by_key):
        assert Resume.model_validate({"id": found}).id == found


@pytest.mark.parametrize(("verb", "role"), [("list", "view"), ("patch", "edit")])
def test_who_has_the_role_is_told_which_one_carries_the_right(verb: str, role: str) -> None:
    """Where evalstop-view is not aggregated, who had the role view was told to ask for the role view."""
    where = 'in API group "evalstop.dev" in the namespace "mine"'
    refused = ApiError(403, "Forbidden", f'User "jo" cannot {verb} resource "rlhfjobs" {where}')
    told = of_api(refused, "look").next_step
    assert f"--clusterrole={role} --user=jo" in told
    assert (
        f"--clusterrole=evalstop-{role}; if there is none: kubectl apply -f deploy/manifests/users.yaml"
        in told
    )
    roles = yaml.safe_load_all((w.ROOT / USERS).read_text())
    assert f"evalstop-{role}" in {one["metadata"]["name"] for one in roles}
    pods = ApiError(
        403, "Forbidden", f'User "jo" cannot {verb} resource "pods" in API group "" in the namespace "m"'
    )
    assert "evalstop-" + role not in of_api(pods, "look").next_step
