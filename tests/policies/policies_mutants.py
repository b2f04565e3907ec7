"""Policies with one part of an expression left out: a whole validation, or one operand of any ``a && b`` or
``a || b``, wherever it stands.

All mutants of a policy are one policy, in force at once: each has a user of its own, for whom alone that part
is missing.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
PLACES = ("matchConditions", "variables", "validations")
# Validations that one function makes for each kind of workload: of the first two kinds they are taken apart.
ALIKE = {"rlhfjob-author": range(6, 20)}
OPEN = "variables.dataBefore"  # in the use of `same` that is taken apart
_OPENS, _CLOSES = "([{", ")]}"
_USER = "request.userInfo.username"


@dataclass(frozen=True)
class Mutant:
    """``expression``: what stands there instead; "true": nothing. ``part``: what is left out."""

    policy: str
    place: str
    index: int
    expression: str
    part: str
    number: int  # of its user


def mutants_of(policies: dict[str, Json]) -> list[Mutant]:
    """Return all of them; numbers count through."""
    found: list[tuple[str, str, int, str, str]] = []
    for name, made in policies.items():
        for place in PLACES:
            for index, one in enumerate(made["spec"].get(place, ())):
                if one.get("name", "").endswith("Before"):
                    continue  # made by the same function as what it is compared with
                whole = [("true", one["expression"])] if place == "validations" else []
                alike = place == "validations" and index in ALIKE.get(name, ())
                parts = {} if alike else dict(without_a_part(one["expression"]))
                found += [(name, place, index, *text) for text in (*whole, *parts.items())]
    return [Mutant(*one, number) for number, one in enumerate(found)]


def together(made: Json, mutants: list[Mutant], user: Callable[[Mutant], str], only: str) -> Json:
    """Return the policy of all its mutants.

    Args:
        made: the whole policy.
        mutants: of it.
        user: the name of a mutant's user; whoever is none of them meets the whole policy.
        only: CEL, who is asked about.
    """
    policy = copy.deepcopy(made)
    spec = policy["spec"]

    def of(place: str, index: int) -> list[Mutant]:
        return [m for m in mutants if (m.place, m.index) == (place, index)]

    def is_one_of(some: list[Mutant]) -> str:
        return f"{_USER} in [{', '.join(repr(user(m)) for m in some)}]"

    for index, variable in enumerate(spec.get("variables", ())):
        text = f"({variable['expression']})"
        for mutant in of("variables", index):
            text = f"{_USER} == '{user(mutant)}' ? ({mutant.expression}) : {text}"
        variable["expression"] = text
    for place in ("matchConditions", "validations"):
        wanted = []
        for index, one in enumerate(spec[place]):
            some = of(place, index)
            whole = f"({one['expression']})"
            wanted.append({**one, "expression": f"{is_one_of(some)} || {whole}" if some else whole})
            for mutant in some:
                guarded = f"{_USER} != '{user(mutant)}' || ({mutant.expression})"
                more = {"name": f"{one['name']}-{mutant.number}"} if "name" in one else {}
                wanted.append({**one, **more, "expression": guarded})
        spec[place] = wanted
    spec["matchConditions"] = [{"name": "variants", "expression": only}, *spec["matchConditions"]]
    return policy


# -- parts of an expression ----------------------------------------------------------------------------------


def without_a_part(text: str) -> Iterator[tuple[str, str]]:
    """Yield a CEL expression without one operand, and that operand, for each operand of each chain of ``&&``
    and of ``||``.

    But not without the equality of ``a == b || (a.all(k, …``, which only makes what follows cheaper, and of
    what follows, `controller.api.admission.base.same_apart`, as a whole: one use of it is taken apart for all
    (`OPEN`).
    """
    yield from _within(text, 0, len(text))


def _within(text: str, start: int, end: int) -> Iterator[tuple[str, str]]:
    """Mutants of what lies between two places; lowest precedence first, as it binds least."""
    for separators in ((",",), (" ? ", " : "), ("||",), ("&&",)):
        parts = _split(text, start, end, separators)
        if separators == (" ? ", " : ") and len(parts) != 3:
            continue
        if len(parts) == 1:
            continue
        if separators[0] in ("||", "&&"):
            for i, (begin, over) in enumerate(parts):
                part = text[begin:over].strip()
                if _is_shortcut(part, text[over:]):
                    continue
                first = begin if i == 0 else parts[i - 1][1]
                last = parts[1][0] if i == 0 else over
                yield text[:first] + text[last:], part
        for begin, over in parts:
            if not _is_same(text[begin:over]):
                yield from _within(text, begin, over)
        return
    if _is_same(text[start:end]):
        return
    for begin, over in _brackets(text, start, end):
        yield from _within(text, begin, over)


def _is_shortcut(part: str, rest: str) -> bool:
    return rest.startswith(f"|| ({part.partition(' == ')[0]}.all(k, ") or part == "variables.sameTemplate"


def _is_same(part: str) -> bool:
    return OPEN not in part and re.match(r"\s*\(\S+\.all\(k, k in \[", part) is not None


def _split(text: str, start: int, end: int, separators: tuple[str, ...]) -> list[tuple[int, int]]:
    parts, begin = [], start
    for at, level in _outside_strings(text, start, end):
        found = next((s for s in separators if text.startswith(s, at)), "")
        if level == 0 and found:
            parts.append((begin, at))
            begin = at + len(found)
    return [*parts, (begin, end)]


def _brackets(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    begin = start
    for at, level in _outside_strings(text, start, end):
        if level == 1 and text[at] in _OPENS:
            begin = at + 1
        elif level == 0 and text[at] in _CLOSES:
            yield begin, at


def _outside_strings(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Places that are in no string, with how many brackets are open after each."""
    level, quoted = 0, False
    for at in range(start, end):
        if text[at] == "'":
            quoted = not quoted
        if quoted or text[at] == "'":
            continue
        level += (text[at] in _OPENS) - (text[at] in _CLOSES)
        yield at, level
