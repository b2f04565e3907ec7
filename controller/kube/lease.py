"""Leader election by a Lease: the rules, without a clock or a call of their own.

Several candidates share one Lease (coordination.k8s.io/v1). Its holder renews it; when it has not changed for
its duration, another candidate may take it. The rules are those of client-go's leader election, stated so
that they can be tested in virtual time:

- No candidate compares its clock with another's. What is timed is how long *this* process has seen the Lease
  unchanged, by its own monotonic clock; the times inside the Lease are for people.
- A leader counts from the moment at which it *sent* its last successful renewal, a candidate from the moment
  at which it had *read* that renewal, which is later. With ``deadline < duration`` the leader has stopped
  acting before anybody may take the Lease, as long as the two clocks run at rates less than duration /
  deadline apart.
- Each taking begins a new term; its number, the epoch, is the Lease's ``leaseTransitions`` and only grows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from controller import names
from controller.api.values import timestamp
from controller.frozen import dataclass
from controller.objects import parse_time
from controller.policy.wording import agreeing
from controller.untrusted_text import one_line


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of a leader election (s).

    Attributes:
        duration: time without a change after which the Lease may be taken.
        deadline: time after its last renewal for which a leader may act.
        retry: time between renewals, and between a candidate's looks.

    Raises:
        ValueError: not ``retry < deadline < duration``; the message says which.
    """

    duration: int = 15
    deadline: float = 10.0
    retry: float = 2.0

    def __post_init__(self) -> None:
        if not self.deadline < self.duration:
            raise ValueError(
                f"renewal deadline {self.deadline:g} s: expected less than the lease's {self.duration:g} s, "
                "or the leader would still act when another one may take its lease"
            )
        if not self.retry < self.deadline:
            raise ValueError(
                f"renewal period {self.retry:g} s: expected less than the deadline, {self.deadline:g} s"
            )


@dataclass(frozen=True, slots=True)
class LeaseView:
    """A Lease as it was read. ``holder`` empty: nobody's. ``duration``: seconds, as its holder wrote it."""

    uid: str
    version: str
    holder: str
    duration: float
    epoch: int

    @staticmethod
    def of(obj: Mapping[str, Any]) -> LeaseView:
        """Read an object of the API. Fields that are not there read as those of a Lease that nobody holds."""
        metadata, spec = obj["metadata"], obj.get("spec") or {}
        return LeaseView(
            uid=str(metadata["uid"]),
            version=str(metadata["resourceVersion"]),
            holder=str(spec.get("holderIdentity") or ""),
            duration=float(spec.get("leaseDurationSeconds") or 0),
            epoch=int(spec.get("leaseTransitions") or 0),
        )


LONG = 300.0  # s: no two clocks differ by so much
RELEASED = 60.0  # s of one that its holder gave up: a successor, if there is any, takes it within seconds


def left_since(lease: Mapping[str, Any], now: float) -> float | None:
    """Return when (s since the epoch) a Lease was renewed last, of one that was left long ago.

    None: it may still be renewed, as far as one look and two clocks can tell. ``now``: s since the epoch.
    """
    spec = lease.get("spec") or {}
    renewed = parse_time(spec.get("renewTime"))
    most = LONG if spec.get("holderIdentity") else RELEASED
    return renewed if renewed is not None and now - renewed > most else None


def renewed_lately(lease: Mapping[str, Any], now: float) -> bool:
    """Return whether somebody holds a Lease and has renewed it a moment ago, as far as one look and two
    clocks can tell. ``now``: s since the epoch."""
    spec = lease.get("spec") or {}
    renewed = parse_time(spec.get("renewTime"))
    return bool(spec.get("holderIdentity")) and renewed is not None and abs(now - renewed) <= RELEASED


class RefusedNote(NamedTuple):
    """Rights that the API server refuses to a leader, as its Lease tells of them.

    Attributes:
        since: time of the first refusal (s since the epoch).
        what: verbs and kinds, as "list pods, watch nodes".
    """

    since: float
    what: str

    def written(self) -> str:
        """Return it as the Lease's annotation has it."""
        return f"{timestamp(int(self.since))} {self.what}"


def refused(lease: Mapping[str, Any]) -> RefusedNote | None:
    """Return what the holder of a Lease is refused, as it wrote; None: nothing, or nothing readable."""
    written = (lease["metadata"].get("annotations") or {}).get(names.ANNOTATION_REFUSED) or ""
    since, _, what = str(written).partition(" ")
    at = parse_time(since)
    return RefusedNote(at, what) if at is not None and what else None


NAMED_BYTES = 600  # of the names in an `UnwrittenNote`: it is written with each renewal
WHY_MOST = 200  # characters of what the API server said


