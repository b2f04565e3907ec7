"""Findings of checks, and how checks that may not look say so."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from enum import StrEnum

from controller.cli.remedies import cure_document
from controller.frozen import dataclass
from controller.kube.errors import ApiError
from controller.policy.job import Cure

NOTHING = Cure("")


class Level(StrEnum):
    """Severity. WRONG makes doctor's exit code 1."""

    OK = "ok"
    NOTE = "note"  # nothing is broken; worth knowing
    UNKNOWN = "unknown"  # could not be looked at
    WRONG = "WRONG"


@dataclass(frozen=True, slots=True)
class Finding:
    """``cure``: the command that mends it, or what else to do."""

    level: Level
    about: str
    text: str
    cure: Cure = NOTHING

    def as_dict(self) -> dict[str, object]:
        return {
            "level": self.level.value.lower(),
            "about": self.about,
            "text": self.text,
            "cure": cure_document(self.cure) if self.cure.line else None,
        }


def ok(about: str, text: str) -> Finding:
    return Finding(Level.OK, about, text)


def note(about: str, text: str, cure: Cure | str = NOTHING) -> Finding:
    return Finding(Level.NOTE, about, text, as_cure(cure))


def unknown(about: str, text: str, cure: Cure | str = NOTHING) -> Finding:
    return Finding(Level.UNKNOWN, about, text, as_cure(cure))


def wrong(about: str, text: str, cure: Cure | str = NOTHING) -> Finding:
    return Finding(Level.WRONG, about, text, as_cure(cure))


def as_cure(given: Cure | str) -> Cure:
    """Return a cure that is written as one line: a command by its program's name, else words."""
    if isinstance(given, Cure):
        return given
    commands = given.startswith(("kubectl ", "evalstop ", "curl ", "helm ", "make "))
    return Cure("", command=given) if commands else Cure(given)


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
