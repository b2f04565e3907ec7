"""The promises of a page, and the tests that its notes name.

    A file is read once.[^reader]

    [^reader]: `tests/x/test_x.py::test_read_once`, `tests/x/test_x.py::test_more`

A sentence ends at `.`, `!` or `?` before a space, or where its paragraph ends; in a table a row is one.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

NOTE = re.compile(r"\[\^([a-z-]+)\]")
_DEFINED = re.compile(r"^\[\^([a-z-]+)\]: (.*)$", re.M)
_SENTENCE = re.compile(r".+?[.!?](?:\[\^[a-z-]+\])*(?=\s|$)|.+$", re.S)
_CODE = re.compile(r"`[^`]*`")
_HELD = re.compile(r"(?:\[\^[a-z-]+\])+$")
TITLE = ""


def sections(text: str) -> dict[str, str]:
    """Heading -> what stands below it, without shell blocks and notes; `TITLE`: what is before the first."""
    prose = _DEFINED.sub("", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))
    head, *rest = re.split(r"^## ", prose, flags=re.M)
    found = {TITLE: head.partition("\n")[2]}
    for section in rest:
        name, _, body = section.partition("\n")
        found[name] = body
    return found


def sentences(body: str) -> Iterator[str]:
    """Each sentence of a section, and each row of its tables, on one line."""
    for block in re.split(r"\n\s*\n", body.strip()):
        lines = block.splitlines()
        if lines and lines[0].startswith("|"):
            yield from lines[2:]
            continue
        for item in re.split(r"^- ", block, flags=re.M):
            plain = " ".join(item.split())
            masked = _CODE.sub(lambda code: "x" * len(code.group()), plain)
            for match in _SENTENCE.finditer(masked):
                if sentence := plain[match.start() : match.end()].strip():
                    yield sentence


def held(sentence: str) -> bool:
    """Whether it ends with a note; of a row, whether its first cell does."""
    end = sentence.split("|")[1].rstrip() if sentence.startswith("|") else sentence
    return _HELD.search(end) is not None


def notes(text: str) -> dict[str, list[str]]:
    """Name -> the tests it names."""
    return {name: re.findall(r"`([^`]+)`", line) for name, line in _DEFINED.findall(text)}


def missing(root: Path, test: str) -> str:
    """What is wrong with the name of a test, `path::function`; "": there is such a test."""
    path, _, function = test.partition("::")
    if not re.fullmatch(r"tests/(\w+/)*test_\w+\.py", path) or not (root / path).is_file():
        return f"{test}: there is no such file of tests"
    tree = ast.parse((root / path).read_text())
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    if not function.startswith("test_") or function not in functions:
        return f"{test}: there is no such test in it"
    return ""
