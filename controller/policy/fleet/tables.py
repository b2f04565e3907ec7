"""Bounded tables that several namespaces write into: one that writes much displaces only its own entries.

A tenant chooses the names of his metrics and the versions of his evaluators, and he can run, and have
stopped, as many jobs as he likes. So where a table is full, room is dealt out by namespace: each has what it
asks for up to an equal share, and what one does not use others may.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def fair(entries: Sequence[T], namespace: Callable[[T], str], most: int) -> list[T]:
    """At most ``most`` of the entries, in their order; of each namespace its first ones.

    The namespaces with the most entries lose theirs first. Where there are more namespaces than room, those
    with the fewest entries keep one each, and of equals those that come first by name.
    """
    if len(entries) <= most:
        return list(entries)
    by: dict[str, list[int]] = {}
    for index, entry in enumerate(entries):
        by.setdefault(namespace(entry), []).append(index)
    level = 0
    while sum(min(len(own), level + 1) for own in by.values()) <= most:
        level += 1
    kept = {index for own in by.values() for index in own[:level]}
    for name in sorted(by, key=lambda name: (len(by[name]), name)):
        if len(kept) < most and len(by[name]) > level:
            kept.add(by[name][level])
    return [entry for index, entry in enumerate(entries) if index in kept]
