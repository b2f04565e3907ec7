"""Progress of an access Job: in words, and whether it still makes any.

No access Job is ended because it takes long: a terabyte takes what it takes. One that does not move is given
up and asked again, and goes on where it was (docs/use/checkpoints.md).
"""

from __future__ import annotations

from controller.policy.job.types import AccessView, Progress

STALL = 600.0  # s without a byte after which an access Job is given up, where no setting says otherwise
_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")


def describe(progress: Progress) -> str:
    """Return one clause for a condition: ``412 GB of 1.02 TB, 240 MB/s, 42 min left``."""
    if progress.total <= 0:
        return f"{size(progress.done)} so far" if progress.done else "nothing read yet"
    parts = [f"{_of(progress.phase)}{size(progress.done)} of {size(progress.total)}"]
    still = progress.at - progress.moved_at
    if still >= 120.0:
        parts.append(f"no byte for {duration(still)}")
    elif progress.rate > 0.0:
        parts.append(f"{size(int(progress.rate))}/s")
        left = remaining(progress)
        if left is not None and progress.done < progress.total:
            parts.append(f"{duration(left)} left")
    return ", ".join(parts)


def remaining(progress: Progress) -> float | None:
    """Return seconds until the present phase ends at its present rate; None: not known."""
    if progress.total <= 0 or progress.rate <= 0.0:
        return None
    return max(0, progress.total - progress.done) / progress.rate


def stalled(view: AccessView, now: float, limit: float | None = None) -> bool:
    """Return whether an access Job has not moved for ``limit`` seconds (None: as the operator's setting
    says).

    One that has told of no progress yet counts from when it could have begun; one of which not even that is
    known is not judged. A Job that has ended does not stall.
    """
    moved = _moved(view)
    return moved is not None and now - moved > (view.stall if limit is None else limit)


def due_in(view: AccessView, now: float, limit: float | None = None) -> float | None:
    """Return seconds until `stalled` would say yes if nothing moved any more; None: never."""
    moved = _moved(view)
    return None if moved is None else max(0.0, moved + (view.stall if limit is None else limit) - now)


def _moved(view: AccessView) -> float | None:
    if view.finished:
        return None
    times = [view.since] if view.since is not None else []
    if view.progress is not None:
        times.append(view.progress.moved_at)
    return max(times, default=None)


def size(count: int) -> str:
    """Bytes as people read them, in powers of 1000: ``999 bytes``, ``1.02 TB``."""
    value, unit = float(max(0, count)), 0
    while unit + 1 < len(_UNITS) and value >= 999.5:
        value, unit = value / 1000.0, unit + 1
    if unit == 0:
        return f"{value:.0f} {_UNITS[0]}"
    return f"{value:.3g} {_UNITS[unit]}"


def duration(seconds: float) -> str:
    """``40 s``, ``12 min``, ``3 h 20 min``, ``4 d``."""
    if seconds < 100.0:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60.0)
    if minutes < 120:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{hours / 24:.0f} d"


def _of(phase: str) -> str:
    return f"{phase.lower()} " if phase else ""
