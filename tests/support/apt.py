"""Debian's packages for tests: installed by root, else unpacked into the cache; by one process at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

_TRIES = 3  # a mirror may answer late
Run = Callable[[Sequence[str]], str]


def release(said: Path = Path("/etc/os-release")) -> str:
    """Return what packages are unpacked for, as "debian-12-x86_64": their libraries go with the system's."""
    lines = said.read_text().splitlines() if said.is_file() else []
    known = {k: v.strip("\"'") for k, _, v in (line.partition("=") for line in lines)}
    return f"{known.get('ID', 'unknown')}-{known.get('VERSION_ID', 'rolling')}-{platform.machine()}"


def cache(package: str) -> Path:
    """Return the folder into which a package is unpacked."""
    given = os.environ.get("EVALSTOP_CACHE") or Path.home() / ".cache" / "evalstop"
    return Path(given) / package / release()


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Wait until no other test uses apt: it does not wait for itself."""
    with (Path(tempfile.gettempdir()) / f"evalstop-apt-{os.getuid()}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def install(package: str, run: Run) -> None:
    """Install a package, as root."""
    _again(run, ["apt-get", "update", "-q"])
    _again(run, ["apt-get", "install", "-q", "-y", "--no-install-recommends", package])


def unpack(package: str, into: Path, run: Run) -> None:
    """Download a package and what it needs beyond what is installed, and unpack it all, without root."""
    shutil.rmtree(into, ignore_errors=True)
    for folder in ("lists/partial", "archives/partial", "root"):
        (into / folder).mkdir(parents=True)
    own = [
        f"Dir::State::Lists={into}/lists",
        f"Dir::Cache={into}",
        f"Dir::Cache::Archives={into}/archives",
    ]
    apt = ["apt-get", "-q", *(word for o in (*own, "Debug::NoLocking=1") for word in ("-o", o))]
    _again(run, [*apt, "update"])
    _again(run, [*apt, "install", "-y", "--no-install-recommends", "--download-only", package])
    for one in sorted((into / "archives").glob("*.deb")):
        run(["dpkg", "-x", str(one), str(into / "root")])
    shutil.rmtree(into / "archives")
    shutil.rmtree(into / "lists")
    (into / "whole").touch()  # last: a half unpacked one is not taken


def unpacked(program: str, into: Path, own: str) -> tuple[Path, dict[str, str]] | None:
    """Return an unpacked program, and the environment in which it finds its libraries; None: it is not there.

    Args:
        program: its path below the root.
        into: as it was given to `unpack`.
        own: name of a folder whose libraries it finds by itself.
    """
    root = into / "root"
    if not (into / "whole").is_file() or not (root / program).is_file():
        return None
    folders = sorted({str(p.parent) for p in root.rglob("*.so*") if own not in p.parts})
    return root / program, {"LD_LIBRARY_PATH": ":".join(folders)}


def run(command: Sequence[str]) -> str:
    """Run a command that asks nothing; return what it said."""
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environ).stdout


def _again(run: Run, command: Sequence[str]) -> None:
    for left in reversed(range(_TRIES)):
        try:
            run(command)
            return
        except subprocess.CalledProcessError:
            if not left:
                raise
