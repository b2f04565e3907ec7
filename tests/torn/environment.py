"""The environment of requirements.txt: outside of the repository, made once for each content of that file."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

from tests.torn.crash import Crash

REQUIREMENTS = Path(__file__).parent / "requirements.txt"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "evalstop"
ROOT = Path(__file__).parents[2]


def python() -> Path:
    """The interpreter of the environment; installs it the first time (5.6 GB, minutes)."""
    key = hashlib.sha256(REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()[:10]
    folder = CACHE / f"torn-{key}"
    done = folder / ".complete"
    if not done.exists():
        print(f"installing {REQUIREMENTS.name} into {folder}", flush=True)
        venv.create(folder, clear=True, with_pip=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "-r", str(REQUIREMENTS)]
        subprocess.run(pip, check=True)
        done.touch()
    return folder / "bin" / "python"


def versions() -> dict[str, str]:
    """Package and version, as requirements.txt has them."""
    lines = [line for line in REQUIREMENTS.read_text().splitlines() if "==" in line and line[0] != "#"]
    return dict(line.split("==") for line in lines)


def real(variant: str, root: Path, kills: int, seed: int, recorded: bool) -> Iterator[Crash]:
    """Crashes of a real library's saver, which runs in a process of that environment."""
    command = [str(python()), "-m", "tests.torn.real", variant, f"--root={root}", f"--kills={kills}"]
    command += [f"--seed={seed}", *(["--recorded"] if recorded else [])]
    with (root / "saver.log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if not line.startswith('{"folder"'):
                continue  # a library's own words
            said = json.loads(line)
            process.stdin.write("\n")  # the next one is made while this one is judged
            process.stdin.flush()
            yield Crash(Path(said["folder"]), {int(step): files for step, files in said["truth"].items()})
    finally:
        process.stdin.close()
        if process.wait() != 0:
            print((root / "saver.log").read_text()[-3000:], file=sys.stderr)
            raise RuntimeError(f"the saver of {variant} failed; its words are above")
