"""What our `dataclass` costs beside that of `dataclasses`: to make a class, an object, and to compare."""

from __future__ import annotations

import dataclasses
import timeit
from collections.abc import Callable, Iterator
from typing import Any

from controller import frozen
from tests.bench.rows import Row, median_row

CLASSES, TIMES, REPEATS = 40, 20_000, 9
BODY = """\
@dataclass(frozen=True, slots=True)
class One:
    name: str
    step: int
    score: float = 0.0
    proxy: float | None = None
    nodes: tuple[str, ...] = ()
    note: str = field(default="", metadata={"kept": True})
"""
DONE = {
    "object": lambda one: type(one)("a", 3, 0.5),
    "replace": lambda one: dataclasses.replace(one, score=0.7),
    "compare": lambda one: one == _other(one),
    "hash": hash,
}


def run(tell: Callable[[str], None]) -> Iterator[Row]:
    """Yield medians, ours beside theirs, one after the other."""
    makers = (frozen.dataclass, dataclasses.dataclass)
    tell("classes")
    ours, theirs = zip(*([_class_ms(maker) for maker in makers] for _ in range(REPEATS)), strict=True)
    yield median_row("dataclasses: a class", ours, "ms", theirs)
    objects = [_made(maker)["One"]("a", 3) for maker in makers]
    for name, do in DONE.items():
        tell(name)
        ours, theirs = zip(*([_us(do, one) for one in objects] for _ in range(REPEATS)), strict=True)
        yield median_row(f"dataclasses: {name}", ours, "us", theirs)


def _made(maker: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"dataclass": maker, "field": dataclasses.field}
    exec(BODY, found)
    return found


def _class_ms(maker: Any) -> float:
    return timeit.timeit(lambda: _made(maker), number=CLASSES) / CLASSES * 1e3


def _us(do: Callable[[Any], Any], one: Any) -> float:
    _other(one)
    return timeit.timeit(lambda: do(one), number=TIMES) / TIMES * 1e6


_OTHERS: dict[type[Any], Any] = {}


def _other(one: Any) -> Any:
    """Return an equal object that is not the same."""
    if type(one) not in _OTHERS:
        _OTHERS[type(one)] = type(one)("a", 3)
    return _OTHERS[type(one)]
