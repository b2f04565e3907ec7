"""Switches of a real worker group against echoes of the same stack, and states against bare copies.

Two members and three residents on loopback, with TLS, tickets, and a process for each worker. A switch: from
sending a job's release until the next job, which waits already, has its grant: version written and recorded,
state off-loaded, device free, the next state loaded, on both members. Between two switches there is an echo:
a call of a function that returns what it is given, through member 0, both supervisors and both workers.

With 128 MiB of state a member, all of it changed in each turn, a switch copies it out and another's in.
Bare copies are the same bytes between the same kinds of memory, by as many processes at once.
"""

from __future__ import annotations

import json
import mmap
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from evalstop_client.envelope import encode, joined
from evalstop_client.place import LocalDevice, Place
from evalstop_client.rollouts import _Pinned
from tests.bench.rows import Row
from tests.group.families import Counted
from tests.group.plane import MB, GroupPlane, until

NAMES = ("a", "b", "c")
SWITCHES, LARGE, COPIES, STEPS = 2000, 100, 20, 20
STATE = 128 * MB
WORK_STATE = 16 * MB
FUNCTION_SECONDS = 0.5


def run(say: Callable[[str], None]) -> Iterator[Row]:
    small, echoes, answers = _switches(SWITCHES, 4096, "count", say)
    echo, worst = statistics.median(echoes), _p99(echoes)
    yield Row("groups: switch without a state, median", statistics.median(small), "ms", 10.0 * echo)
    yield Row("groups: switch without a state, p99", _p99(small), "ms", 5.0 * worst)
    yield Row("groups: echo through both workers, median (x 10 above)", echo, "ms")
    yield Row("groups: echo through both workers, p99 (x 5 above)", worst, "ms")
    yield Row("groups: answer of member 0 alone (GET /healthz), median", statistics.median(answers), "ms")
    large, echoes, _ = _switches(LARGE, STATE, "train", say)
    copies = _bare_copies()
    bare = statistics.median(copies)
    allowed = 10.0 * statistics.median(echoes) + 2.0 * bare
    yield Row("groups: switch with 128 MiB a member, median", statistics.median(large), "ms", allowed)
    yield Row("groups: bare copies of 128 MiB, out and in, median (x 2 above)", bare, "ms")
    yield _alone()


class _Wire:
    """A job's connection, on which an answer can be waited for later."""

    def __init__(self, plane: GroupPlane, name: str) -> None:
        head = plane.pods[0]
        self._connection = _Pinned(head.address, head.fingerprint, 120.0)
        self._headers = {"Authorization": f"Bearer {plane.job_ticket(name)}"}
        self.token = ""
        self.number = 0

    def send(self, path: str, body: bytes, method: str = "POST") -> None:
        self._connection.request(method, path, body, self._headers)

    def answer(self) -> bytes:
        answer = self._connection.getresponse()
        body = answer.read()
        assert answer.status == 200, (answer.status, body)
        return body

    def ask_for_turn(self) -> None:
        self.send("/v1/turns", b'{"wait": 30}')

    def granted(self) -> None:
        found: dict[str, Any] = json.loads(self.answer())
        self.token, self.number = found["token"], 0

    def call(self, function: str) -> None:
        self.number += 1
        body = joined(encode({"function": function, "arguments": {}}))
        self.send(f"/v1/turns/{self.token}/calls/{self.number}", body)
        self.answer()

    def close(self) -> None:
        self._connection.close()


