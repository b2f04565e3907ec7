"""`make test-pythons` finds interpreters by asking them, and names those it did not find."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import pythons


def program(path: Path, answer: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{answer}\n")
    path.chmod(0o755)
    return path


def environ(tmp_path: Path) -> dict[str, str]:
    return {"PATH": str(tmp_path / "bin"), "HOME": str(tmp_path / "home")}


def test_a_shim_without_an_interpreter_behind_it_is_passed_over(tmp_path: Path) -> None:
    program(tmp_path / "bin" / "python3.12", "echo 'not installed' >&2; exit 127")
    assert pythons.find("3.12", environ(tmp_path)) is None
    real = program(tmp_path / "home/.pyenv/versions/3.12.9/bin/python", "echo 3.12")
    assert pythons.find("3.12", environ(tmp_path)) == real


def test_an_interpreter_of_another_version_is_not_it(tmp_path: Path) -> None:
    named = program(tmp_path / "mine", "echo 3.13")
    given = {**environ(tmp_path), pythons.VARIABLE: str(named)}
    assert pythons.find("3.13", given) == named
    assert pythons.find("3.12", given) is None


def test_this_interpreter_is_found_without_a_path(tmp_path: Path) -> None:
    version = "{}.{}".format(*sys.version_info)
    assert pythons.find(version, environ(tmp_path)) == Path(sys.executable)


def test_those_not_found_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = {"3.11": Path("/a/python3.11"), "3.13": Path("/a/python3.13")}
    ran: list[str] = []
    monkeypatch.setattr(pythons, "find", here.get)
    monkeypatch.setattr(
        pythons, "run", lambda version, path, more: not ran.append(version) and version == "3.11"
    )
    assert pythons.main([]) == 1
    assert ran == ["3.11", "3.13"]
    said = capsys.readouterr().out
    assert "Python 3.12: NOT FOUND, nothing ran" in said
    assert "Python 3.13: FAILED" in said
    assert pythons.main(["3.11", "--", "-x"]) == 0
    assert pythons.main(["3.12"]) == 2, "none was found"
    assert pythons.main(["3.10"]) == 2, "not one of ours"


def test_each_of_its_tests_exists(repository: Path) -> None:
    for name in pythons.TESTS:
        file, _, function = name.partition("::")
        assert (repository / file).exists(), name
        assert not function or f"def {function}(" in (repository / file).read_text()
