"""A process's settings: fields of a dataclass, read from environment variables and checked all at once.

Each process has a module `settings` with its dataclass. A new setting is a field there, made by `setting`;
its documentation, its `--help` and the chart's schema follow from it. Imports nothing of ours.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import field, fields
from typing import Any, TypeVar

Number = TypeVar("Number", int, float)


class SettingsError(Exception):
    """One or more variables are wrong; the message names each, its value and what would be right."""


def setting(default: Any, parse: Callable[[str], Any], doc: str) -> Any:
    """Return a field read from ``<prefix><FIELD IN CAPITALS>``; ``parse`` raises ValueError, KeyError or
    OSError for a text that is not what its own docstring says."""
    return field(default=default, metadata={"parse": parse, "doc": doc})


def text(value: str) -> str:
    """any text"""  # noqa: D403 -- part of an error
    return value


def choice(*words: str) -> Callable[[str], str]:
    """Return a reader of one of these words."""

    def parse(value: str) -> str:
        if value not in words:
            raise ValueError
        return value

    parse.__doc__ = f"one of {', '.join(words)}"
    return parse


def number(low: float, high: float, unit: str) -> Callable[[str], float]:
    """Return a reader of numbers within bounds."""
    return _between(float, low, high, f"a number from {low:g} to {high:g} ({unit})")


def whole_number(low: int, high: int, unit: str) -> Callable[[str], int]:
    """Return a reader of whole numbers within bounds."""
    return _between(int, low, high, f"a whole number from {low} to {high} ({unit})")


def _between(read: Callable[[str], Number], low: Number, high: Number, doc: str) -> Callable[[str], Number]:
    def parse(value: str) -> Number:
        given = read(value)
        if not low <= given <= high:
            raise ValueError
        return given

    parse.__doc__ = doc
    return parse


def listed(value: str) -> tuple[str, ...]:
    """Return what a text lists, by commas: each once, without spaces around it."""
    return tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))


def https_urls(of: str) -> Callable[[str], str]:
    """Return a reader of https:// addresses, by commas. ``of``: whose they are."""

    def parse(value: str) -> str:
        if not all(url.startswith("https://") for url in listed(value)):
            raise ValueError
        return value

    parse.__doc__ = f"https:// addresses of {of}, by commas"
    return parse


def log_level_setting() -> Any:
    """Return the field of a process's log level."""
    return setting("INFO", choice("DEBUG", "INFO", "WARNING", "ERROR"), "level of the log")


def log_format_setting() -> Any:
    """Return the field of the form of a process's log lines."""
    return setting("json", choice("json", "console"), "form of the log lines on stderr")


def switch(value: str) -> bool:
    """true or false"""  # noqa: D401, D403 -- part of an error
    return {"true": True, "false": False}[value]


def values_of(
    cls: Any, prefix: str, environ: Mapping[str, str] = os.environ, foreign: frozenset[str] = frozenset()
) -> tuple[dict[str, Any], list[str]]:
    """Return values by field name, and what is wrong, of the variables that begin with ``prefix``.

    ``foreign``: variables with this prefix that are no settings of this process.
    """
    known = {prefix + f.name.upper(): f for f in fields(cls)}
    values: dict[str, Any] = {}
    problems: list[str] = []
    for variable, given in sorted(environ.items()):
        if not variable.startswith(prefix) or variable in foreign:
            continue
        if variable not in known:
            problems.append(f"{variable}: no such setting; there are {', '.join(sorted(known))}")
            continue
        parse = known[variable].metadata["parse"]
        try:
            values[known[variable].name] = parse(given)
        except (ValueError, KeyError, OSError):
            problems.append(f"{variable}={given!r}: expected {parse.__doc__}")
    return values, problems


def described(cls: Any, prefix: str) -> list[tuple[str, str, str]]:
    """Return (variable, default, meaning) of each setting, for the docs and for ``--help``."""
    return [
        (prefix + f.name.upper(), _written(f.default), f"{f.metadata['doc']}; {f.metadata['parse'].__doc__}")
        for f in fields(cls)
    ]


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def help_text(rows: list[tuple[str, str, str]]) -> str:
    """Return the rows of `described` as lines of ``--help``."""
    return "\n".join(f"  {name}\n      {doc} (default {default or 'empty'})" for name, default, doc in rows)
