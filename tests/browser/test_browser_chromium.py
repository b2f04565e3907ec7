"""Where the tests' Chromium comes from, on machines with and without one."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path

import chromium
import pytest

from tests.support import apt

SAID = "E: Unable to locate package chromium"


class Machine:
    """A machine without Chromium; apt installs it, unpacks it, or fails ``failures`` times."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, folder: Path, uid: int = 0, failures: int = 0
    ) -> None:
        self.ran: list[str] = []
        self.failures, self.folder = failures, folder
        (folder / "bin").mkdir()
        for tool in ("apt-get", "dpkg"):
            self.program(tool)
        monkeypatch.setenv("PATH", str(folder / "bin"))
        monkeypatch.setattr(chromium, "CACHE", folder / "cache")
        monkeypatch.setattr(os, "geteuid", lambda: uid)

    def program(self, name: str) -> Path:
        path = self.folder / "bin" / name
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
        return path

    def run(self, command: Sequence[str]) -> str:
        verb = next(word for word in command if word in ("update", "install", "-x"))
        self.ran.append(verb)
        if verb == "install" and self.failures:
            self.failures -= 1
            raise subprocess.CalledProcessError(100, command, "", SAID)
        if verb == "install" and "--download-only" in command:
            (chromium.CACHE / "archives" / "chromium.deb").touch()
        elif verb == "install":
            self.program("chromium")
        elif verb == "-x":
            for name in ("usr/lib/chromium/chromium", "usr/lib/x/libnss3.so"):
                found = chromium.CACHE / "root" / name
                found.parent.mkdir(parents=True)
                found.touch()
        return ""


def test_the_one_on_path_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine = Machine(monkeypatch, tmp_path)
    there = machine.program("chromium-browser")
    assert chromium.obtain(run=machine.run).path == there
    assert machine.ran == []


def test_root_installs_debians(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine = Machine(monkeypatch, tmp_path, failures=2)
    assert chromium.obtain(run=machine.run).path == tmp_path / "bin" / "chromium"
    assert machine.ran == ["update", "install", "install", "install"]


def test_others_unpack_it_into_the_cache_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine = Machine(monkeypatch, tmp_path, uid=1000)
    found = chromium.obtain(run=machine.run)
    root = tmp_path / "cache" / "root"
    assert found.path == root / "usr/lib/chromium/chromium"
    assert found.environ == {"LD_LIBRARY_PATH": str(root / "usr/lib/x")}
    assert chromium.obtain(run=machine.run).path == found.path
    assert machine.ran == ["update", "install", "-x"]


def test_what_apt_said_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine = Machine(monkeypatch, tmp_path, uid=1000, failures=9)
    with pytest.raises(chromium.NoChromium, match=SAID):
        chromium.obtain(run=machine.run)
    (tmp_path / "bin" / "apt-get").unlink()
    with pytest.raises(chromium.NoChromium, match="no apt-get"):
        chromium.obtain(run=machine.run)


def test_each_release_has_a_folder_of_its_own(tmp_path: Path) -> None:
    said = tmp_path / "os-release"
    said.write_text('ID=debian\nVERSION_ID="12"\n')
    assert apt.release(said) == f"debian-12-{platform.machine()}"
    said.write_text("ID=debian\n")
    assert apt.release(said).startswith("debian-rolling-")
    assert apt.release(tmp_path / "none").startswith("unknown-")
