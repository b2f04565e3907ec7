"""The rooms of the brain: others come in by the door, and a door shows what it says."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("job", "pool", "fleet", "node", "rollout", "sharing")


def past_the_door(source: str, file: str) -> list[str]:
    """Return imports from within a room by a file that is not of it."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        for room in ROOMS:
            package = f"controller.policy.{room}"
            if file.startswith(f"{package.replace('.', '/')}/"):
                continue
            if node.module.startswith(f"{package}."):
                found.append(f"{file}:{node.lineno}: from {node.module}")
            elif node.module == package:
                shown = import_module(package).__all__
                found += [f"{file}: {package}.{a.name}" for a in node.names if a.name not in shown]
    return found


def test_nobody_reaches_past_a_door() -> None:
    files = [p for top in ("controller", "sim", "deploy") for p in sorted((ROOT / top).rglob("*.py"))]
    found = [one for path in files for one in past_the_door(path.read_text(), str(path.relative_to(ROOT)))]
    assert not found, found


@pytest.mark.parametrize(
    "line",
    ["from controller.policy.job.plan import plan_job", "from controller.policy.pool import gpu_accounts"],
)
def test_one_who_does_is_found(line: str) -> None:
    assert past_the_door(line, "controller/cli/x.py")


@pytest.mark.parametrize("room", ROOMS)
def test_a_door_shows_what_it_says(room: str) -> None:
    package = import_module(f"controller.policy.{room}")
    assert package.__doc__
    assert "May import" in package.__doc__
    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="shows no 'nothing'"):
        _ = package.nothing


def test_the_records_of_a_job_do_not_load_what_decides() -> None:
    program = (
        "import sys; from controller.policy.job import JobRecord\n"
        "print('controller.policy.job.plan' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "False"
