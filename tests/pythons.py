"""What may differ between interpreters, on each that is found: `python -m tests.pythons [3.12 …]`.

`make test-pythons` runs policy, API, scraping, the reading of hostile objects, certificates, and one story on
the local plane, with Python 3.11, 3.12 and 3.13 or those named. Each gets a virtual environment of its own
under build/pythons, with what requirements.lock pins for it. Interpreters are looked for in $EVALSTOP_PYTHONS
(paths, separated by ":"), on PATH and among pyenv's. Those not found are named at the end. Exit status: 0 if
every test passed on every interpreter found, 1 if not, 2 if none was found. What follows `--` goes to pytest.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENTS = ROOT / "build" / "pythons"
VARIABLE = "EVALSTOP_PYTHONS"
VERSIONS = ("3.11", "3.12", "3.13")
STORY = (
    "tests/story/test_story_real.py::test_resume_from_best_end_to_end_then_deleting_keeps_what_was_retained"
)
TESTS = (
    "tests/bounded",
    "tests/web/test_web_signing.py",
    "tests/policy",
    "tests/metrics",
    "tests/api",
    "tests/tenants",
    STORY,
)
_ASK = "import sys, ssl, venv; print('%d.%d' % sys.version_info[:2])"


def candidates(version: str, environ: Mapping[str, str]) -> Iterator[Path]:
    """Files that may be that interpreter, those that were named first."""
    yield from (Path(path) for path in environ.get(VARIABLE, "").split(os.pathsep) if path)
    yield Path(sys.executable)
    for folder in environ.get("PATH", "").split(os.pathsep):
        yield Path(folder or ".", f"python{version}")
    pyenv = Path(environ.get("PYENV_ROOT") or Path(environ.get("HOME", "/"), ".pyenv"))
    yield from sorted(pyenv.glob(f"versions/{version}.*/bin/python"))


def find(version: str, environ: Mapping[str, str] = os.environ) -> Path | None:
    """The first candidate that runs, is of that version and can make virtual environments."""
    for path in candidates(version, environ):
        if not path.is_file():
            continue
        try:
            # A shim is a file too, whether or not there is anything behind it.
            said = subprocess.run([path, "-c", _ASK], capture_output=True, text=True, timeout=60)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if said.returncode == 0 and said.stdout.strip() == version:
            return path
    return None


def environment(version: str, python: Path) -> Path:
    """The interpreter of a virtual environment with what the lock pins; made anew when either has changed.

    Raises:
        CalledProcessError: after pip's own words: the lock does not install on this interpreter.
    """
    folder = ENVIRONMENTS / version
    inside = folder / "bin" / "python"
    stamp = folder / "made-from"
    lock = (ROOT / "requirements.lock").read_bytes() + (ROOT / "pyproject.toml").read_bytes()
    made_from = f"{python}\n{ROOT}\n{hashlib.sha256(lock).hexdigest()}\n"
    if stamp.is_file() and stamp.read_text() == made_from:
        return inside
    stamp.unlink(missing_ok=True)
    subprocess.run([python, "-m", "venv", "--clear", folder], check=True)
    pip = [inside, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--require-hashes", "-r", ROOT / "requirements.lock"], check=True, cwd=ROOT)
    ours = ["-e", ROOT, "-e", ROOT / "clients" / "python"]
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", *ours], check=True, cwd=ROOT)
    stamp.write_text(made_from)
    return inside


def run(version: str, python: Path, arguments: Sequence[str]) -> bool:
    """Whether the tests pass there."""
    print(f"== Python {version}: {python}", flush=True)
    try:
        inside = environment(version, python)
    except subprocess.CalledProcessError as error:
        print(f"requirements.lock does not install on Python {version}: {error}", flush=True)
        return False
    # What pytest remembers is of the interpreter that a developer uses.
    command = [inside, "-m", "pytest", "-p", "no:cacheprovider", *TESTS, *arguments]
    return subprocess.run(command, cwd=ROOT).returncode == 0


def main(arguments: Sequence[str]) -> int:
    at = list(arguments).index("--") if "--" in arguments else len(arguments)
    wanted, more = tuple(arguments[:at]) or VERSIONS, arguments[at + 1 :]
    unknown = [version for version in wanted if version not in VERSIONS]
    if unknown:
        print(f"{', '.join(unknown)}: expected some of {', '.join(VERSIONS)}", file=sys.stderr)
        return 2
    found = {version: path for version in wanted if (path := find(version)) is not None}
    passed = {version: run(version, path, more) for version, path in found.items()}
    for version in wanted:
        outcome = {True: "passed", False: "FAILED"}.get(passed.get(version), "NOT FOUND, nothing ran")
        print(f"Python {version}: {outcome}")
    if not found:
        return 2
    return 0 if all(passed.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
