"""Docstrings say what a thing is, does or returns; a question word leaves that open."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOPS = ("controller", "sim", "deploy", "examples", "clients")
QUESTION = re.compile(r"(As whom|What|Whose|Whether|Who|Which|Where|How|When|Why)\b")


def _sources(top: str) -> list[Path]:
    return sorted((ROOT / top).rglob("*.py"))


def _functions(path: Path) -> list[str]:
    lines = path.read_text().splitlines()
    tree = ast.parse(path.read_text())
    return [
        f"{path.relative_to(ROOT)}:{node.lineno}: {text}"
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and QUESTION.match(text := ast.get_docstring(node) or "")
        and not any("command" in ast.unparse(one) for one in node.decorator_list)
        and "help text" not in lines[node.body[0].lineno - 1]
    ]


def _modules_and_classes(path: Path) -> list[str]:
    tree = ast.parse(path.read_text())
    return [
        f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}: {text}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef)
        and QUESTION.match(text := ast.get_docstring(node) or "")
    ]


ROOMS = sorted({str(path.parent.relative_to(ROOT)) for top in TOPS for path in _sources(top)})


def test_no_function_is_described_by_a_question_word() -> None:
    """But for commands, whose docstring is their help: `evalstop rules flat` answers a question."""
    paths = [path for top in TOPS for path in _sources(top)]
    assert len(paths) > 500
    assert [found for path in paths for found in _functions(path)] == []


@pytest.mark.parametrize("room", ROOMS)
def test_no_module_or_class_is_described_by_a_question_word(room: str) -> None:
    found = [at for path in sorted((ROOT / room).glob("*.py")) for at in _modules_and_classes(path)]
    assert found == []
