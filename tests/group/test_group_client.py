"""A job's side of a group, against a real one: answers are lost, turns too, and each call counts once or
not at all."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evalstop_client import group as client
from evalstop_client.client import EvalStopClient
from evalstop_client.group import (
    CallRefused,
    Group,
    GroupError,
    Leaving,
    NoResidency,
    OperatorTickets,
    StateLost,
    StateMoved,
    Ticket,
    TicketFile,
    TurnLost,
)
from tests.group.plane import GroupPlane


class Losing(Group):
    """Loses answers of chosen requests: they are carried out, and the connection breaks. ``after``: done
    besides."""

    def __init__(self, tickets: TicketFile, **options: Any) -> None:
        super().__init__(tickets, **options)
        self.lose: list[str] = []  # parts of paths
        self.asked: list[str] = []

    def _once(self, method: str, path: str, *given: Any) -> Any:
        self.asked.append(path)
        reply = super()._once(method, path, *given)
        for part in self.lose:
            if part in path:
                self.lose.remove(part)
                raise ConnectionResetError("as it was told")
        return reply


@pytest.fixture(scope="module")
def running() -> Iterator[GroupPlane]:
    with GroupPlane(1, TURN_SECONDS=20, IDLE_SECONDS=20, MAX_RESIDENTS=8, HOST_BYTES=64 << 20) as made:
        yield made


NUMBER = iter(range(1000))


@pytest.fixture
def job(running: GroupPlane) -> Iterator[Losing]:
    """Make a resident of its own for a test."""
    name = f"job-{next(NUMBER)}"
    running.join(name)
    running.client(name)
    made = Losing(TicketFile(running.disk / f"{name}.json"), patience=30.0)
    yield made
    made.close()
    running.ask("POST", f"/v1/residents/{name}/leave", {})


def counter(job: Group) -> int:
    """Calls that count, by the state that the group has."""
    return int.from_bytes(job.read("counter"), "little")


def test_an_answer_that_is_cut_in_its_midst_is_asked_for_again(
    job: Losing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the supervisor is killed while it writes: a read of so many bytes returns what there is."""
    read, cuts = http.client.HTTPResponse.read, 3

    def cut(answer: http.client.HTTPResponse, amt: int | None = None) -> bytes:
        nonlocal cuts
        text = read(answer, amt)
        if cuts and len(text) > 8:
            cuts -= 1
            answer.length, text = len(text) - 8, text[:8]
        return text

    with job.turn(step=1) as turn:
        monkeypatch.setattr(http.client.HTTPResponse, "read", cut)
        assert turn.call("count").result["counter"] == 1
        monkeypatch.undo()
    assert cuts == 0
    assert counter(job) == 1


class Moving:
    """Tickets of a job whose member 0 is somewhere else from the second question on."""

    def __init__(self, before: Ticket, after: Ticket) -> None:
        self.before, self.after, self.asked = before, after, 0

    def get(self) -> Ticket:
        self.asked += 1
        return self.before if self.asked == 1 else self.after


