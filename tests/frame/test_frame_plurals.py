"""A number of things is written by `counted` wherever people read it: never "1 jobs"."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.policy.wording import agreeing, counted

ROOT = Path(__file__).parents[2]
READ = (
    "controller/cli",
    "controller/install",
    "controller/operator",
    "controller/parity",
    "controller/web",
    "controller/workloads",
    "deploy/local/demo",
    "sim",
)
NOUNS = (
    "actor|byte|call|cell|character|checkpoint|column|decision|deviation|digit|eval|event|file|finding|folder|GPU"
    "|group|hole|installation|job|level|liar|line|loss|member|namespace|node|order|pair|pass|plateau|pod|point"
    "|pool|preemption|prompt|quota|replica|resident|response|RLHFJob|row|run|score|slot|step|stop|switch|time"
    "|token|trace|turn|value|worker"
)
# Between a number and its noun may stand a word, as of "2 bad rows"; none of these, which end the thought.
_ENDS = (
    "a|and|are|as|at|be|but|by|describe|first|for|from|get|had|has|have|held|if|in|is|it|its|no|not|of|on|or|runs|so|stands"
    "|than|that|the|their|they|this|to|was|were|which|while|who|with|without"
)
_PLURAL = re.compile(rf"^ (?:(?!(?:{_ENDS}) )[a-z]+ )?({NOUNS})e?s\b(?! (?:as|it|its|on its)\b)")
_FRACTION = re.compile(r"\.[1-9]\d*f$")  # "1.0 points" is right
_TEMPLATE = re.compile(r"\{\{([^{}]+)\}\}(?= )")

# Where a plural is right, and why.
EXCEPTIONS = {
    ("controller/cli/pools.py", "place"): "no number: on, or planned on",
    ("controller/cli/rules.py", "false_alarm"): "a share below 1",
    ("controller/cli/simulate.py", "texts[n]"): "the name of a rule, which stops",
    ("controller/web/tickets.py", "len(text)"): "none, or too many; and an actor imports it, no policy",
    ("sim/sharing/page.py", "done"): "said only where it is a fraction, or of several",
}


def _of_code(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, expression) of what stands before a bare plural in f-strings."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.JoinedStr):
            continue
        for value, after in zip(node.values, node.values[1:], strict=False):
            if not isinstance(value, ast.FormattedValue) or not isinstance(after, ast.Constant):
                continue
            name = ast.unparse(value.value)
            if not _PLURAL.match(after.value) or name.startswith(("agreeing(", "counted(")):
                continue
            spec = ast.unparse(value.format_spec)[2:-1] if value.format_spec else ""
            if not name.rpartition(".")[2].isupper() and not _FRACTION.search(spec):
                yield value.lineno, name


def _of_template(text: str) -> Iterator[tuple[int, str]]:
    for found in _TEMPLATE.finditer(text):
        name = found[1].strip()
        if _PLURAL.match(text[found.end() :]) and not name.startswith('"'):
            yield text.count("\n", 0, found.start()) + 1, name


def _bare() -> list[tuple[str, int, str]]:
    found = []
    for folder in READ:
        for path in sorted((ROOT / folder).rglob("*")):
            looked = {".py": _of_code, ".html": _of_template}.get(path.suffix)
            if looked is not None:
                name = str(path.relative_to(ROOT))
                found += [(name, *one) for one in looked(path.read_text(encoding="utf-8"))]
    return found


def test_numbers_of_things_are_written_by_one_function() -> None:
    found = _bare()
    assert [one for one in found if (one[0], one[2]) not in EXCEPTIONS] == [], "write it by `counted`"
    assert EXCEPTIONS.keys() == {(file, name) for file, _, name in found if (file, name) in EXCEPTIONS}


@pytest.mark.parametrize(
    ("code", "seen"),
    [
        ('f"{n} jobs"', ["n"]),
        ("f\"{len(rows)} bad rows of {counted(n, 'eval')}\"", ["len(rows)"]),
        ('f"of {a.b[0]:,} GPUs" f" and {x!r} passes"', ["a.b[0]", "x"]),
        ('f"{MOST} jobs, {limits.MOST} jobs"', []),
        ('f"{share:.1f} points, {n} of jobs, {name} stops it"', []),
        ("f\"{counted(n, 'job')} had evals\"", []),
    ],
)
def test_a_bare_plural_is_seen_in_code(code: str, seen: list[str]) -> None:
    assert [name for _, name in _of_code(code)] == seen


def test_a_bare_plural_is_seen_in_a_template() -> None:
    text = 'a\n{{ n|length }} evals, {{ m|counted("eval") }} and {{ w }} lost turns'
    assert list(_of_template(text)) == [(2, "n|length"), (2, "w")]


@pytest.mark.parametrize(("count", "text"), [(0, "0 jobs are"), (1, "1 job is"), (2, "2 jobs are")])
def test_a_number_agrees_with_its_words(count: int, text: str) -> None:
    assert f"{counted(count, 'job')} {agreeing(count, 'is', 'are')}" == text


def test_words_that_end_in_a_hiss_take_es() -> None:
    assert [counted(n, word) for n, word in ((2, "switch"), (2, "loss"), (1, "switch"))] == [
        "2 switches",
        "2 losses",
        "1 switch",
    ]
