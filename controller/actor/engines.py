"""The sidecar's needs of an engine, in the words of every engine: generate, take, abort, load, report."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Protocol

from controller.frozen import dataclass

MOST_TOKEN = 10_000_000  # ids of a vocabulary, and tokens of a response


class EngineError(Exception):
    """The engine refuses or is gone; ``status`` is what the sidecar answers."""

    def __init__(self, message: str, status: int = 502) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Request:
    """One response to generate.

    Attributes:
        id: the client's name of it.
        prompt: token ids.
        tokens: that were generated elsewhere and are computed again.
        most: tokens of the response at most, those included.
        draw: seed, step, prompt, copy: what its random numbers depend on, with the position.
        temperature: that logits are divided by.
    """

    id: str
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    most: int
    draw: tuple[int, int, int, int]
    temperature: float = 1.0


@dataclasses.dataclass(slots=True)
class News:
    """New token ids by response, and why responses ended: "stop", "length" or "abort"."""

    tokens: dict[str, list[int]] = field(default_factory=dict)
    ended: dict[str, str] = field(default_factory=dict)
    version: int | None = None  # of the weights


class Engine(Protocol):
    """An engine. Every method raises `EngineError`."""

    async def generate(self, version: int, requests: Sequence[Request]) -> None:
        """Queue responses that are to be by the weights of this version."""

    async def take(self, wait: float) -> News:
        """Return what is new, after ``wait`` s at most."""
        ...

    async def abort(self, ids: Sequence[str] | None) -> None:
        """End these responses; None: all."""

    async def load(self, path: Path, version: int, digest: str) -> None:
        """Serve the weights in a file, whose SHA-256 the sidecar has found right, from now on."""

    async def report(self) -> Mapping[str, Any]:
        """Return slots, what is live and waiting, the weights' version, and counters of work."""
        ...

    async def close(self) -> None:
        """Let go of connections."""


def requests_of(document: object) -> tuple[int, list[Request]]:
    """Return the version and the requests of a generate call.

    Raises:
        ValueError: the message names field, value and what would be right.
    """
    if not isinstance(document, dict) or not isinstance(document.get("requests"), list):
        raise ValueError('expected {"version": N, "requests": […]}')
    version = _whole(document.get("version"), "version", 2**53)
    found = []
    for place, given in enumerate(document["requests"]):
        at = f"requests[{place}]"
        if not isinstance(given, dict):
            raise ValueError(f"{at}: expected an object")
        name = given.get("id")
        if not isinstance(name, str) or not 0 < len(name) <= 64 or not name.isprintable():
            raise ValueError(f"{at}.id: expected 1 to 64 printable characters")
        draw = _ids(given.get("draw"), f"{at}.draw", 2**62)
        if len(draw) != 4:
            raise ValueError(f"{at}.draw: expected seed, step, prompt and copy")
        temperature = given.get("temperature", 1.0)
        if (
            isinstance(temperature, bool)
            or not isinstance(temperature, int | float)
            or not 0.0 < temperature <= 100.0
        ):
            raise ValueError(f"{at}.temperature: expected a number above 0, at most 100")
        tokens, most = _ids(given.get("tokens", []), f"{at}.tokens"), _whole(given.get("most"), f"{at}.most")
        if not len(tokens) < most:
            raise ValueError(
                f"{at}.most: {most} is not allowed, expected more than the {len(tokens)} tokens there are"
            )
        prompt = _ids(given.get("prompt"), f"{at}.prompt")
        if not prompt:
            raise ValueError(f"{at}.prompt: expected at least one token")
        found.append(
            Request(name, prompt, tokens, most, (draw[0], draw[1], draw[2], draw[3]), float(temperature))
        )
    if len({request.id for request in found}) < len(found):
        raise ValueError("requests: an id stands there twice")
    return version, found


def _ids(value: object, field_name: str, most: int = MOST_TOKEN) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > 1_000_000:
        raise ValueError(f"{field_name}: expected a list of whole numbers")
    for one in value:
        if type(one) is not int or not 0 <= one < most:
            raise ValueError(f"{field_name}: expected whole numbers from 0, below {most}")
    return tuple(value)


def _whole(value: object, field_name: str, most: int = MOST_TOKEN) -> int:
    if type(value) is not int or not 0 <= value < most:
        raise ValueError(f"{field_name}: expected a whole number from 0, below {most}")
    return value
