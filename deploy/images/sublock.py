"""The part of requirements.lock that an image needs: `python sublock.py PYPROJECT LOCK NAME… > subset.lock`.

The lock pins everything, the tools of developers too. NAME is `project` (the dependencies of pyproject.toml),
an extra of it in brackets (`[objectstore]`), or a package. pip resolves them under the lock's own pins; each
pin that it takes is printed with its hashes, so that what is installed is checked against the lock.

Standard library and pip only: it runs in the build stage, before anything is installed.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

_PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==")


def canonical(name: str) -> str:
    """A package's name as PyPA compares them: `Foo.Bar_baz` -> `foo-bar-baz`."""
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
    """The lock's pins alone, as a constraints file: pip takes no hash from a constraint."""
    lines = (line.split(" \\")[0].rstrip() for line in lock.splitlines())
    return "".join(f"{line}\n" for line in lines if _PIN.match(line))


def wanted(project: dict[str, Any], names: Iterable[str]) -> list[str]:
    """Requirements that the names stand for.

    Raises:
        ValueError: an extra that the project does not have.
    """
    found: list[str] = []
    extras = project.get("optional-dependencies", {})
    for name in names:
        if name == "project":
            found += project["dependencies"]
        elif name.startswith("["):
            if name[1:-1] not in extras:
                raise ValueError(f"{name}: no such extra; there are {', '.join(sorted(extras))}")
            found += extras[name[1:-1]]
        else:
            found.append(name)
    return found


def resolve(requirements: Sequence[str], constraints: str, python: str = sys.executable) -> set[str]:
    """Every package that installing these would install. Errors: CalledProcessError, after pip's words."""
    with tempfile.TemporaryDirectory() as folder:
        limits, report = Path(folder, "constraints.txt"), Path(folder, "report.json")
        limits.write_text(constraints)
        command = [python, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        command += ["--report", str(report), "--constraint", str(limits), *requirements]
        subprocess.run(command, check=True, stdout=sys.stderr)
        installed = json.loads(report.read_text())["install"]
    return {canonical(item["metadata"]["name"]) for item in installed}


def main(arguments: Sequence[str]) -> int:
    if len(arguments) < 3:
        print(f"usage: python {Path(__file__).name} PYPROJECT LOCK NAME…", file=sys.stderr)
        return 2
    pyproject, lock = Path(arguments[0]), Path(arguments[1]).read_text()
    try:
        found = entries(lock)
        project = tomllib.loads(pyproject.read_text())["project"]
        needed = resolve(wanted(project, arguments[2:]), pins(lock))
        missing = sorted(needed - found.keys())
        if missing:
            raise ValueError(f"not in {arguments[1]}: {', '.join(missing)}; run `make lock`")
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    sys.stdout.write("".join(found[name] for name in sorted(needed)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
