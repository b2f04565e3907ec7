"""Find `prometheus` and `promtool`.

In this order: the folder that `EVALSTOP_PROMETHEUS` names, the cache, Debian's package by the machine's own
apt (unpacked into the cache, nothing is installed, no root is needed), the PATH. If none works, one error
says what was tried.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from deploy.local.acquire import Found
from deploy.local.errors import ToolsMissing
from deploy.local.recipe import cache_root, goarch
from deploy.local.report import Report, silent

PROGRAMS = ("prometheus", "promtool")
PACKAGE = "prometheus"
VERSION = "2.42.0+ds-5+deb12u1"  # Debian 12; where the archive no longer has it, the version that it has
FOLDER = "EVALSTOP_PROMETHEUS"
_TIMEOUT_S = 300.0


def obtain(report: Report = silent, cache: Path | None = None) -> dict[str, Found]:
    """Return both programs, and by which way they came. Errors: ToolsMissing with what was tried."""
    tried: list[str] = []
    folder = (cache or cache_root()) / f"prometheus-{VERSION}-{goarch()}"
    for way in (_folder, _cached, _debian, _path):
        found, why = way(folder)
        if found is not None:
            report(f"prometheus, promtool: {why}")
            return found
        tried.append(why)
    raise ToolsMissing(f"prometheus and promtool: {'; '.join(tried)}")


def _programs(folder: Path, way: str) -> dict[str, Found] | None:
    paths = {name: folder / name for name in PROGRAMS}
    if not all(os.access(path, os.X_OK) and path.is_file() for path in paths.values()):
        return None
    return {name: Found(path, way) for name, path in paths.items()}


def _folder(_: Path) -> tuple[dict[str, Found] | None, str]:
    given = os.environ.get(FOLDER)
    if not given:
        return None, f"{FOLDER}: not set"
    found = _programs(Path(given).expanduser().absolute(), FOLDER)
    return found, f"{FOLDER}={given}" if found else f"{FOLDER}={given}: no folder with both programs"


def _cached(folder: Path) -> tuple[dict[str, Found] | None, str]:
    return _programs(folder, "cache"), f"cache {folder}"


def _path(_: Path) -> tuple[dict[str, Found] | None, str]:
    paths = {name: shutil.which(name) for name in PROGRAMS}
    missing = [name for name, path in paths.items() if path is None]
    if missing:
        return None, f"PATH: no {', '.join(missing)}"
    return {name: Found(Path(path), "PATH") for name, path in paths.items() if path}, "PATH"


def _debian(folder: Path) -> tuple[dict[str, Found] | None, str]:
    """Download and unpack into the cache: whole, or not at all."""
    if not all(shutil.which(tool) for tool in ("apt-get", "dpkg-deb")):
        return None, "Debian package: no apt-get and dpkg-deb here"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="unfinished-", dir=folder.parent) as temporary:
        work = Path(temporary)
        package, why = _download(work)
        if package is None:
            return None, f"Debian package: {why}"
        unpacked = work / "unpacked"
        done = _run(["dpkg-deb", "-x", str(package), str(unpacked)], work)
        if done.returncode != 0:
            return None, f"Debian package: dpkg-deb: {_last(done)}"
        if not folder.exists():
            (unpacked / "usr" / "bin").rename(folder)
    return _programs(folder, "Debian package"), f"Debian package {package.name}"


def _download(work: Path) -> tuple[Path | None, str]:
    """Return the package as a file, or why not. The pinned version goes first; then, with package lists of
    our own, it once more; then whatever version the archive has."""
    lists = work / "lists"
    own = ["-o", f"Dir::State::Lists={lists}", "-o", f"Dir::Cache={work / 'apt'}"]
    why = ""
    for options, name in (([], f"{PACKAGE}={VERSION}"), (own, f"{PACKAGE}={VERSION}"), (own, PACKAGE)):
        if options and not lists.exists():
            (lists / "partial").mkdir(parents=True)
            (work / "apt" / "archives" / "partial").mkdir(parents=True)
            _run(["apt-get", *options, "update"], work)
        done = _run(["apt-get", *options, "download", name], work)
        package = next(work.glob(f"{PACKAGE}_*.deb"), None)
        if done.returncode == 0 and package is not None:
            return package, ""
        why = f"apt-get download {name}: {_last(done)}"
    return None, why


def _run(argv: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(argv, 124, "", f"no end after {_TIMEOUT_S:g} s")


def _last(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return lines[-1] if lines else f"exit code {done.returncode}"
