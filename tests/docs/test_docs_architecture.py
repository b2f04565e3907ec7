"""docs/architecture.md names functions that are there, twenty words, and every room of the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def section(heading: str) -> str:
    """Return the text below a heading of the page, up to the next one of its level."""
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the rows of a section's table, without its head."""
    lines = [line for line in section(heading).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def defines(place: str) -> bool:
    """Return whether `path.py::function` or `path.py::Class.method` is defined."""
    path, _, name = place.partition("::")
    file = ROOT / path
    if not file.is_file():
        return False
    body = ast.parse(file.read_text()).body
    for part in name.split("."):
        kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        found = [node for node in body if isinstance(node, kinds) and node.name == part]
        if not found:
            return False
        body = found[0].body
    return isinstance(found[0], ast.FunctionDef | ast.AsyncFunctionDef)


QUESTIONS = rows("Where is it decided that …")


@pytest.mark.parametrize(("number", "question", "answer"), QUESTIONS, ids=[row[0] for row in QUESTIONS])
def test_each_question_is_answered_by_a_function(number: str, question: str, answer: str) -> None:
    assert question.startswith("…")
    assert question.endswith("?")
    (place,) = re.findall(r"`([^`]+)`", answer)
    assert defines(place), f"{number}: {place} is not defined"


def test_there_are_twenty_questions_and_twenty_words() -> None:
    assert [row[0] for row in QUESTIONS] == [str(n) for n in range(1, 21)]
    words = [row[0] for row in rows("Glossary")]
    assert len(set(words)) == len(words) == 20
    assert all(re.fullmatch(r"\*\*[^*]+\*\*", word) for word in words)


def test_a_function_that_is_not_there_is_found() -> None:
    assert defines("controller/policy/params.py::check")
    assert not defines("controller/policy/params.py::no_such_function")
    assert not defines("controller/policy/no_such_file.py::check")
    assert not defines("controller/policy/stopping/gate.py::Gate"), "a class decides nothing by itself"
    assert not defines("controller/policy/stopping/gate.py::Gate.no_such_method")


def test_every_room_is_in_the_table() -> None:
    """Folders of the brain and of the operator, and the packages of `controller`."""
    named = set(re.findall(r"`([\w/]+)`", section("The rooms")))
    rooms = {
        str(path.parent.relative_to(ROOT))
        for folder in ("controller", "controller/policy", "controller/operator")
        for path in (ROOT / folder).glob("*/__init__.py")
    }
    small = {"controller/policy", "controller/operator", "controller/install"}
    assert rooms - small - named == set()


@pytest.mark.parametrize("way", ["score", "manifest", "freed GPU"])
def test_each_way_has_its_drawing(way: str) -> None:
    assert section(f"The way of a {way}").count("```mermaid") == 1
