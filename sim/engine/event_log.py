"""The log of a simulation: each decision as a line of text. The same run gives the same bytes."""

from __future__ import annotations

from hashlib import sha256


class EventLog:
    """Decisions in the order in which they were made: ``<time> <verb> <job> <detail>``.

    Times are written as floats in their shortest exact form, so that equal lines mean equal decisions.
    """

    __slots__ = ("lines",)

    def __init__(self) -> None:
        self.lines: list[str] = []

    def write(self, now: float, verb: str, key: str, detail: str = "") -> None:
        self.lines.append(f"{float(now)!r} {verb} {key} {detail}".rstrip())

    def text(self) -> str:
        return "\n".join(self.lines) + "\n" if self.lines else ""

    def digest(self) -> str:
        """SHA-256 of `text`, hexadecimal."""
        return sha256(self.text().encode()).hexdigest()
