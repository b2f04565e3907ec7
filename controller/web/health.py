"""Health as progress: each part of a process reports a beat on each round; a part that stops is named."""

from __future__ import annotations

import time
from collections.abc import Callable

STALL = 60.0  # s without a beat
Check = Callable[[], str | None]  # None: fine; else what is wrong, in a sentence


class Health:
    """The last beats of a process's parts, and the conditions of readiness.

    ``/healthz`` fails when a part has not beaten for ``stall`` seconds: the kubelet then restarts the pod.
    ``/readyz`` fails until every check passes; it says which do not. A standby is ready although it has read
    nothing yet: what it needs to take over are its rights to the Lease, and that is checked ``always``.
    """

    def __init__(self, stall: float = STALL, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._stall = stall
        self._now = monotonic
        self._beats: dict[str, Callable[[], float]] = {}
        self._marks: dict[str, float] = {}
        self._ready: dict[str, tuple[Check, bool]] = {}
        self.role: Callable[[], str] | None = None  # who leads, in words that /readyz adds
        self._notes: list[Check] = []
        self.standby: Callable[[], bool] = lambda: False

    def beat(self, part: str) -> None:
        """``part`` made progress just now."""
        self._marks[part] = self._now()

    def watch(self, part: str, beat: Callable[[], float]) -> None:
        """Check a part by ``beat``, which returns when the part last made progress (monotonic s)."""
        self._beats[part] = beat

    def require(self, name: str, check: Check, *, always: bool = False) -> None:
        self._ready[name] = (check, always)

    def note(self, read: Check) -> None:
        """Something that /readyz adds and that is no reason to be called unready."""
        self._notes.append(read)

    def notes(self) -> list[str]:
        """Return what else is to be known, in sentences; who leads first."""
        lines = [self.role()] if self.role is not None else []
        return lines + [text for read in self._notes if (text := read()) is not None]

    def stalled(self) -> list[str]:
        """Parts without progress, each as a sentence."""
        beats = {**self._marks, **{part: read() for part, read in self._beats.items()}}
        now = self._now()
        return [
            f"{part}: no progress for {now - at:.0f} s, at most {self._stall:.0f} s are expected"
            for part, at in sorted(beats.items())
            if now - at > self._stall
        ]

    def unready(self) -> list[str]:
        standby = self.standby()
        lines = [
            f"{name}: {why}"
            for name, (check, always) in self._ready.items()
            if (always or not standby) and (why := check()) is not None
        ]
        return lines + self.stalled()
