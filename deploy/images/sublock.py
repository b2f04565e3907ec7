"""The part of requirements.lock that an image needs: pins with their hashes, chosen by what pip resolves.

The lock pins everything, the tools of developers too. Standard library and pip only: it runs in the build
stage, before anything is installed.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

_PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==")


def canonical(name: str) -> str:
    """Return a package's name as PyPA compares them: `Foo.Bar_baz` -> `foo-bar-baz`."""
    return re.sub(r"[-_.]+", "-", name).lower()


def entries(lock: str) -> dict[str, str]:
    """Package -> its lines in the lock, hashes and all.

    Raises:
        ValueError: a line that is neither a pin nor a hash of one.
    """
    found: dict[str, str] = {}
    current = ""
    for number, line in enumerate(lock.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if pin := _PIN.match(line):
            current = canonical(pin.group(1))
            found[current] = found.get(current, "") + line + "\n"
        elif current and line.startswith(" "):
            found[current] += line + "\n"
        else:
            raise ValueError(f"line {number} of the lock: {line!r}, expected NAME==VERSION or its --hash")
    return found


def pins(lock: str) -> str:
    """Return the lock's pins alone, as a constraints file: pip takes no hash from a constraint."""
    lines = (line.split(" \\")[0].rstrip() for line in lock.splitlines())
    return "".join(f"{line}\n" for line in lines if _PIN.match(line))


def resolve(requirements: Sequence[str], constraints: str, python: str = sys.executable) -> set[str]:
    """Return every package that installing these would install. Errors: CalledProcessError, after pip's
    words."""
    with tempfile.TemporaryDirectory() as folder:
        limits, report = Path(folder, "constraints.txt"), Path(folder, "report.json")
        limits.write_text(constraints)
        command = [python, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        command += ["--report", str(report), "--constraint", str(limits), *requirements]
        subprocess.run(command, check=True, stdout=sys.stderr)
        installed = json.loads(report.read_text())["install"]
    return {canonical(item["metadata"]["name"]) for item in installed}
