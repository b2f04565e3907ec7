"""Rules for any text that a person is shown: no Python, no ``nan``, no false plural, no five digits."""

from __future__ import annotations

import re
from collections.abc import Iterable

# Words that end in s and are one thing, after which "1 process" is right.
_SINGULAR = (
    r"(?!(?:access|address|basis|bias|class|gas|its|is|loss|pass|process|progress|status|this|was|yes)\b)"
)
_THINGS = "GPU|actor|attempt|checkpoint|eval|job|namespace|node|point|pod|pool|run|stop|wait"
_PYTHON = (
    r"Traceback \(most recent",
    r"\b[A-Z]\w+(?:Error|Exception)\(",
    r"<[\w.]+ object at 0x",
    r"<(?:class|function|module|enum|\w+\.\w+:) ",
    r"(?:\{|\[|\()'\w",
    r"\bdatetime\.|\bdataclass|\bfrozenset\b",
    # As a value: after what leads to one, before what ends one, or alone.
    r"(?:[=(\[{,]\s?|: )None\b|\bNone[,)\]}]|^\s*None\s*$|\bstep None\b",
    r"[=(\[{,]\s?(?:True|False)\b|^\s*(?:True|False)\s*$",
    r"\{\{|\{%|%[sd]\b",
)
RULES: tuple[tuple[str, re.Pattern[str]], ...] = (
    *(("Python", re.compile(pattern)) for pattern in _PYTHON),
    ("not a number", re.compile(r"(?<![\w/-])[-+]?(?:nan|inf|infinity)(?![\w/-])", re.IGNORECASE)),
    ("minus nothing", re.compile(r"(?<![\w.])-0(?:\.0+)?(?![\w.])")),
    ("plural of one", re.compile(rf"(?<![\w.,/\u00d7x-])(?<!\d )1 {_SINGULAR}[A-Za-z]{{2,}}s\b(?!-)")),
    ("no plural", re.compile(rf"(?<![\w.,:/-])(?:0|[2-9]|[1-9]\d+) (?:{_THINGS})\b(?![-/'])")),
    ("digest in full", re.compile(r"(?<![0-9a-f])[0-9a-f]{64}")),
    (
        "no time zone",
        re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d)?(?![\d:.]*(?:Z|\s?UTC|[+-]\d\d:\d\d))"),
    ),
    ("comma for a point", re.compile(r"(?<![\w,])\d,\d(?!\d\d)")),
)
_DECIMAL = re.compile(r"(?<![\w.:/@-])[-+]?(\d+\.\d+)(e[-+]?\d+)?(?![\w.:]|\.\d)")
_ABOUT = re.compile(r"\babout (\d[\d,]*(?:\.\d+)?)")
_LABELLED = re.compile(r"(\d[\d,]*(?:\.\d+)?)\s+[A-Za-z -]*, about\b")
MOST_DIGITS = 4  # of a score: its noise leaves no more
MOST_OF_ESTIMATE = 2


def digits(number: str) -> int:
    """Return how many significant digits a number is given with: ``0.0731`` -> 3, ``1200`` -> 2."""
    whole = number.replace(",", "").lstrip("+-")
    kept = whole.replace(".", "").lstrip("0")
    return len(kept) if "." in whole else len(kept.rstrip("0"))


def faults(text: str) -> list[str]:
    """Return what is wrong with a line of text, each as ``rule: what``."""
    found = [f"{name}: {hit[0].strip()!r}" for name, rule in RULES for hit in rule.finditer(text)]
    for hit in _DECIMAL.finditer(text):
        if digits(hit[1]) > MOST_DIGITS:
            found.append(f"too many digits: {hit[0]!r}")
    for pattern in (_ABOUT, _LABELLED):
        for hit in pattern.finditer(text):
            if digits(hit[1]) > MOST_OF_ESTIMATE:
                found.append(f"estimate with {digits(hit[1])} digits: {hit[0]!r}")
    return found


def faults_of(lines: Iterable[str]) -> list[str]:
    """Return the faults of all lines, each with the line that it is in."""
    return [f"{fault} in {line.strip()[:120]!r}" for line in lines for fault in faults(line)]