class UnwrittenNote(NamedTuple):
    """Objects whose status the API server refuses to take from a leader, as its Lease tells of them.

    Attributes:
        since: time of the first refusal (s since the epoch).
        number: of the objects.
        named: the first of them, each as ``RLHFJob/namespace/name`` or ``GPUPool/name``.
        why: what the API server said of the first of them, cut short; "": not known.
    """

    since: float
    number: int
    named: tuple[str, ...]
    why: str

    @staticmethod
    def of(since: float, every: Sequence[str], why: str) -> UnwrittenNote:
        """Return the note of these objects: so many names as have room."""
        room, named = NAMED_BYTES, list[str]()
        for one in every:
            room -= len(one.encode()) + 1
            if room < 0:
                break
            named.append(one)
        return UnwrittenNote(since, len(every), tuple(named), one_line(why, WHY_MOST))

    def written(self) -> str:
        """Return it as the Lease's annotation has it."""
        return f"{timestamp(int(self.since))} {self.number} {','.join(self.named)} {self.why}"

    def among(self, shown: Collection[str]) -> UnwrittenNote | None:
        """Return the note of those that are named and in ``shown``; None: there are none. What was said of
        the first of all is said of no other."""
        named = tuple(one for one in self.named if one in shown)
        if not named:
            return None
        why = self.why if named[0] == self.named[0] else ""
        return self._replace(number=len(named), named=named, why=why)

    def which(self, most: int = 4) -> str:
        """Return whose statuses they are: ``the status of RLHFJob demo/a``."""
        found = [one.replace("/", " ", 1) for one in self.named[:most]]
        more = f" and {self.number - len(found)} more" if self.number > len(found) else ""
        return f"{agreeing(self.number, 'the status', 'the statuses')} of {', '.join(found)}{more}"


def unwritten(lease: Mapping[str, Any]) -> UnwrittenNote | None:
    """Return the statuses that the holder of a Lease cannot write, as it wrote; None: none, or nothing
    readable."""
    written = (lease["metadata"].get("annotations") or {}).get(names.ANNOTATION_UNWRITTEN) or ""
    since, count, named, why = (*str(written).split(" ", 3), "", "", "", "")[:4]
    at = parse_time(since)
    if at is None or not (count.isdecimal() and named and why):
        return None
    return UnwrittenNote(at, int(count[:9]), tuple(named.split(",")), why)


def served(lease: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the namespaces that the holder of a Lease serves, as it wrote; None: all, or it did not say."""
    written = (lease["metadata"].get("annotations") or {}).get(names.ANNOTATION_NAMESPACES) or ""
    return frozenset(str(written).split(",")) if written else None


class Candidacy:
    """One candidate's knowledge of the Lease. ``now`` is always this process's own monotonic time (s).

    Args:
        identity: nobody else's, at any time: of a process, or of a pod whose containers run one after
        another.
        timing: see Timing.
    """

    def __init__(self, identity: str, timing: Timing) -> None:
        self.identity, self.timing = identity, timing
        self.seen: LeaseView | None = None
        self._looked = False
        self._since = -math.inf  # when ``seen`` was first read as it is
        self._claim = 0.0  # s for which a Lease that is gone may still be somebody's
        self._until = -math.inf  # the term ends here unless it is renewed
        self._epoch = 0
        self._over = False

    # -- reading -------------------------------------------------------------------------------------------

    def saw(self, lease: LeaseView | None, now: float) -> None:
        """Note what was read (None: there is no Lease); ``now`` is when the answer was there."""
        if not self._looked or _stamp(lease) != _stamp(self.seen):
            self._since = now
        if lease is not None:
            others = lease.holder not in ("", self.identity)
            self._claim = (lease.duration or self.timing.duration) if others else 0.0
        self._looked, self.seen = True, lease

    def free_at(self) -> float:
        """From when on this candidate may take the Lease, if it stays as it is; infinity before the first
        look."""
        if not self._looked:
            return math.inf
        return self._since + self._claim

    def may_take(self, now: float) -> bool:
        return now >= self.free_at()

    @property
    def next_epoch(self) -> int:
        return 1 + max(self._epoch, self.seen.epoch if self.seen is not None else 0)

    # -- leading -------------------------------------------------------------------------------------------

    def wrote(self, lease: LeaseView, sent: float) -> None:
        """Record that a write succeeded that took or renewed the Lease; it was sent at ``sent``.

        A candidate that has stepped down stays down.
        """
        self.seen, self._looked = lease, True
        self._since, self._claim = sent, 0.0
        self._epoch = lease.epoch
        if not self._over:
            self._until = max(self._until, sent + self.timing.deadline)

    @property
    def epoch(self) -> int:
        """Number of this candidate's newest term; 0: it never led."""
        return self._epoch

    @property
    def until(self) -> float:
        """Until when it may act."""
        return self._until

    def leads(self, now: float) -> bool:
        """Return whether it may act now."""
        return now < self._until

    def still_mine(self, lease: LeaseView | None) -> bool:
        """Return whether a Lease that was read during a term is that of the very term: no one took it in
        between."""
        return lease is not None and lease.holder == self.identity and lease.epoch == self._epoch

    def step_down(self) -> None:
        """Act no more, whatever is still renewed."""
        self._over, self._until = True, -math.inf


def _stamp(lease: LeaseView | None) -> tuple[str, str] | None:
    return None if lease is None else (lease.uid, lease.version)
