"""The commands that pages show, and what of a test's source runs them."""

from __future__ import annotations

import ast
import itertools
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "deploy" / "local" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
STARTS = (
    "evalstop ",
    "kubectl ",
    "helm ",
    "make ",
    "python ",
    "find ",
    "eval ",
    "image=",
    "docker ",
    "kind ",
)
SHELL = ("", "sh", "bash", "console")
WITHIN = r"evalstop [a-z]|kubectl |helm |make |python -m |python tests/"
GROUPS = {"rules", "sim", "extender"}  # of commands of `evalstop`
# Flags that say where or in what form: a test has its own.
EVERYWHERE = {"--namespace", "--create-namespace", "--kubeconfig", "--context", "--all-namespaces", "--wait"}


class Shown(NamedTuple):
    page: str
    command: str  # one line, without its comment
    language: str | None  # of its block; None: it is within a sentence

    def __str__(self) -> str:
        return f"{self.page}: {self.command[:60]}"


def in_blocks(page: Path) -> Iterator[Shown]:
    """Commands in fenced and in indented blocks, lines that go on joined."""
    language: str | None = None
    begun = ""
    for line in page.read_text().splitlines():
        if line.startswith("```"):
            language = line.removeprefix("```") if language is None else None
            continue
        if language is None and not line.startswith("    "):
            continue
        if language is not None and language not in SHELL:
            continue
        said = begun + line.strip().removeprefix("$ ")
        if not said.startswith(STARTS) or re.match(
            r"evalstop (replay: |  ?\d{4}-)|helm install took|  ", said
        ):
            continue
        begun = said.removesuffix("\\") if said.endswith("\\") else ""
        if not begun:
            yield Shown(page.name, re.sub(r"\s+#\s.*", "", said), language or "")


def in_sentences(page: Path) -> Iterator[Shown]:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    for found in re.findall(r"`([^`]+)`", text):
        command = " ".join(found.split())
        if re.match(WITHIN, command):
            yield Shown(page.name, command, None)


ALL = [shown for page in PAGES for shown in in_blocks(page)]
SAID = [shown for page in PAGES for shown in in_sentences(page)]


def words(command: str) -> set[str]:
    """What tells a command from others: its subcommand, what that is about, and its long flags."""
    found = shlex.shlex(re.sub(r"[…\[\]]", " ", command), posix=True, punctuation_chars="|&;")
    found.whitespace_split, found.commenters = True, ""
    program, *given = itertools.takewhile(lambda word: word not in ("|", "&&", ";"), found)
    flags = {word.partition("=")[0] for word in given if word.startswith("--")} - EVERYWHERE
    plain: list[str] = []
    skip = False
    for word in given:
        if skip or word.startswith("-"):
            skip = word in ("-n", "-l", "-o", "--namespace")
        else:
            plain.append(word)
    if program == "make":
        return {*modules(plain[0])} or {plain[0]}
    if program == "python":
        script = given[1] if given[0] == "-m" else Path(given[0]).name
        return {script, *flags, *(w for w in plain[1:2] if re.fullmatch("[a-z-]+", w))}
    if program in ("evalstop", "kubectl", "helm"):
        most = 2 if program == "kubectl" or plain[0] in GROUPS else 1
        named = ",".join(w.partition(".")[0] for w in plain[:most] if re.fullmatch("[a-z][a-z,.-]*", w))
        return {*filter(None, named.split(",")), *flags}
    return set()


@cache
def modules(target: str) -> tuple[str, ...]:
    """What a target of the Makefile runs by `python -m`."""
    text = (ROOT / "Makefile").read_text()
    (recipe,) = re.findall(rf"^{re.escape(target)}:.*\n((?:\t.*\n)*)", text, re.M)
    return tuple(re.findall(r"python -m ([\w.]+)", recipe))


@cache
def source(place: str) -> str:
    """A test's source with all that it uses of its file and of the files it imports from its folder or from
    `deploy`; without ``::name`` the whole file with those."""
    path, _, name = place.partition("::")
    file = ROOT / path
    text = file.read_text()
    tree = ast.parse(text)
    defined: dict[str, ast.AST] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            defined |= {t.id: node for t in targets if isinstance(t, ast.Name)}
        elif isinstance(node, ast.Import | ast.ImportFrom):
            defined |= {a.asname or a.name: node for a in node.names}
    if not name:
        used = list(defined)
    else:
        used, left = [], [name]
        while left:
            one = left.pop()
            if one not in defined or one in used:
                continue
            used.append(one)
            for inner in ast.walk(defined[one]):
                if isinstance(inner, ast.Name):
                    left.append(inner.id)
                elif isinstance(inner, ast.arg):  # a fixture
                    left.append(inner.arg)
    found = [_segment(text, defined[one]) for one in used]
    for one in used:
        node = defined[one]
        if isinstance(node, ast.Import | ast.ImportFrom):
            found += [other.read_text() for other in _files(file.parent, node)]
    return "\n".join(found)


def _segment(text: str, node: ast.AST) -> str:
    marks = "\n".join(ast.unparse(mark) for mark in getattr(node, "decorator_list", ()))
    return f"{marks}\n{ast.get_source_segment(text, node) or ''}"


def _files(folder: Path, node: ast.Import | ast.ImportFrom) -> Iterator[Path]:
    named = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
    for name in named:
        beside = folder / f"{name}.py"
        below = ROOT / f"{name.replace('.', '/')}.py"
        if beside.is_file():
            yield beside
        elif name.startswith("deploy.") and below.is_file():
            yield below


def lacks(place: str, command: str) -> set[str]:
    """Words of a command that the test of that place does not have."""
    text = source(place)
    wanted = words(command)
    if re.search(r"\bshown\(|\bin (ALL|SAID)\b", text):  # it takes the command from the page, with its flags
        wanted = {word for word in wanted if not word.startswith("--")}
    return {word for word in wanted if not re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text)}
