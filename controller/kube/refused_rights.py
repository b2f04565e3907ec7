"""Rights that the API server refuses to this process, by the answers to its own calls.

A process that has lost its rights hears for minutes yet what its open watches bring, and what it knows goes
stale without a word. What it is refused is known sooner: each refused call says so.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection
from typing import NamedTuple

from controller.kube.lease import RefusedNote
from controller.kube.resources import Resource
from controller.policy.wording import some

LASTING = 30.0  # s of refusals before anybody is told: at an installation the rights may come last
LAPSED = 300.0  # s without another try: what was refused is wanted no more (its namespace is gone, say)

NAMED = 5  # rights in one line

_READS = ("get", "list", "watch")
_CALLED = {"dry-run": "create", "apply": "patch"}  # calls by the verbs of their rights
# Of a write that is refused for want of a right, in the API server's words (forbiddenMessage in
# apiserver/pkg/endpoints/handlers/responsewriters); a quota or an admission policy refuses in others.
_NO_RIGHT = re.compile(r'\bcannot [a-z]+ resource "')


class _Refusals(NamedTuple):
    """Of one right, without a success between: the first and the last one.

    Attributes:
        first, last: monotonic s.
        at: of the first, s since the epoch.
    """

    first: float
    last: float
    at: float


class RefusedRights:
    """Rights that calls were refused, each with the time of its first and last refusal.

    Args:
        needed: the kinds that count: without a right to one of these the process cannot do its work.
        monotonic, clock: the process's clocks (s, s since the epoch).
    """

    def __init__(
        self,
        needed: Collection[Resource],
        monotonic: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._needed, self._now, self._clock = needed, monotonic, clock
        self._found: dict[tuple[str, str, str], _Refusals] = {}  # by verb, kind with subresource, namespace

    def answered(self, verb: str, resource: Resource, namespace: str, status: int, message: str) -> None:
        """Note an answer of the API server.

        Args:
            verb: as the client calls it: "patch-status" is a patch of the subresource.
            resource: the kind.
            namespace: of the call; "": it is of the cluster.
            status: of HTTP.
            message: of a refusal; "": there is none.
        """
        if resource not in self._needed:
            return
        verb, kind = _right(verb, resource)
        key = verb, kind, namespace
        if status == 403 and (verb in _READS or _NO_RIGHT.search(message)):
            now = self._now()
            before = self._found.get(key)
            fresh = before is None or now - before.last > LAPSED
            first, at = (now, self._clock()) if before is None or fresh else (before.first, before.at)
            self._found[key] = _Refusals(first, now, at)
        elif 0 < status < 500 and status not in (401, 429):
            self._found.pop(key, None)  # whatever else it says, the right is there

    def lasting(self) -> RefusedNote | None:
        """Return since when (s since the epoch) what has been refused for long; None: nothing is."""
        now = self._now()
        found = {
            key: refusals
            for key, refusals in self._found.items()
            if now - refusals.last <= LAPSED and now - refusals.first > LASTING
        }
        if not found:
            return None
        rights = sorted({(verb not in _READS, verb, kind) for verb, kind, _ in found})  # reads come first
        what = [f"{verb} {kind}" for _, verb, kind in rights]
        return RefusedNote(min(refusals.at for refusals in found.values()), some(what, NAMED))


def _right(verb: str, resource: Resource) -> tuple[str, str]:
    """Return the right that a call takes: its verb, and the kind with the subresource."""
    if verb in _CALLED:
        return _CALLED[verb], resource.plural
    verb, _, subresource = verb.partition("-")
    return verb, resource.plural + (f"/{subresource}" if subresource else "")
