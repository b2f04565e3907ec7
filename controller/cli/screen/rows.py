"""The rows of the list: which jobs, and in which order. Nothing here draws."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from controller.cli.jobs import Field, at

Object = dict[str, Any]
Rank = tuple[Any, ...]

MOST = 500  # rows of a list; more are counted: nobody reads them, and a filter is one key away
# Who is looked at first: what goes wrong or ends, then what runs, then what waits, then what is over.
ORDER = (
    "Refused", "RunsOn", "Failed", "Crashing", "NotStarting", "Unsafe", "Unwatched", "Blind", "WouldStop",
    "Stopping", "Preempting", "Demoted", "Declining", "Starting", "Running", "Unfit", "Queued", "New",
    "Stopped", "Completed",
)  # fmt: skip
_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?")


def key_of(obj: Mapping[str, Any]) -> str:
    """Return ``namespace/name``; of a pool ``/name``."""
    metadata = obj["metadata"]
    return f"{metadata.get('namespace', '')}/{metadata['name']}"


def state_of(job: Object) -> str:
    return str(at(job, "status", "summary") or "New")


def rank(job: Object) -> tuple[int, str]:
    """Return the place of a job in a list that nobody has sorted otherwise."""
    state = state_of(job)
    return (ORDER.index(state) if state in ORDER else len(ORDER), key_of(job))


class Rows:
    """The jobs that are shown.

    Attributes:
        text: words that each shown row has, in its name, state, reason or pool; "": all are shown.
        sort: column that they are sorted by; None: by `rank`.
        reverse: the other way round.
        more: how many fit, but are beyond `MOST`.
    """

    def __init__(self, fields: Sequence[Field]) -> None:
        self.fields = tuple(fields)
        self.text = ""
        self.sort: int | None = None
        self.reverse = False
        self.more = 0
        self._known: dict[str, tuple[str, str, Rank]] = {}  # key -> (version, what is searched, rank)

    def chosen(self, jobs: Mapping[str, Object], now: float) -> list[str]:
        """Return the keys of the rows, in their order."""
        words = self.text.lower().split()
        found = []
        for key, obj in jobs.items():
            searched, place = self._of(key, obj, now)
            if all(word in searched for word in words):
                found.append((place, key))
        found.sort(reverse=self.reverse)
        for key in self._known.keys() - jobs.keys():
            del self._known[key]
        self.more = max(0, len(found) - MOST)
        return [key for _, key in found[:MOST]]

    def next_sort(self) -> str:
        """Sort by the next column; return its title, "" for the usual order."""
        self.sort = 0 if self.sort is None else self.sort + 1
        if self.sort == len(self.fields):
            self.sort = None
        self._known.clear()
        return "" if self.sort is None else self.fields[self.sort].column.title

    def _of(self, key: str, obj: Object, now: float) -> tuple[str, Rank]:
        version = str(obj["metadata"].get("resourceVersion", ""))
        known = self._known.get(key)
        if known is None or known[0] != version:
            reason, pool = at(obj, "status", "printed", "reason") or "", at(obj, "spec", "pool") or ""
            searched = f"{key} {state_of(obj)} {reason} {pool}".lower()
            known = self._known[key] = (version, searched, self._rank(obj, now))
        return known[1], known[2]

    def _rank(self, obj: Object, now: float) -> Rank:
        if self.sort is None:
            return rank(obj)
        field = self.fields[self.sort]
        if field.column.title == "AGE":  # the youngest first, as the column's numbers rise
            created = str(at(obj, "metadata", "creationTimestamp") or "")
            return (tuple(-ord(char) for char in created), key_of(obj))
        return (_natural(field.of(obj, now)), key_of(obj))


def _natural(text: str) -> tuple[int, float, str]:
    """Return a text's place: numbers by their value and before words, what is not known last."""
    found = _NUMBER.match(text)
    if found is not None:
        return (0, float(found[0]), text)
    return (1 if any(char.isalnum() for char in text) else 2, 0.0, text.lower())
