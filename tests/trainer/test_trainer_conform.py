"""Whether a family keeps what a group relies on: a right one passes, and each wrong one is found out by
name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from controller.cli.main import app
from evalstop_client import conform

FILE = Path(__file__).with_name("faulty_family.py")
ROOT = Path(__file__).parents[2]


def wrong(found: dict) -> set[str]:  # type: ignore[type-arg]
    return {one["about"] for one in found["findings"] if one["level"] == conform.WRONG}


def test_a_right_family_passes_and_is_measured() -> None:
    command = [sys.executable, "-m", "evalstop_client.conform", str(FILE), "--members", "2"]
    done = subprocess.run(command, stdout=subprocess.PIPE)
    assert done.returncode == 0, done.stdout
    found = json.loads(done.stdout)
    about = [one["about"] for one in found["findings"]]
    assert {"functions", "regions", "offload", "sleeper", "repeatable", "restored", "fresh"} == set(about)
    measured = found["measured"]
    assert measured["stateBytes"] == 8 + 4096
    assert measured["regions"] == {"sum": 8, "large": 4096}
    assert measured["residualBytes"] == 0
    assert measured["deviceBytes"] == 8192, "two pages"
    assert set(measured["functionSeconds"]) == {"add", "grow"}
    assert found["pool"] == {
        "name": "faulty", "replicas": 2, "deviceBytes": 8192, "residualBytes": 0, "hostBytes": 4 * 4104,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "about", "words"),
    [
        ("fresh", {"fresh"}, "sum differ, expected: a fresh state is the same each time"),
        ("restored", {"restored"}, "large differ, expected: a state that is loaded is the one"),
        ("answers", {"repeatable"}, "add: another answer to the same call in the same processes"),
        ("changes", {"changes"}, "region large changed, and no function says so"),
        ("regions", {"regions"}, "names or sizes change after add, add"),
        ("sleeper", {"sleeper"}, "more than a tenth of the state"),
        ("dies", {"worker"}, "its process has ended"),
        ("refuses", {"worker"}, "add refuses its own example: by: 13, expected another number"),
    ],
)
def test_a_wrong_one_is_found_out(
    fault: str, about: set[str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAULT", fault)
    found = conform.examine(conform.named(str(FILE)), 1, local=True)
    assert about <= wrong(found), found["findings"]
    assert any(words in one["text"] for one in found["findings"]), found["findings"]


def test_without_examples_it_says_what_was_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULT", "none")
    found = conform.examine(conform.named(str(FILE)), 1, local=True)
    assert wrong(found) == set()
    assert found["findings"][-1]["text"].startswith("not called: add, grow")


def test_doctor_shows_it_with_what_to_write_into_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """The example's family, as the page shows it."""
    monkeypatch.chdir(ROOT)
    command = ["doctor", "--family", "examples/softmax_family.py", "--family-members", "2"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert "nothing wrong" in result.stdout
    for line in (
        "        replicas: 2",
        "        deviceBytes: 32768",
        "        hostBytes: 98400",
        "      stateBytes: 24600",
    ):
        assert line in result.stdout, result.stdout
    assert "to take a state off" in result.stdout


def test_doctor_names_what_is_wrong_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULT", "changes")
    result = CliRunner().invoke(app, ["doctor", "--family", str(FILE), "-o", "json"])
    assert result.exit_code == 1, result.output
    document = json.loads(result.stdout)
    (bad,) = [one for one in document["findings"] if one["level"] == "wrong"]
    assert bad["about"] == "changes"
    assert "@function(changes=[…])" in json.dumps(bad["cure"], ensure_ascii=False)
    assert document["pool"]["name"] == "faulty"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none.py"], "none.py: no such file"),
        ([str(Path(__file__))], "no class from evalstop_client.family.Family"),
        ([f"{FILE}:Nobody"], "Nobody"),
        ([str(FILE), "--family-python", "/no/python"], "expected a Python that has evalstop-client"),
    ],
)
def test_what_is_no_family_is_refused(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(app, ["doctor", "--family", *arguments])
    assert result.exit_code == 2
    told = " ".join(result.output.replace("│", " ").split())
    assert all(word in told for word in words.split()), told
