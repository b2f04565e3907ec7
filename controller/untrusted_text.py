"""Texts of strangers, made fit for a message: a terminal, a log, a page of HTML shows them as they are."""

from __future__ import annotations


def printable(text: str, limit: int = 80) -> str:
    """Return the text with control characters replaced, cut to ``limit`` characters."""
    clean = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text[: limit + 1])
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def one_line(text: str, limit: int) -> str:
    """Return the same of a text of several lines: what divides its words is one space."""
    return printable(" ".join(text[: 4 * limit].split()), limit)
