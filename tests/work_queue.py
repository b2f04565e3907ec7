"""A pytest plugin: runs side by side share the suite (`tests.whole`).

The suite is collected once. Then this process forks into so many runs (`--runs`), each of which takes one
group of tests after the other, of those that nobody took yet, until none is left. So all runs end at about
the same time, whatever a group takes on this machine. A group is a module, or a folder whose modules share
what is dear to start (`TOGETHER`). The second run begins with the tests that only compute, the others with
those that mostly wait, so that two cores have work from the first minute to the last.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from tests import cpu_time, side_by_side

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
COMPUTES_FIRST = 1  # the number of the run that takes first what only computes
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
    options.addoption("--runs", type=int, default=1, help="so many runs side by side")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Fork into the runs, and run what each takes, as pytest runs a session: each test is told the next one,
    so that fixtures of a module or folder end with it. A group is taken before the last test of the one
    before it begins."""
    options = session.config.option
    if options.collectonly or session.testsfailed:
        return None  # pytest's own loop lists them, or says that they could not be collected
    groups: dict[str, list[pytest.Item]] = {}
    for item in session.items:
        groups.setdefault(group(item.nodeid), []).append(item)
    (options.queue / _ALL).write_text("".join(f"{name}\n" for name in groups))
    number = side_by_side.fork(session.config, options.queue, options.runs)
    taken, times = _taken(session, groups, number == COMPUTES_FIRST), _Times()
    item = next(taken, None)
    try:
        while item is not None:
            following = next(taken, None)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if following is None or group(following.nodeid) != group(item.nodeid):
                times.over(group(item.nodeid))
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
            item = following
    finally:
        (options.queue / f"{_TIMES}{number}").write_text(json.dumps(times.took))
    return True


class _Times:
    """What each group of this run ``took``, once it is over: time, and CPU of all processes (both s)."""

    def __init__(self) -> None:
        self.took: dict[str, tuple[float, float]] = {}
        self._began = time.monotonic(), cpu_time.used()

    def over(self, name: str) -> None:
        now = time.monotonic(), cpu_time.used()
        self.took[name] = now[0] - self._began[0], now[1] - self._began[1]
        self._began = now


def dearest(folder: Path) -> list[str]:
    """Return lines on the groups of all runs, the one that took most CPU first.

    A control plane that several groups share counts where its CPU is used, and where it starts and ends.
    """
    found = {
        name: took
        for path in folder.glob(f"{_TIMES}*")
        for name, took in json.loads(path.read_text()).items()
    }
    ordered = sorted(found.items(), key=lambda one: -one[1][1])
    return [f"{cpu:7.1f} s CPU  {wall:7.1f} s  {name}" for name, (wall, cpu) in ordered]


def _taken(
    session: pytest.Session, groups: dict[str, list[pytest.Item]], computing_first: bool
) -> Iterator[pytest.Item]:
    """Yield the tests of each group that this run takes."""
    folder = session.config.option.queue
    report = session.config.pluginmanager.getplugin("cluster-report")
    for name in sorted(groups, key=lambda one: rank(one, computing_first)):
        if _take(folder, name):
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
