"""Random faults from outside on a group of real processes, under jobs that take turns all the time.

Three jobs on two members. Each job knows how many calls its released turns had, and every call's answer and
every granted version must agree with that: so no released turn is lost, none counts twice, and no lost one
counts. The kernel's log of the device files is looked at meanwhile. After each fault every job has to have
another turn.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from controller.group.turn_log import replay
from evalstop_client.group import GroupError, HostMemoryFull, Turn, TurnLost
from tests.group.onlooker import Onlooker
from tests.group.plane import GroupPlane, until
from tests.group.small_volume import can_mount, without_a_free_page

PACE = 0.05  # s between two turns of a job
PAUSE = 0.3  # s that something is stopped, late or full
PATIENCE = 120.0  # s until every job has had another turn
FULL = "memory full"  # a kind that needs a volume of its own, which only root can mount


class Job(threading.Thread):
    """A job that takes turns until it is told to end."""

    def __init__(self, plane: GroupPlane, name: str, seed: int) -> None:
        super().__init__(daemon=True)
        self.name, self._group, self._draw = name, plane.client(name, patience=PATIENCE), random.Random(seed)
        self.counted = self.turns = self.lost = 0
        self.granted: list[float] = []
        self.wrong: list[str] = []
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(PACE):
            try:
                with self._group.turn() as turn:
                    self.granted.append(time.monotonic())
                    calls = self._work(turn)
                self.counted, self.turns = self.counted + calls, self.turns + 1
            except (TurnLost, HostMemoryFull):
                self.lost += 1
            except GroupError as error:
                self.wrong.append(f"{self.name}: {error}")
                return
        self._group.close()

    def _work(self, turn: Turn) -> int:
        if turn.version != self.turns:
            self.wrong.append(f"{self.name}: version {turn.version} is granted after {self.turns} turns")
        calls = self._draw.randint(1, 3)
        for number in range(1, calls + 1):
            found = turn.call(self._draw.choice(["count", "train"])).result
            if (found["counter"], found["resident"], found["frozen"]) != (
                self.counted + number, self.name, self.name,
            ):  # fmt: skip
                self.wrong.append(f"{self.name}: {found} after {self.counted} and {number} calls")
        return calls


@dataclass
class Outcome:
    """How a run ended. ``seconds``: by kind, from the fault to the next grant of (another) job."""

    faults: Counter[str] = field(default_factory=Counter)
    turns: int = 0
    lost: int = 0
    opens: int = 0
    calls: int = 0
    wrong: list[str] = field(default_factory=list)
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def median(self, kind: str) -> float:
        return statistics.median(self.seconds[kind])


Fault = Callable[[GroupPlane, random.Random], "str | None"]


def _kill_worker(plane: GroupPlane, draw: random.Random) -> str | None:
    """Kill a worker of whoever has the turn, if somebody has; return whose."""
    turn = (plane.report() or {}).get("turn")
    pod = draw.choice(plane.pods)
    workers = pod.workers()
    name = turn["resident"] if turn and turn["resident"] in workers else draw.choice([*workers, ""])
    if name:
        with contextlib.suppress(ProcessLookupError):
            os.kill(workers[name], signal.SIGKILL)
    return name


def _stop_worker(plane: GroupPlane, draw: random.Random) -> None:
    workers = list(draw.choice(plane.pods).workers().values())
    if workers:
        pid = draw.choice(workers)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(PAUSE)
            os.kill(pid, signal.SIGCONT)


def _kill_supervisor(plane: GroupPlane, draw: random.Random) -> None:
    pod = draw.choice(plane.pods)
    pod.kill()
    pod.start()


def _stop_supervisor(plane: GroupPlane, draw: random.Random) -> None:
    pod = draw.choice(plane.pods)
    pod.signal(signal.SIGSTOP)
    time.sleep(PAUSE)
    pod.signal(signal.SIGCONT)


def _cut(plane: GroupPlane, draw: random.Random) -> None:
    assert plane.proxy is not None
    plane.proxy.cut()


def _late(plane: GroupPlane, draw: random.Random) -> None:
    assert plane.proxy is not None
    plane.proxy.late(True)
    time.sleep(PAUSE)
    plane.proxy.late(False)


def _lost(plane: GroupPlane, draw: random.Random) -> None:
    assert plane.proxy is not None
    plane.proxy.lose(True)
    time.sleep(PAUSE / 3)
    plane.proxy.lose(False)


def _over_budget(plane: GroupPlane, draw: random.Random) -> None:
    """Let a member's states be more than it may have, for a while."""
    folder = draw.choice(plane.pods).memory / "dropped/ballast"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "x").open("wb") as file:
        file.truncate(1 << 40)
    time.sleep(PAUSE)
    (folder / "x").unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError):
        folder.rmdir()


