"""A pytest plugin: this run shares the suite with others beside it (`tests.whole`).

Every run collects the whole suite, and then takes one group of tests after the other, of those that nobody
took yet, until none is left. So all runs end at about the same time, whatever a group takes on this machine.
A group is a module, or a folder whose modules share what is dear to start (`TOGETHER`). One of the runs
begins with the tests that only compute (`--computing-first`), the others with those that mostly wait, so
that two cores have work from the first minute to the last.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

# Groups that take long and mostly wait: whoever began one of them last would end after all others.
WAITING = (
    "tests/demo/test_demo_story.py",
    "tests/story",
    "tests/parity",
    "tests/chart",
    "tests/kueue",
    "tests/bench",
)
# Folders of tests that start nothing they would have to wait for.
COMPUTING = (
    "tests/faults",
    "tests/fuzz",
    "tests/policy",
    "tests/sim",
    "tests/sim_experiments",
    "tests/sim_rules",
    "tests/sim_traces",
    "tests/sim_workloads",
    "tests/what_if",
)
# Folders whose modules share a control plane of their own, a browser, Prometheus, a history.
TOGETHER = (
    "tests/alerts",
    "tests/browser",
    "tests/chart",
    "tests/extender",
    "tests/kueue",
    "tests/parity",
    "tests/policies",
    "tests/story",
    "tests/what_if",
)
_TIMES = "times-"  # files, one of each run: what its groups took
_ALL = "all"  # the file that lists the groups; every other one in the folder is named for a group taken


def group(node: str) -> str:
    """Return the group of a test, by its node id: the path of its folder or module."""
    module = PurePosixPath(node.partition("::")[0])
    return str(module.parent if str(module.parent) in TOGETHER else module)


def rank(name: str, computing_first: bool) -> tuple[int, int]:
    """Return where a group stands in the order in which a run takes them; where equal, as collected."""
    if name in WAITING:
        return 1, WAITING.index(name)
    if any(PurePosixPath(name).is_relative_to(folder) for folder in COMPUTING):
        return (0 if computing_first else 3), 0
    return 2, 0


def left(folder: Path) -> list[str]:
    """Return the groups of the queue in ``folder`` that nobody took; what it is about, if nobody began."""
    if not (folder / _ALL).exists():
        return ["the whole suite"]
    return [name for name in (folder / _ALL).read_text().splitlines() if not _mark(folder, name).exists()]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options by which `tests.whole` starts its runs."""
    options = parser.getgroup("work queue")
    options.addoption("--queue", type=Path, required=True, help="folder that all runs of a queue share")
    options.addoption("--computing-first", action="store_true", help="take tests that only compute first")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run what is taken, as pytest runs a session: each test is told the next one, so that fixtures of a
    module or folder end with it. A group is taken before the last test of the one before it begins."""
    if session.config.option.collectonly or session.testsfailed:
        return None  # pytest's own loop lists them, or says that they could not be collected
    taken, took = _taken(session), dict[str, list[float]]()
    item = next(taken, None)
    try:
        while item is not None:
            following = next(taken, None)
            began = _now()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            before = took.get(group(item.nodeid), [0.0, 0.0])
            took[group(item.nodeid)] = [a + c - b for a, b, c in zip(before, began, _now(), strict=True)]
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
            item = following
    finally:
        (session.config.option.queue / f"{_TIMES}{os.getpid()}").write_text(json.dumps(took))
    return True


def _now() -> tuple[float, float]:
    """Return the time, and CPU of this process and of those that it has ended (both s)."""
    own, ended = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return time.monotonic(), own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime


def dearest(folder: Path, count: int = 20) -> list[str]:
    """Return lines on the groups of all runs that took most CPU, the first most.

    CPU of a control plane that several groups share is that of the group in which it ends.
    """
    found = {
        name: took
        for path in folder.glob(f"{_TIMES}*")
        for name, took in json.loads(path.read_text()).items()
    }
    ordered = sorted(found.items(), key=lambda one: -one[1][1])[:count]
    return [f"{cpu:7.1f} s CPU  {wall:7.1f} s  {name}" for name, (wall, cpu) in ordered]


def _taken(session: pytest.Session) -> Iterator[pytest.Item]:
    """Yield the tests of each group that this run takes."""
    options = session.config.option
    report = session.config.pluginmanager.getplugin("cluster-report")
    groups: dict[str, list[pytest.Item]] = {}
    for item in session.items:
        groups.setdefault(group(item.nodeid), []).append(item)
    (options.queue / _ALL).write_text("".join(f"{name}\n" for name in groups))  # the same by every run
    for name in sorted(groups, key=lambda one: rank(one, options.computing_first)):
        if _take(options.queue, name):
            yield from groups[name]
        elif report is not None:
            report.elsewhere(groups[name])


def _take(folder: Path, name: str) -> bool:
    """Take a group: whether it is ours. To make its file is to take it, which the system lets only one do."""
    try:
        _mark(folder, name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _mark(folder: Path, name: str) -> Path:
    return folder / name.replace("/", ",")
