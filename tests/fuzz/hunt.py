"""Hunts for findings: each target in a process of its own, so that even one that dies tells on what.

The child puts every input into memory that it shares with its parent before it reads it. What kills it (a
stack that overflows in C, memory beyond `RLIMIT_AS`, `RLIMIT_CPU`) leaves the input there.
"""

from __future__ import annotations

import gc
import itertools
import mmap
import os
import pickle
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from controller import log
from tests.fuzz import corpus, hostile
from tests.fuzz.limits import examine
from tests.fuzz.target import Finding, Target

BATCH = 50  # examples between two looks at the clock
ROOM = 2 << 30  # bytes of address space that a child may take beside what it has at its start
SMALLER_S = 5.0  # s of CPU for making a finding's input smaller
_HEADER = 8
_BROKEN = 3  # exit status of a child whose seeds or strategies cannot be made


@dataclass(frozen=True)
class Hunted:
    """What came of hunting one target."""

    target: str
    inputs: int
    cpu: float  # s
    findings: tuple[Finding, ...]


def hunt(target: Target, seconds: float, start: int = 0, extra: Sequence[bytes] = ()) -> Hunted:
    """Look for findings in one target, until the first.

    Args:
        seconds: of CPU. The seeds and the corpus are read in any case.
        start: the same inputs for the same number, as far as the time goes.
        extra: inputs to start from, beside the seeds and the corpus.
    """
    shared = mmap.mmap(-1, _HEADER + target.most + (1 << 20))
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    gc.collect()
    gc.freeze()  # a collection in the child would touch, and so copy, all that the targets have imported
    child = os.fork()
    if child == 0:
        os.close(reading)
        _child(target, seconds, start, extra, shared, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read()
    _, status, used = os.wait4(child, 0)
    cpu = used.ru_utime + used.ru_stime
    if told:
        count, findings = pickle.loads(told)
        return Hunted(target.name, count, cpu, tuple(findings))
    size = int.from_bytes(shared[:_HEADER], "little")
    data = bytes(shared[_HEADER : _HEADER + size])
    code = os.waitstatus_to_exitcode(status)
    if code == _BROKEN:
        raise RuntimeError(f"{target.name}: the hunt itself failed; its traceback stands above")
    end = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
    return Hunted(
        target.name, 0, cpu, (Finding(target.name, "death", f"the process ended with {end}", data),)
    )


def _child(
    target: Target, seconds: float, start: int, extra: Sequence[bytes], shared: mmap.mmap, out: int
) -> None:
    log.configure("CRITICAL", "json", sys.stderr)  # what is put aside is told, thousands of times
    try:
        _limit(seconds + target.cpu)
        counted, findings = _search(target, seconds, start, extra, _noting(shared))
        with os.fdopen(out, "wb") as pipe:
            pickle.dump((counted, findings), pipe)
        os._exit(0)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(_BROKEN)


def _limit(seconds: float) -> None:
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + ROOM, size + ROOM))
    used = int(time.process_time())
    # A last resort: what never comes back from C. Making a finding smaller counts, too.
    most = used + int(4 * seconds + 4 * SMALLER_S) + 60
    resource.setrlimit(resource.RLIMIT_CPU, (most, most + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _noting(shared: mmap.mmap) -> Callable[[bytes], None]:
    def note(data: bytes) -> None:
        shared[:_HEADER] = len(data).to_bytes(_HEADER, "little")
        shared[_HEADER : _HEADER + len(data)] = data

    return note


def _search(
    target: Target,
    seconds: float,
    start: int,
    extra: Sequence[bytes],
    note: Callable[[bytes], None],
) -> tuple[int, list[Finding]]:
    counted = 0
    known = [corpus.read(path) for path in corpus.load(target)]
    seeds = [*target.seeds(), *extra]
    for number, data in enumerate((*seeds, *seeds, *known)):
        note(data)
        counted += 1
        # Memory counts from the second time on: the first brings the modules in, too.
        if (found := examine(target, data, memory=number >= len(seeds))) is not None:
            return counted, [found]
    findings: list[Finding] = []
    until = time.process_time() + seconds

    def look(data: bytes) -> None:
        nonlocal counted
        if findings or time.process_time() >= until:
            return  # what is left of a batch
        note(data)
        counted += 1
        if (found := examine(target, data)) is not None:
            findings.append(found)

    strategy = hostile.inputs(target, [data for data in (*seeds, *known) if len(data) <= target.most])
    for number in itertools.count(start):
        _draw(strategy, number, look)
        if findings or time.process_time() >= until:
            break
    return counted, [_smaller(target, finding, note) for finding in findings]


def _draw(strategy: SearchStrategy[list[bytes]], number: int, look: Callable[[bytes], None]) -> None:
    """Show a batch of inputs, the same for the same number."""

    @seed(number)
    @settings(
        max_examples=BATCH,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def show(found: list[bytes]) -> None:
        for data in found:
            look(data)

    show()


def _smaller(target: Target, finding: Finding, note: Callable[[bytes], None]) -> Finding:
    """The same finding with less input: parts are left out as long as it stays the same."""
    if finding.kind in ("time", "memory"):
        return finding  # by its size, mostly
    until, best = time.process_time() + SMALLER_S, finding
    width = len(best.data) // 2
    while width and time.process_time() < until:
        at, before = 0, len(best.data)
        while at < len(best.data) and time.process_time() < until:
            data = best.data[:at] + best.data[at + width :]
            note(data)
            found = examine(target, data, memory=False)
            if found is not None and found.kind == best.kind:
                best = replace(found, data=data)
            else:
                at += width
        if len(best.data) == before or width > 1:
            width //= 2
    return best