def _full(plane: GroupPlane, draw: random.Random) -> None:
    """Leave a member's memory volume no free page for a while; sometimes its supervisor starts then."""
    pod = draw.choice(plane.pods)
    with without_a_free_page(pod.memory):
        time.sleep(PAUSE)
        if draw.random() < 1 / 3:
            pod.kill()
            pod.start()
            plane.ready()


FAULTS: dict[str, tuple[Fault, int]] = {
    "worker killed": (_kill_worker, 6),
    "worker stopped": (_stop_worker, 2),
    "supervisor killed": (_kill_supervisor, 4),
    "supervisor stopped": (_stop_supervisor, 2),
    "connections cut": (_cut, 3),
    "messages late": (_late, 2),
    "messages lost": (_lost, 3),
    "memory over budget": (_over_budget, 2),
    FULL: (_full, 3),
}


def possible() -> list[str]:
    """Return the kinds of faults that can be made here."""
    return [kind for kind in FAULTS if kind != FULL or can_mount()]


def run(count: int, seed: int, say: Callable[[str], None] = lambda _: None) -> Outcome:
    """Return how a group fared under so many faults."""
    draw, outcome, kinds = random.Random(seed), Outcome(), possible()
    bounded = range(2) if FULL in kinds else ()
    plane = GroupPlane(through_proxy=True, bounded=bounded, TURN_SECONDS=15, IDLE_SECONDS=5)
    onlooker = Onlooker([pod.device for pod in plane.pods])
    try:
        with plane:
            names = ["a", "b", "c"]
            plane.join(*names)
            jobs = [Job(plane, name, seed + n) for n, name in enumerate(names)]
            for job in jobs:
                job.start()
            _another_turn(jobs, outcome)
            for number, kind in enumerate(_drawn(draw, kinds, count), 1):
                if outcome.wrong:
                    break
                begun = time.monotonic()
                victim = FAULTS[kind][0](plane, draw)
                outcome.faults[kind] += 1
                _another_turn(jobs, outcome)
                after = [at for job in jobs if job.name != victim for at in job.granted if at > begun]
                if after:
                    outcome.seconds.setdefault(kind, []).append(min(after) - begun)
                if number % 50 == 0:
                    say(f"{number} of {count} faults")
            _end(plane, jobs, outcome)
    finally:
        outcome.wrong += onlooker.close()
        outcome.opens, outcome.calls = onlooker.opens, onlooker.calls
    return outcome


def _drawn(draw: random.Random, kinds: list[str], count: int) -> Iterator[str]:
    """Return each kind once, as far as they fit, and then by their weights."""
    first = kinds[:]
    draw.shuffle(first)
    yield from first[:count]
    yield from draw.choices(kinds, [FAULTS[kind][1] for kind in kinds], k=max(0, count - len(first)))


def _another_turn(jobs: list[Job], outcome: Outcome) -> None:
    before = {job.name: job.turns for job in jobs}
    until(
        lambda: any(job.wrong for job in jobs) or all(job.turns > before[job.name] for job in jobs),
        PATIENCE,
        f"every job has another turn: {before}, {[(job.name, job.turns, job.is_alive()) for job in jobs]}",
    )
    outcome.wrong += [one for job in jobs for one in job.wrong]


def _end(plane: GroupPlane, jobs: list[Job], outcome: Outcome) -> None:
    for job in jobs:
        job.ended.set()
    for job in jobs:
        job.join(PATIENCE)
        outcome.wrong += job.wrong
        outcome.turns, outcome.lost = outcome.turns + job.turns, outcome.lost + job.lost
        group = plane.client(job.name)
        with group.turn() as turn:
            found = turn.call("count").result["counter"]
        if (found, turn.version) != (job.counted + 1, job.turns):
            outcome.wrong.append(
                f"{job.name}: counter {found}, version {turn.version}; "
                f"{job.counted} calls in {job.turns} released turns"
            )
        group.close()
    head = plane.pods[0]
    head.signal(signal.SIGTERM)
    assert head.process is not None
    head.process.wait(60)
    with (head.disk / "turns.jsonl").open() as file:
        replay(file)
