"""A Chromium for the browser tests: the one on PATH, else Debian's, installed or unpacked into the cache."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
_FOLDER = Path(os.environ.get("EVALSTOP_CACHE") or Path.home() / ".cache" / "evalstop") / "chromium"
_TRIES = 3  # a mirror may answer late
Run = Callable[[Sequence[str]], str]


def _release(said: Path = Path("/etc/os-release")) -> str:
    """What packages are unpacked for, as "debian-12-x86_64": their libraries go with the system's."""
    lines = said.read_text().splitlines() if said.is_file() else []
    known = {k: v.strip("\"'") for k, _, v in (line.partition("=") for line in lines)}
    return f"{known.get('ID', 'unknown')}-{known.get('VERSION_ID', 'rolling')}-{platform.machine()}"


CACHE = _FOLDER / _release()


class NoChromium(Exception):
    """None is there and none can be had; the message says what was tried."""


class Chromium:
    """``path`` to start it by, ``environ`` to find the libraries that were unpacked with it."""

    def __init__(self, path: Path, environ: dict[str, str] | None = None) -> None:
        self.path, self.environ = path, environ or {}


def obtain(say: Callable[[str], None] = print, run: Run | None = None) -> Chromium:
    """The first that works: on PATH, in the cache, by apt as root, by apt into the cache.

    Raises:
        NoChromium: none of them.
    """
    run = run or _run
    if (found := _on_path()) is not None:
        return Chromium(found)
    if (kept := _unpacked()) is not None:
        return kept
    if shutil.which("apt-get") is None:
        raise NoChromium(f"none of {', '.join(NAMES)} is on PATH, and there is no apt-get to get one")
    say("Chromium: not on PATH; getting Debian's package")
    try:
        if os.geteuid() == 0:
            _again(run, ["apt-get", "update", "-q"])
            _again(run, ["apt-get", "install", "-q", "-y", "--no-install-recommends", "chromium"])
            if (found := _on_path()) is not None:
                return Chromium(found)
        else:
            _unpack(run)
            if (kept := _unpacked()) is not None:
                return kept
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", "") or str(error)
        raise NoChromium(f"apt could not give Chromium: {said.strip()[-400:]}") from error
    raise NoChromium("apt gave packages, but no chromium is in them")


def _on_path() -> Path | None:
    return next((Path(found) for name in NAMES if (found := shutil.which(name))), None)


def _unpacked() -> Chromium | None:
    root = CACHE / "root"
    program = root / "usr/lib/chromium/chromium"
    if not (CACHE / "whole").is_file() or not program.is_file():
        return None
    folders = sorted({str(p.parent) for p in root.rglob("*.so*") if "chromium" not in p.parts})
    return Chromium(program, {"LD_LIBRARY_PATH": ":".join(folders)})


def _unpack(run: Run) -> None:
    """Download the package and what it needs beyond what is installed, and unpack it all, without root."""
    shutil.rmtree(CACHE, ignore_errors=True)
    for folder in ("lists/partial", "archives/partial", "root"):
        (CACHE / folder).mkdir(parents=True)
    own = [
        f"Dir::State::Lists={CACHE}/lists",
        f"Dir::Cache={CACHE}",
        f"Dir::Cache::Archives={CACHE}/archives",
    ]
    apt = ["apt-get", "-q", *(word for o in (*own, "Debug::NoLocking=1") for word in ("-o", o))]
    _again(run, [*apt, "update"])
    _again(run, [*apt, "install", "-y", "--no-install-recommends", "--download-only", "chromium"])
    for package in sorted((CACHE / "archives").glob("*.deb")):
        run(["dpkg", "-x", str(package), str(CACHE / "root")])
    shutil.rmtree(CACHE / "archives")
    shutil.rmtree(CACHE / "lists")
    (CACHE / "whole").touch()  # last: a half unpacked one is not taken


def _again(run: Run, command: Sequence[str]) -> None:
    for left in reversed(range(_TRIES)):
        try:
            run(command)
            return
        except subprocess.CalledProcessError:
            if not left:
                raise


def _run(command: Sequence[str]) -> str:
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environ)
    return done.stdout