def _switches(
    count: int, state: int, function: str, say: Callable[[str], None]
) -> tuple[list[float], list[float], list[float]]:
    """Return times of switches, of echoes through the workers, and of member 0's own answers, ms."""
    switches, echoes, answers = [], [], []
    with GroupPlane(state=state, environ={"EVALSTOP_TEST_STATE": str(state)}) as plane:
        plane.join(*NAMES)
        wires = [_Wire(plane, name) for name in NAMES]
        for wire in wires:  # each has its workers
            wire.ask_for_turn()
            wire.granted()
            wire.call(function)
            wire.send(f"/v1/turns/{wire.token}/release", b"{}")
            wire.answer()
        holder = wires[0]
        holder.ask_for_turn()
        holder.granted()
        for number in range(1, count + 1):
            following = wires[number % len(wires)]
            holder.call(function)
            following.ask_for_turn()
            until(lambda: (plane.report() or {}).get("waiting")) if number == 1 else time.sleep(0.005)
            begun = time.perf_counter()
            holder.send(f"/v1/turns/{holder.token}/release", b"{}")
            following.granted()
            switches.append(1e3 * (time.perf_counter() - begun))
            holder.answer()
            holder = following
            begun = time.perf_counter()
            holder.call("echo")
            echoes.append(1e3 * (time.perf_counter() - begun))
            begun = time.perf_counter()
            holder.send("/healthz", b"", "GET")
            holder.answer()
            answers.append(1e3 * (time.perf_counter() - begun))
            if number % 500 == 0:
                say(f"{number} switches, median {statistics.median(switches):.2f} ms")
        for wire in wires:
            wire.close()
    return switches, echoes, answers


def _bare_copies() -> list[float]:
    """Return times of copying `STATE` bytes out and in by two processes at once, ms: the slower one's."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        begin, end = multiprocessing.Barrier(3), multiprocessing.Barrier(3)
        processes = [
            multiprocessing.Process(target=_copy, args=(f"{folder}/{n}", begin, end)) for n in range(2)
        ]
        for process in processes:
            process.start()
        found = []
        for _ in range(COPIES):
            begin.wait()
            begun = time.perf_counter()
            end.wait()
            found.append(1e3 * (time.perf_counter() - begun))
        for process in processes:
            process.join()
    return found


def _copy(path: str, begin: Any, end: Any) -> None:
    """Copy between a device, memory that is there, and host memory: a new file, as a new version is."""
    device = os.open(f"{path}-device", os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(device, 0, STATE)
    mapped = mmap.mmap(device, STATE)
    mapped[:] = bytes(STATE)
    view = memoryview(mapped)
    for number in range(COPIES):
        begin.wait()
        host = os.open(f"{path}-{number}", os.O_RDWR | os.O_CREAT)
        at = 0
        while at < STATE:
            at += os.pwrite(host, view[at:], at)
        at = 0
        while at < STATE:
            at += os.preadv(host, [view[at:]], at)
        end.wait()
        os.close(host)
        os.unlink(f"{path}-{number}")
    view.release()


def _alone() -> Row:
    """Return how long a step takes in a group with nobody else, against the plain trainer, ms.

    That is the same family's function, called directly in one process that keeps its state on the device.
    Both arms compute the same, by turns, and their results are compared.
    """
    steps, plain = [], []
    environ = {"EVALSTOP_TEST_STATE": str(WORK_STATE)}
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as folder,
        GroupPlane(members=1, state=WORK_STATE, environ=environ) as plane,
    ):
        os.environ.update(environ)
        direct = _plain_trainer(folder)
        begun = time.perf_counter()
        direct.work({"rounds": 10}, {})
        rounds = 10 * (1 + int(1.1 * FUNCTION_SECONDS / (time.perf_counter() - begun)))
        plane.join("a")
        group = plane.client("a")
        with group.turn() as turn:
            turn.call("work", {"rounds": 10})
        for _ in range(STEPS):
            begun = time.perf_counter()
            with group.turn() as turn:
                through = turn.call("work", {"rounds": rounds}).result
            steps.append(1e3 * (time.perf_counter() - begun))
            begun = time.perf_counter()
            by_itself, _ = direct.work({"rounds": rounds}, {})
            plain.append(1e3 * (time.perf_counter() - begun))
            assert through == by_itself, "both arms compute the same"
        group.close()
    name = "groups: step of one function of .5 s and more, alone in a group (1.05)"
    return Row(name, statistics.median(steps), "ms", statistics.median(plain))


def _plain_trainer(folder: str) -> Counted:
    """The family in this process, with a device of its own."""
    path = f"{folder}/worker-a"
    with open(path, "wb") as file:
        file.truncate(WORK_STATE + 2 * MB)
    place = Place({"resident": "a"}, LocalDevice(path, WORK_STATE + 2 * MB))
    direct = Counted(place)
    direct.load(place, True)
    return direct


def _p99(values: list[float]) -> float:
    return sorted(values)[len(values) * 99 // 100]
