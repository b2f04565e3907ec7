"""Docstrings of functions say what is done or returned; a question word leaves that open."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
QUESTION = re.compile(r'\s+r?"""(What|Whose|Whether|Who|Which|Where|How|When)\b')
HEAD = re.compile(r"\s*(async def|def|class) ")


def test_no_function_is_described_by_a_question_word() -> None:
    """But for commands, whose docstring is their help: `evalstop rules flat` answers a question."""
    paths = [path for top in ("controller", "sim", "deploy", "examples", "clients") for path in _sources(top)]
    assert len(paths) > 500
    assert [found for path in paths for found in _questions(path)] == []


def _sources(top: str) -> list[Path]:
    return sorted((ROOT / top).rglob("*.py"))


def _questions(path: Path) -> list[str]:
    lines = path.read_text().splitlines()
    found = []
    for number, line in enumerate(lines):
        if QUESTION.match(line) is None or "help text" in line:
            continue
        head = next((at for at in range(number, -1, -1) if HEAD.match(lines[at])), None)
        if head is None or lines[head].lstrip().startswith("class ") or "command" in _decorators(lines, head):
            continue
        found.append(f"{path.relative_to(ROOT)}:{number + 1}: {line.strip()}")
    return found


def _decorators(lines: list[str], head: int) -> str:
    first = head
    while first and lines[first - 1].lstrip().startswith(("@", '"', ")")):
        first -= 1
    return "\n".join(lines[first:head])
