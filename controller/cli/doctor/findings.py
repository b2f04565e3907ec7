"""What a check finds, and how checks that may not look say so."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from enum import StrEnum

from controller.kube.errors import ApiError


class Level(StrEnum):
    """How bad. WRONG makes doctor's exit code 1."""

    OK = "ok"
    NOTE = "note"  # nothing is broken; worth knowing
    UNKNOWN = "unknown"  # could not be looked at
    WRONG = "WRONG"


@dataclass(frozen=True, slots=True)
class Finding:
    """``cure``: the command that mends it, or what else to do; lines of their own."""

    level: Level
    about: str
    text: str
    cure: str = ""

    def as_dict(self) -> dict[str, str | None]:
        return {
            "level": self.level.value.lower(),
            "about": self.about,
            "text": self.text,
            "cure": self.cure or None,
        }


def ok(about: str, text: str) -> Finding:
    return Finding(Level.OK, about, text)


def note(about: str, text: str, cure: str = "") -> Finding:
    return Finding(Level.NOTE, about, text, cure)


def unknown(about: str, text: str, cure: str = "") -> Finding:
    return Finding(Level.UNKNOWN, about, text, cure)


def wrong(about: str, text: str, cure: str = "") -> Finding:
    return Finding(Level.WRONG, about, text, cure)


Check = Callable[[], AsyncIterator[Finding]]


async def gather(about: str, check: AsyncIterator[Finding]) -> list[Finding]:
    """Return all that a check finds; what it may not look at, or cannot reach, ends it with an UNKNOWN."""
    found: list[Finding] = []
    try:
        async for finding in check:
            found.append(finding)
    except ApiError as error:
        if error.status == 403:
            cure = "somebody with more rights can look: evalstop doctor"
            found.append(unknown(about, f"may not be looked at: {error.message}", cure))
        else:
            found.append(unknown(about, f"could not be looked at: {error}"))
    return found
