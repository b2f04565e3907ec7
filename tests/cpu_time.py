"""CPU time of this process with all that it started, also of what still runs, and of the whole machine."""

from __future__ import annotations

import os
from pathlib import Path

_TICK = float(os.sysconf("SC_CLK_TCK"))  # per second, of the kernel's counters


def used() -> float:
    """Return CPU (s) of this process, its descendants, and those of either that have been waited for."""
    parents: dict[int, int] = {}
    seconds: dict[int, float] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (fields := _fields(Path("/proc", entry, "stat"))):
            # ppid; utime, stime, cutime, cstime (proc_pid_stat(5)), counted from behind the name
            parents[int(entry)] = int(fields[1])
            seconds[int(entry)] = sum(map(int, fields[11:15])) / _TICK
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return sum(seconds.get(pid, 0.0) for pid in found)


def idle() -> float:
    """Return how long (s) cores of this machine had nothing to do since it started, all of them added."""
    return float(Path("/proc/uptime").read_text().split()[1])


def _fields(stat: Path) -> list[str]:
    try:
        return stat.read_text().rpartition(")")[2].split()
    except OSError:  # it has ended meanwhile
        return []
