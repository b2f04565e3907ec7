"""Processes known by pid and start time, so that the wrong one is never ended.

A pid alone is not a name: the kernel reuses it. A pid with the time its process started is one, and
that pair is what the records in a work folder hold.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

_LINUX = sys.platform == "linux"
_BOOT = Path("/proc/sys/kernel/random/boot_id").read_text().split("-")[0] if _LINUX else ""
_libc = ctypes.CDLL(None, use_errno=True) if _LINUX else None


class Process(NamedTuple):
    """One process: its pid and when it started (boot and clock ticks on Linux, `ps` text elsewhere)."""

    pid: int
    started: str

    @property
    def alive(self) -> bool:
        """Return whether this very process still runs; a zombie, which holds nothing, does not count."""
        return start_time(self.pid) == self.started


def start_time(pid: int) -> str | None:
    """Return when the running process `pid` started; None if there is none, or only its zombie."""
    if _LINUX:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                stat = file.read()
        except (FileNotFoundError, ProcessLookupError):
            return None
        fields = stat[stat.rindex(b")") + 2 :].split()  # the command's name may hold spaces and brackets
        return None if fields[0] in (b"Z", b"X") else f"{_BOOT}-{fields[19].decode()}"
    done = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True)
    return done.stdout.strip() or None


def identify(pid: int) -> Process:
    """Return the record of a process that runs now. Errors: ProcessLookupError."""
    started = start_time(pid)
    if started is None:
        raise ProcessLookupError(f"no process {pid}")
    return Process(pid, started)


def send(process: Process, number: signal.Signals, group: bool = False) -> bool:
    """Send a signal to exactly this process (`group`: to the group it leads); False if it is gone."""
    if not process.alive:
        return False
    with contextlib.suppress(ProcessLookupError):
        if group and os.getpgid(process.pid) == process.pid:
            os.killpg(process.pid, number)
        else:
            os.kill(process.pid, number)
        return True
    return False


def end(process: Process, grace_s: float, group: bool = True) -> bool:
    """SIGTERM, up to `grace_s` seconds, then SIGKILL; True if the process left by itself.

    The group is killed in any case afterwards: a component that left must not leave helpers behind.
    """
    send(process, signal.SIGTERM)
    polite = wait_ended(process, grace_s)
    if not polite:
        send(process, signal.SIGKILL, group=group)
        wait_ended(process, 5.0)
    return polite


def wait_ended(process: Process, timeout_s: float) -> bool:
    """Wait until the process is gone; False if it still runs after `timeout_s` seconds."""
    deadline = time.monotonic() + timeout_s
    pause = 0.005
    while process.alive:
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
        pause = min(pause * 1.5, 0.1)
    return True


def die_with_parent() -> None:
    """In a fresh child: be killed when the parent is. (Linux; elsewhere the records must do.)"""
    if _libc is not None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies, so that none is lost sight of."""
    if _libc is not None:
        _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> list[int]:
    """Pids of this process's children, adopted ones among them (Linux; elsewhere empty)."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{task}/children") as file:
                found += [int(pid) for pid in file.read().split()]
    return found


def resident_bytes(pid: int) -> int | None:
    """Resident memory of a process in bytes; None where it cannot be told."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None
