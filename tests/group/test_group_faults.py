"""What dies, hangs or is full: the turn is lost, the version that counts is there, others go on."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from controller.group.turn_log import replay
from evalstop_client.group import Group, GroupError, HostMemoryFull, Turn, TurnLost
from tests.group.onlooker import Onlooker
from tests.group.plane import MB, GroupPlane, private_bytes, until
from tests.group.small_volume import can_mount, without_a_free_page


@pytest.fixture(scope="module")
def group() -> Iterator[GroupPlane]:
    """Two members and two residents, a and b; what a test kills is there again at its end."""
    made = GroupPlane(TURN_SECONDS=20, IDLE_SECONDS=2)
    onlooker = Onlooker([pod.device for pod in made.pods])
    try:
        with made:
            made.join("a", "b")
            yield made
            for pod in made.pods:
                pod.signal(signal.SIGTERM)
                assert pod.process is not None
                assert pod.process.wait(60) == 0, pod.log()
            with (made.pods[0].disk / "turns.jsonl").open() as file:
                events, grants = replay(file)
            assert events > grants > 0
    finally:
        wrong = onlooker.close()
    assert not wrong
    assert onlooker.opens
    assert onlooker.calls


@pytest.fixture
def a(group: GroupPlane) -> Iterator[Group]:
    made = group.client("a")
    yield made
    made.close()


@pytest.fixture
def b(group: GroupPlane) -> Iterator[Group]:
    made = group.client("b")
    yield made
    made.close()


def counted(client: Group) -> int:
    """Return the counter after one more call, in a turn of its own."""
    return int(client.run(lambda turn: turn.call("count")).result["counter"])


def loses(
    client: Group, work: Callable[[Turn], object], why: str, error: type[GroupError] = TurnLost
) -> None:
    """Have a turn that is lost, and the job be told why."""

    def turn() -> None:
        with client.turn() as held:
            work(held)

    with pytest.raises(error, match=why):
        turn()


@pytest.mark.parametrize("member", [0, 1])
def test_a_killed_worker_costs_its_turn_and_no_other(
    group: GroupPlane, a: Group, b: Group, member: int
) -> None:
    def work(turn: Turn) -> None:
        turn.call("count")
        os.kill(group.pods[member].workers()["a"], signal.SIGKILL)
        turn.call("sleep", {"seconds": 0.2})

    before = counted(a)
    loses(a, work, "the worker ended")
    begun = time.monotonic()
    counted(b)
    assert time.monotonic() - begun < 10.0  # not after the turn's 20 s
    assert counted(a) == before + 1  # none of the lost turn's calls is in it


@pytest.mark.parametrize("member", [0, 1])
def test_a_killed_sleeper_begins_again_and_all_its_ranks_meet_anew(
    group: GroupPlane, a: Group, b: Group, member: int
) -> None:
    before = counted(a)
    first = a.run(lambda turn: turn.call("process")).result
    counted(b)
    slept = group.pods[member].workers()["a"]
    os.kill(slept, signal.SIGKILL)
    until(lambda: group.pods[member].workers().get("a") != slept)
    second = a.run(lambda turn: turn.call("process")).result
    assert second["generation"] != first["generation"]
    assert counted(a) == before + 1


@pytest.mark.parametrize("member", [0, 1])
def test_a_killed_supervisor_costs_its_turn_and_the_rest_goes_on_where_it_was(
    group: GroupPlane, a: Group, b: Group, member: int
) -> None:
    before = counted(a), counted(b)
    pod = group.pods[member]

    def work(turn: Turn) -> None:
        turn.call("count")
        assert pod.workers()
        pod.kill()
        until(lambda: not pod.workers(), what="its workers died with it")
        pod.start()
        turn.call("count")

    loses(a, work, "over")
    assert (counted(b), counted(a)) == (before[1] + 1, before[0] + 1)


def test_a_silent_holder_loses_its_turn(group: GroupPlane, a: Group, b: Group) -> None:
    def work(turn: Turn) -> None:
        turn.call("count")
        assert counted(b)  # waits until it is taken away
        turn.call("count")

    before = counted(a)
    loses(a, work, "its holder was silent for 2 s")
    assert counted(a) == before + 1


def test_a_holder_is_not_silent_while_its_function_runs(group: GroupPlane, a: Group) -> None:
    with a.turn() as turn:
        turn.call("sleep", {"seconds": 3.0})
    assert turn.released


@pytest.mark.parametrize(
    ("function", "why"),
    [("fail", "RuntimeError: something went wrong"), ("differ", "members answered differently")],
)
def test_a_function_that_fails_costs_the_turn(group: GroupPlane, a: Group, function: str, why: str) -> None:
    before = counted(a)
    loses(a, lambda turn: (turn.call("count"), turn.call(function)), why)
    assert counted(a) == before + 1


def test_a_turn_that_is_given_up_counts_for_nothing(group: GroupPlane, a: Group) -> None:
    def work(turn: Turn) -> float:
        turn.call("count")
        return 1 / 0

    before = counted(a)
    with pytest.raises(ZeroDivisionError):
        a.run(work)
    assert counted(a) == before + 1


def test_a_stopped_supervisor_is_waited_for_within_the_turn(group: GroupPlane, a: Group) -> None:
    before = counted(a)
    group.pods[1].signal(signal.SIGSTOP)
    threading.Timer(1.0, group.pods[1].signal, [signal.SIGCONT]).start()
    assert counted(a) == before + 1


def test_full_host_memory_ends_the_turn_and_keeps_the_version(group: GroupPlane, a: Group, b: Group) -> None:
    before = counted(a)
    ballast = group.pods[1].memory / "dropped/ballast"
    ballast.mkdir()
    with (ballast / "x").open("wb") as file:
        file.truncate(1 << 40)
    loses(a, lambda turn: turn.call("train"), "host memory", HostMemoryFull)
    (ballast / "x").unlink()
    ballast.rmdir()
    assert counted(b)
    assert counted(a) == before + 1


@pytest.fixture
def bounded() -> Iterator[GroupPlane]:
    """A group whose second member's memory volume is a small file system of its own."""
    if not can_mount():
        pytest.skip("file systems can be mounted by root alone")
    with GroupPlane(bounded=[1], TURN_SECONDS=20, IDLE_SECONDS=5) as made:
        made.join("a", "b")
        yield made


