"""What is fuzzed: one parser of tenants' text, with what it may do with the worst of it."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_OWN_CODE = tuple(str(ROOT / folder) for folder in ("controller", "sim"))


@dataclass(frozen=True)
class Target:
    """A parser of text that tenants write.

    Args:
        run: reads one input. What it returns is of no interest, what it raises is.
        seeds: inputs that it reads well, all that its callers' tests would have; mutations start from them.
        own: exceptions that are its word for a text it does not take. Any other is a finding.
        most: bytes of the longest input; beyond the product's own limit, so that this is reached, too.
        cpu: s of the process's CPU time for one input, many times what the worst one takes on an idle core.
        memory: bytes by which one input may raise the process's peak.
        words: pieces of text that mean something to it, beside those that its seeds are made of.
    """

    name: str
    run: Callable[[bytes], object]
    seeds: Callable[[], Iterable[bytes]]
    own: tuple[type[BaseException], ...] = ()
    most: int = 1 << 16
    cpu: float = 2.0
    memory: int = 128 << 20
    words: tuple[bytes, ...] = field(default=())


@dataclass(frozen=True)
class Finding:
    """An input that a target may not answer as it did."""

    target: str
    kind: str  # equal for inputs that find the same fault
    told: str  # for a person: the traceback, or how much it took
    data: bytes


def kind_of(error: BaseException) -> str:
    """What is the same of an exception for all inputs that bring it: its type, and the line of ours."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_ours(frame.filename)]
    where = f"{Path(frames[-1].filename).relative_to(ROOT)}:{frames[-1].lineno}" if frames else "outside"
    return f"{type(error).__name__} at {where}"


def _is_ours(file: str) -> bool:
    return file.startswith(_OWN_CODE)
