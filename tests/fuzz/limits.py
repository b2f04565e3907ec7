"""What one input costs: CPU time and memory, held to a target's bounds.

CPU time is the process's own, not the wall's: how busy the machine is does not count. A timer on it ends what
goes on and on; the interpreter and its regular expressions look for signals as they run. Memory is by how
much an input raises the highest resident size that the process ever had (getrusage), so the process must be
young: each target has one of its own (`hunt`).
"""

from __future__ import annotations

import resource
import signal
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from tests.fuzz.target import Finding, Target, kind_of


class _OutOfTime(BaseException):
    """No `Exception`: what is fuzzed may catch those."""


def examine(target: Target, data: bytes, *, memory: bool = True) -> Finding | None:
    """Run a target on one input.

    Args:
        memory: look at memory, too; not where this process has had more before.
    """
    before, begun = _peak(), time.process_time()
    try:
        with _timer(target.cpu):
            target.run(data)
    except target.own:
        pass
    except _OutOfTime:
        return _dear(target, data, f"more than {target.cpu:g} s of CPU")
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        return Finding(target.name, kind_of(error), _told(error), data)
    # What runs in C alone sees no signal before it is over.
    if (used := time.process_time() - begun) > target.cpu:
        return _dear(target, data, f"{used:.1f} s of CPU, at most {target.cpu:g}")
    if memory and (grown := _peak() - before) > target.memory:
        told = f"{grown >> 20} MiB more than ever before, at most {target.memory >> 20}"
        return Finding(target.name, "memory", told, data)
    return None


def _dear(target: Target, data: bytes, told: str) -> Finding:
    return Finding(target.name, "time", told, data)


def _told(error: BaseException) -> str:
    lines = traceback.format_exception(error)
    return "".join([*lines[:2], "  …\n", *lines[-12:]] if len(lines) > 16 else lines)[-4000:]


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10  # KiB on Linux


@contextmanager
def _timer(seconds: float) -> Iterator[None]:
    def over(signum: int, frame: FrameType | None) -> None:
        raise _OutOfTime

    former = signal.signal(signal.SIGPROF, over)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, former)