@pytest.mark.parametrize("then", ["", "restarted"])
def test_a_volume_without_a_free_page_ends_the_turn_and_keeps_the_version(
    bounded: GroupPlane, then: str
) -> None:
    a, b = bounded.client("a"), bounded.client("b")
    before, pod = counted(a), bounded.pods[1]
    assert counted(b) == 1
    with without_a_free_page(pod.memory):
        if then:
            pod.kill()
            pod.start()
            bounded.ready()
        loses(a, lambda turn: turn.call("train"), "No space left", HostMemoryFull)
        loses(b, lambda turn: turn.call("train"), "No space left", HostMemoryFull)
        assert b.run(lambda turn: turn.call("echo")).result == {}  # nothing is changed: nothing is written
    assert (counted(a), counted(b)) == (before + 1, 2)


def test_a_function_over_its_time_loses_the_turn() -> None:
    with GroupPlane(members=1, TURN_SECONDS=2, IDLE_SECONDS=2) as group:
        group.join("a", "b")
        a, b = group.client("a"), group.client("b")
        loses(a, lambda turn: turn.call("sleep", {"seconds": 600}), r"longer than 2 s \(function sleep\)")
        assert counted(b) == 1
        assert counted(a) == 1


@pytest.mark.parametrize("kept", ["views", "open"])
def test_a_worker_that_keeps_the_device_is_killed_before_the_next_has_it(kept: str) -> None:
    group = GroupPlane(members=1, environ={"EVALSTOP_TEST_KEEPS": f"a:{kept}"})
    onlooker = Onlooker([group.pods[0].device])
    with group:
        group.join("a", "b")
        a, b = group.client("a"), group.client("b")
        assert counted(a) == 1
        assert counted(b) == 1
        assert "a" not in group.pods[0].workers()
        assert counted(a) == 2
    assert not onlooker.close()
    assert onlooker.opens >= 3
    assert onlooker.calls == 3


def test_host_memory_for_one_state_more_than_residents_is_enough() -> None:
    state = 4 * MB
    with GroupPlane(members=1, state=state, HOST_BYTES=4 * (state + 8192)) as group:
        group.join("a", "b", "c")
        clients = [group.client(name) for name in ("a", "b", "c")]
        for turns in range(1, 4):
            for client in clients:
                assert client.run(lambda turn: turn.call("train")).result["counter"] == turns


def test_a_sleeper_keeps_less_than_a_tenth_of_its_state() -> None:
    state = 160 * MB
    with GroupPlane(members=1, state=state) as group:
        group.join("a", "b")
        a, b = group.client("a"), group.client("b")
        assert a.run(lambda turn: turn.call("train")).result["counter"] == 1
        assert counted(b) == 1
        assert private_bytes(group.pods[0].workers()["a"]) < state / 10
        assert counted(a) == 2
