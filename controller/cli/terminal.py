"""Abilities of the terminal: its width, whether it has colours, which characters it can show."""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Mapping
from typing import TextIO

from controller.frozen import dataclass

NARROWEST = 40  # columns; what is narrower is written to as if it had so many

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}
_DRAWN = "⣿●◆▲✖─│└…"  # what pictures and cut texts are made of


@dataclass(frozen=True, slots=True)
class Terminal:
    """The terminal that output goes to. ``width``: columns, None: it is no screen, so nothing is cut."""

    width: int | None = None
    colour: bool = False
    unicode: bool = True

    def paint(self, text: str, style: str) -> str:
        """Return the text in a style ("red", "bold", …); unchanged where there are no colours."""
        code = _CODES.get(style)
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour and code and text else text

    def cut(self, text: str, columns: int) -> str:
        """Return the text in at most so many columns; what is cut ends in an ellipsis."""
        if length(text) <= columns:
            return text
        mark = "…" if self.unicode else "~"
        out, used = "", 0
        for char in text:
            used += length(char)
            if used > columns - 1:
                break
            out += char
        return out + mark

    def cut_middle(self, text: str, columns: int) -> str:
        """Return the text in at most so many columns; what is cut is an ellipsis in its middle.

        Names that differ in their last characters stay different.
        """
        if length(text) <= columns:
            return text
        mark = "…" if self.unicode else "~"
        room = max(0, columns - 1)
        end, used = "", 0
        for char in reversed(text):
            used += length(char)
            if used > room // 2:
                break
            end = char + end
        start, used = "", length(end)
        for char in text:
            used += length(char)
            if used > room:
                break
            start += char
        return start + mark + end


def terminal(
    stream: TextIO | None = None, environ: Mapping[str, str] = os.environ, *, ascii_only: bool = False
) -> Terminal:
    """Return the terminal behind a stream (stdout by default). ``NO_COLOR``, ``TERM=dumb`` and ``COLUMNS``
    count. ``ascii_only``: nothing else is to be drawn, whatever it can show."""
    stream = sys.stdout if stream is None else stream
    live = stream.isatty()
    dumb = environ.get("TERM", "") == "dumb"
    given = environ.get("COLUMNS", "")
    width = None
    if given.isdecimal() and int(given) > 0:
        width = int(given)
    elif live:
        import shutil

        width = shutil.get_terminal_size().columns
    return Terminal(
        width=None if width is None else max(NARROWEST, width),
        colour=live and not dumb and not environ.get("NO_COLOR"),
        unicode=not ascii_only and _shows(stream, _DRAWN) and not dumb and environ.get("TERM", "") != "linux",
    )


def say(text: str, *, err: bool = False) -> None:
    """Print a text as `typer.echo` does, which is loaded where it would do more than write the text."""
    stream = sys.stderr if err else sys.stdout
    if (getattr(stream, "encoding", None) or "").lower() != "utf-8" or (
        "\x1b" in text and not stream.isatty()
    ):
        import typer

        typer.echo(text, err=err)
        return
    stream.write(f"{text}\n")
    stream.flush()


def _shows(stream: TextIO, text: str) -> bool:
    try:
        text.encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def length(text: str) -> int:
    """Columns that a text takes: wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


def clean(text: str) -> str:
    """Return the text on one line, without control characters: what comes from a cluster moves no cursor."""
    return "".join(c if c.isprintable() else " " for c in text)
