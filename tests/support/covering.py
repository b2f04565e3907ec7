"""Rows of choices in which each combination of any few of them occurs: what all combinations would show of
faults that need no more things at once, by a small part of them (Kuhn, Wallace and Gallo, IEEE TSE 2004: none
of the faults in their systems needed more than six, nine of ten at most three)."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def covering(options: Mapping[str, Sequence[Any]], strength: int) -> Iterator[dict[str, Any]]:
    """Yield rows, one value of each option, until any ``strength`` options had all their values together.

    Greedy, as AETG (Cohen et al., IEEE TSE 1997): a row begins with a combination that is missing, and takes
    for each other option the value that brings most of those that are missing. Equal in each run.
    """
    names, drawn = list(options), random.Random(strength)
    missing = {
        tuple(zip(chosen, values, strict=True))
        for chosen in itertools.combinations(range(len(names)), strength)
        for values in itertools.product(*(range(len(options[names[i]])) for i in chosen))
    }
    while missing:
        first = min(missing)
        missing.remove(first)
        row = dict(first)
        rest = [i for i in range(len(names)) if i not in row]
        drawn.shuffle(rest)
        for i in rest:
            values = range(len(options[names[i]]))
            met = {v: [x for x in _with(row, i, v, strength) if x in missing] for v in values}
            row[i] = max(values, key=lambda v: len(met[v]))
            missing.difference_update(met[row[i]])
        yield {names[i]: options[names[i]][v] for i, v in row.items()}


def _with(row: Mapping[int, int], i: int, value: int, strength: int) -> Iterator[tuple[tuple[int, int], ...]]:
    for others in itertools.combinations(sorted(row.items()), strength - 1):
        yield tuple(sorted((*others, (i, value))))