@pytest.mark.parametrize("before", ["silent", "of another pod", "refusing"])
def test_member_0_is_asked_for_where_it_is_now_once_it_is_not_where_it_was(
    running: GroupPlane, job: Losing, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    """Its pod was made again: the address of the one before is another's, or leads nowhere."""
    monkeypatch.setattr(client, "_CONNECTS", 1.0)
    now = job._tickets.get()
    assert now is not None
    with socket.create_server(("127.0.0.1", 0), backlog=8) as silent:
        nowhere = f"127.0.0.1:{silent.getsockname()[1]}"
        if before == "refusing":
            silent.close()
        changed = {"fingerprint": "0" * 64} if before == "of another pod" else {"address": nowhere}
        moving = Moving(now._replace(**changed), now)
        found = Group(moving, patience=30.0)
        with found.turn() as turn:
            assert turn.call("count").result["counter"] == 1
        found.close()
    assert moving.asked >= 2


def test_a_turn_counts_once_whatever_answers_are_lost(job: Losing) -> None:
    job.lose = ["/v1/turns", "/calls/1", "/calls/2", "/release"]
    with job.turn(step=1) as turn:
        assert turn.version == 0
        assert "count" in turn.functions
        assert [turn.call("count").result["counter"] for _ in range(2)] == [1, 2]
    assert job.lose == []
    assert (turn.released, job.version, counter(job)) == (1, 1, 2)
    assert [path.rpartition("/")[2] for path in job.asked if "/calls/" in path] == ["1", "1", "2", "2"]
    with job.turn() as turn:
        assert turn.version == 1
        assert turn.call("count").result["counter"] == 3


def test_a_turn_that_is_lost_is_done_again_and_counts_once(running: GroupPlane, job: Losing) -> None:
    with job.turn() as turn:
        turn.call("count")
    tries: list[int] = []
    published: list[int] = []

    def work(turn: client.Turn) -> int:
        tries.append(turn.version)
        found = int(turn.call("count").result["counter"])
        turn.after(lambda: published.append(found))
        if len(tries) == 1:
            os.kill(turn.call("process").result["pid"], signal.SIGKILL)
            turn.call("count")
        return found

    assert job.run(work) == 2
    assert tries == [1, 1]
    assert published == [2], "only what counts is published"
    assert (job.version, counter(job)) == (2, 2)


def test_an_error_of_the_jobs_own_gives_the_turn_up_at_once(job: Losing) -> None:
    with pytest.raises(KeyError), job.turn() as turn:
        _count_and_fail(turn)
    assert turn.released is None
    with job.turn() as turn:  # without waiting for idleSeconds
        assert turn.version == 0
        assert turn.call("count").result["counter"] == 1
    with pytest.raises(GroupError, match="the turn is released"):
        turn.call("count")


def _count_and_fail(turn: client.Turn) -> None:
    turn.call("count")
    raise KeyError("mine")


def test_what_the_group_refuses_is_said_and_the_turn_goes_on(job: Losing) -> None:
    with job.turn() as turn:
        with pytest.raises(CallRefused, match="there are count, differ, echo"):
            turn.call("nothing")
        with pytest.raises(CallRefused, match="lr: -1, expected a number of at least 0"):
            turn.call("refuse")
        assert turn.call("count").result["counter"] == 1
    assert (job.version, counter(job)) == (1, 1)


def test_a_function_that_fails_costs_the_turn(job: Losing) -> None:
    with pytest.raises(TurnLost, match="something went wrong") as lost, job.turn() as turn:
        turn.call("fail")
    assert lost.value.version == 0
    with job.turn() as turn:
        assert turn.call("count").result["counter"] == 1


def test_arrays_come_back_as_they_went(job: Losing) -> None:
    import numpy

    from evalstop_client.arrays import as_numpy

    given = {
        "matrix": numpy.arange(6, dtype=numpy.float32).reshape(2, 3).T,
        "flags": numpy.array([True, False]),
        "none": numpy.zeros((0, 4), numpy.int64),
        "scalar": numpy.float64(0.5),
        "list": [[1, 2], [3, 4]],
        "big": numpy.array([1, -2], ">i4"),
    }
    with job.turn() as turn:
        answer = turn.call("echo", {"lr": 1e-3, "names": ["é"]}, given)
        with pytest.raises(ValueError, match="an array of complex128, expected one of"):
            turn.call("echo", {}, {"a": numpy.zeros(1, complex)})
        turn.call("echo")
    assert answer.result == {"lr": 1e-3, "names": ["é"]}
    for name, array in given.items():
        found = as_numpy(answer.arrays[name])
        assert found.shape == numpy.shape(array)
        assert numpy.array_equal(found, numpy.asarray(array)), name


def test_the_state_is_read_without_a_turn_while_another_has_one(
    running: GroupPlane, job: Losing, monkeypatch: pytest.MonkeyPatch
) -> None:
    with job.turn() as turn:
        turn.call("train")
    state = job.state()
    assert state.version == 1
    assert state.members[0].regions == {"counter": 8, "weights": 4096, "frozen": 4096}
    whole = job.read("weights", state=state)
    monkeypatch.setattr(client, "_PIECE", 1000)
    other = "reads-meanwhile"
    running.join(other)
    with running.client(other).turn():
        assert job.read("weights", state=state) == whole, "in pieces"
    with pytest.raises(ValueError, match="region: 'adam', there are counter, "):
        job.read("adam")
    with pytest.raises(ValueError, match=r"member: 3, expected one of \[0\]"):
        job.read("weights", member=3)
    for _ in range(2):
        with job.turn() as turn:
            turn.call("train")
    with pytest.raises(StateMoved) as moved:
        job.read("weights", state=state)
    assert moved.value.version == 3
    running.ask("POST", f"/v1/residents/{other}/leave", {})


def test_two_processes_of_one_job_are_found_out(running: GroupPlane, job: Losing) -> None:
    with job.turn() as turn:
        turn.call("count")
    name = job._present_ticket().resident
    with running.client(name).turn() as turn:
        turn.call("count")
    with pytest.raises(GroupError, match="another process of the job takes turns as well"), job.turn():
        pass


def test_a_residency_that_is_over_says_so(running: GroupPlane) -> None:
    running.join("over-1")
    job = running.client("over-1")
    with job.turn() as turn:
        turn.call("count")
    running.ask("POST", "/v1/residents/over-1/leave", {})
    with pytest.raises(NoResidency), job.turn():
        pass
    bad = running.client("over-1")
    path = running.disk / "over-1.json"
    path.write_text(
        json.dumps({**json.loads(path.read_text()), "ticket": running.job_ticket("over-1", group="other")})
    )
    with pytest.raises(NoResidency, match="WrongTicket"), bad.turn():
        pass


def test_who_is_to_end_waits_no_longer(running: GroupPlane, job: Losing) -> None:
    ends: list[bool] = []
    name = job._present_ticket().resident
    leaving = Group(TicketFile(running.disk / f"{name}.json"), leaves=lambda: bool(ends))
    running.join("holder-1")
    with running.client("holder-1").turn():
        ends.append(True)
        with pytest.raises(Leaving), leaving.turn():
            pass
    running.ask("POST", "/v1/residents/holder-1/leave", {})


def test_turns_are_phases_of_the_page(running: GroupPlane, job: Losing) -> None:
    page = EvalStopClient(port=0, host="127.0.0.1", speaks=True)
    name = job._present_ticket().resident
    counted = Group(TicketFile(running.disk / f"{name}.json"), client=page)
    for step in (1, 2):
        with counted.turn(step) as turn:
            turn.call("sleep", {"seconds": 0.05})
        page.set_progress(step)
    text = page.exposition().decode()
    assert 'rlhf_phase_seconds_total{phase="waitForTurn",gpus="other"}' in text
    held = [line for line in text.splitlines() if line.startswith('rlhf_phase_seconds_total{phase="turn"')]
    assert float(held[0].split()[-1]) >= 0.1


# -- without a group
# -------------------------------------------------------------------------------------------


class Scripted(Group):
    """Answers as a test says."""

    def __init__(self, replies: list[tuple[int, Any]], **options: Any) -> None:
        super().__init__(TicketFile(Path("none")), patience=0.2, **options)
        self.replies = replies

    def _once(self, *_: Any) -> Any:
        status, document = self.replies.pop(0)
        return client._Reply(status, json.dumps(document).encode(), False)


def grant(token: str, version: int = 0) -> tuple[int, Any]:
    return 200, {"token": token, "version": version, "turnSeconds": 1.0, "functions": []}


@pytest.mark.parametrize("late", ["1.1.a.7", "1.1.a.6", "1.0.z.9", "0.9.z.99"])
def test_a_grant_that_is_not_newer_is_a_late_answer(late: str) -> None:
    group = Scripted(
        [
            grant("1.1.a.7"),
            (200, {"version": 1}),
            grant(late, 1),
            (202, {}),
            grant("1.2.b.1", 1),
            (200, {"version": 2}),
        ]
    )
    with pytest.raises(IndexError), group.turn():
        raise IndexError
    group.version = 1
    with group.turn() as second:
        assert second.token == "1.2.b.1"


@pytest.mark.parametrize(
    ("status", "document", "error"),
    [
        (409, {"reason": "TurnOver", "version": 4, "why": "idle"}, TurnLost),
        (403, {"reason": "NoResident", "lost": True}, StateLost),
        (403, {"reason": "NoResident"}, NoResidency),
        (410, {"reason": "ResidencyOver"}, NoResidency),
        (507, {"reason": "HostMemoryFull", "version": 4}, client.HostMemoryFull),
        (500, {"reason": "Broken"}, GroupError),
    ],
)
def test_what_ends_a_turn(status: int, document: Any, error: type[GroupError]) -> None:
    group = Scripted([grant("1.1.a.1", 4), (status, document)])
    with pytest.raises(error) as raised, group.turn():
        pass
    assert type(raised.value) is error
    if error is TurnLost:
        assert group.version == 4
        assert "idle" in str(raised.value)


def test_a_release_that_counted_though_its_answer_was_lost() -> None:
    group = Scripted([grant("1.1.a.1", 4), (409, {"reason": "TurnOver", "version": 5})])
    with group.turn() as turn:
        pass
    assert (turn.released, group.version) == (5, 5)


def test_a_group_that_started_anew_has_not_this_jobs_state() -> None:
    once = [grant("1.1.a.1", 4), (200, {"version": 5})]
    reads = Scripted([*once, (200, {"version": 0, "members": []})])
    with reads.turn():
        pass
    with pytest.raises(StateLost, match="version 0 and not 5: it has started anew"):
        reads.state()
    # Its next turn is asked for before, and released under the old token after that start.
    releases = Scripted([*once, grant("1.1.a.2", 5), (409, {"reason": "TurnOver", "version": 0})])
    with releases.turn():
        pass
    with pytest.raises(StateLost, match="version 0 and not 5: it has started anew"), releases.turn():
        pass


def test_silence_ends_by_itself() -> None:
    group = Scripted([(503, {"reason": "NotReady", "message": "members are missing"})] * 50)
    with (
        pytest.raises(GroupError, match=r"has not answered /v1/turns for 0\.2 s: 503 members are missing"),
        group.turn(),
    ):
        pass


def test_a_token_of_another_form_is_refused() -> None:
    with pytest.raises(GroupError, match="expected <admission>"), Scripted([grant("7")]).turn():
        pass


def test_tickets() -> None:
    with pytest.raises(ValueError, match="a ticket without resident, fingerprint"):
        Ticket.of({"ticket": "t", "address": "a"})
    with pytest.raises(ValueError, match="urls: expected at least one address"):
        OperatorTickets([], "", "", 1)
    assert Ticket("eyJlbmRzIjogNS41fQ.x", "r", "a", "f").ends == 5.5
    assert Ticket("x", "r", "a", "f").ends is None


def test_a_group_that_comes_later_is_waited_for(tmp_path: Path) -> None:
    """No file, no operator, no residency: each is no answer yet."""
    missing = Group(TicketFile(tmp_path / "none.json"), patience=0.3)
    with pytest.raises(GroupError, match="has not answered /v1/turns"), missing.turn():
        pass
