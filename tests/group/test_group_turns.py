"""Turns on a group of real processes: grants, calls, release, and who is refused."""

from __future__ import annotations

import json
import threading
import time
from itertools import count
from typing import Any

import pytest

from controller.group.turn_log import replay
from controller.policy.wording import LASTED
from controller.web.tickets import Signer
from evalstop_client.envelope import Array, decode, encode, joined
from evalstop_client.group import CallRefused, Group, NoResidency, StateMoved
from evalstop_client.rollouts import _Pinned
from tests.group.plane import ADMISSION, GroupPlane, until

_numbers = count(1)


@pytest.fixture
def resident(loopback: GroupPlane) -> Any:
    name = f"job-{next(_numbers)}"
    loopback.join(name)
    yield name
    assert loopback.ask("POST", f"/v1/residents/{name}/leave", {})[0] == 200
    until(lambda: name in (loopback.report() or {})["gone"])


@pytest.fixture
def other(loopback: GroupPlane) -> Any:
    name = f"job-{next(_numbers)}"
    loopback.join(name)
    yield name
    assert loopback.ask("POST", f"/v1/residents/{name}/leave", {})[0] == 200
    until(lambda: name in (loopback.report() or {})["gone"])


def raw(loopback: GroupPlane, resident: str, path: str, body: bytes) -> tuple[int, bytes]:
    """Ask as a job does, without a client that repeats."""
    head = loopback.pods[0]
    connection = _Pinned(head.address, head.fingerprint, 30.0)
    connection.request("POST", path, body, {"Authorization": f"Bearer {loopback.job_ticket(resident)}"})
    answer = connection.getresponse()
    found = answer.read()
    connection.close()
    return answer.status, found


def call(name: str, **arguments: Any) -> bytes:
    return joined(encode({"function": name, "arguments": arguments}))


def token(loopback: GroupPlane, resident: str) -> tuple[str, int]:
    status, found = raw(loopback, resident, "/v1/turns", b'{"wait": 20}')
    assert status == 200, found
    granted = json.loads(found)
    return granted["token"], granted["version"]


def test_two_residents_take_turns_and_their_states_hold_the_calls_of_released_turns(
    loopback: GroupPlane, resident: str, other: str
) -> None:
    def job(name: str, seen: list[Any]) -> None:
        group = loopback.client(name)
        for turns in range(1, 6):
            with group.turn() as turn:
                for _ in range(2):
                    found = turn.call("train").result
                    seen.append((found["counter"], found["resident"], found["frozen"]))
            assert turn.released == turns
        group.close()

    seen: dict[str, list[Any]] = {resident: [], other: []}
    threads = [threading.Thread(target=job, args=one) for one in seen.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, found in seen.items():
        assert found == [(n, name, name) for n in range(1, 11)]
    report = loopback.report()
    assert report is not None
    assert [(one["version"], one["released"], one["lost"]) for one in report["residents"]] == [(5, 5, 0)] * 2
    # All GPU time is somebody's, to the unit.
    charges = report["vacant"] + sum(one["charge"] for one in report["residents"])
    assert 0 < charges <= 840 * 2 * report["now"]


def test_arrays_go_to_every_member_and_come_back(loopback: GroupPlane, resident: str) -> None:
    group = loopback.client(resident)
    with group.turn() as turn:
        given = Array("<f4", (2, 3), bytes(range(24)))
        found = turn.call("echo", {"lr": 0.5}, {"batch": given})
    assert found.result == {"lr": 0.5}
    assert (found.arrays["batch"].dtype, found.arrays["batch"].shape) == ("<f4", (2, 3))
    assert bytes(found.arrays["batch"].data) == bytes(range(24))
    group.close()


def test_a_repeated_number_gets_the_same_answer_and_a_released_turn_is_over(
    loopback: GroupPlane, resident: str
) -> None:
    held, version = token(loopback, resident)
    assert version == 0
    assert token(loopback, resident) == (held, 0)  # a repeated request gets the same grant
    first = raw(loopback, resident, f"/v1/turns/{held}/calls/1", call("count"))
    assert first[0] == 200
    assert raw(loopback, resident, f"/v1/turns/{held}/calls/1", call("count")) == first
    assert decode(first[1])[0]["result"]["counter"] == 1
    assert (
        decode(raw(loopback, resident, f"/v1/turns/{held}/calls/2", call("count"))[1])[0]["result"]["counter"]
        == 2
    )
    assert raw(loopback, resident, f"/v1/turns/{held}/calls/9", call("count"))[0] == 422
    status, found = raw(loopback, resident, f"/v1/turns/{held}/calls/3", call("step"))
    assert (status, json.loads(found)["reason"]) == (404, "NoSuchFunction")
    assert "there are count, differ, echo" in json.loads(found)["message"]
    assert raw(loopback, resident, f"/v1/turns/{held}/release", b"{}") == (200, b'{"version":1}')
    for path, body in ((f"/v1/turns/{held}/release", b"{}"), (f"/v1/turns/{held}/calls/3", call("count"))):
        status, found = raw(loopback, resident, path, body)
        assert (status, json.loads(found)["reason"], json.loads(found)["version"]) == (409, "TurnOver", 1)
    # Each part of the token counts.
    new, version = token(loopback, resident)
    assert version == 1
    admission, start, drawn, sequence = new.split(".")
    for wrong in (
        f"{int(admission) + 1}.{start}.{drawn}.{sequence}",
        f"{admission}.{int(start) + 1}.{drawn}.{sequence}",
        f"{admission}.{start}.{'0' * 16}.{sequence}",
        f"{admission}.{start}.{drawn}.{int(sequence) + 1}",
    ):  # fmt: skip
        assert raw(loopback, resident, f"/v1/turns/{wrong}/calls/1", call("count"))[0] == 409
    assert raw(loopback, resident, f"/v1/turns/{new}/release", b'{"discard": true}') == (
        200,
        b'{"version":1}',
    )


def test_what_a_call_gets_wrong_is_told_and_the_turn_goes_on(loopback: GroupPlane, resident: str) -> None:
    group = loopback.client(resident)
    with group.turn() as turn:
        with pytest.raises(CallRefused, match="no function 'step'; there are count, differ, echo, fail"):
            turn.call("step")
        with pytest.raises(CallRefused, match="lr: -1, expected a number of at least 0"):
            turn.call("refuse")
        assert turn.call("count").result["counter"] == 1
    assert turn.released == 1
    group.close()


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/v1/turns", b'{"wait": 31}', 400, "wait: 31 is not allowed, expected 0 to 30 s"),
        ("/v1/turns", b'{"wait": 1, "step": -1}', 400, "step: -1 is not allowed"),
        ("/v1/turns", b"[]", 400, "body: expected a JSON object"),
        ("/v1/turns/1.2.x.3/calls/1", call("count"), 400, "is no token of a turn"),
        ("/v1/turns/1.1.ab.1/calls/0", call("count"), 400, "numbered from 1"),
        ("/v1/turns/1.1.ab.1/calls/1", b"no", 400, "no envelope"),
        ("/v1/turns/1.1.ab.1/calls/1", call("count") + b"x", 400, "its header says"),
        (
            "/v1/turns/1.1.ab.1/calls/1",
            joined(encode({"do": "save", "folder": "/"})),
            400,
            "do is no field of a call",
        ),
        ("/v1/turns/1.1.ab.1/release", b'{"again": 1}', 400, "expected true or false"),
        ("/v1/turns", b'{"wait":' + b" " * 70_000 + b"1}", 413, "more than 65536 bytes"),
    ],
)
def test_what_cannot_be_used_is_named(
    loopback: GroupPlane, resident: str, path: str, body: bytes, status: int, message: str
) -> None:
    found = raw(loopback, resident, path, body)
    assert found[0] == status, found
    assert message in json.loads(found[1])["message"]


def test_a_resident_that_never_came_is_gone_once_it_is_told_to_leave(loopback: GroupPlane) -> None:
    """Else the operator would wait for its end for ever: its job left while the group was starting."""
    status, report = loopback.ask("POST", "/v1/residents/never-1/leave", {})
    assert status == 200
    assert "never-1" in report["gone"]
    late = {"name": "never-1", "job": "never", "kind": "", "stateBytes": 1}
    assert loopback.ask("POST", "/v1/residents", late)[0] == 410
    assert loopback.ask("POST", "/v1/residents/Never/leave", {})[0] == 422


def test_who_has_no_right_is_refused(loopback: GroupPlane, resident: str) -> None:
    head = loopback.pods[0]

    def asked(ticket: str | None, path: str = "/v1/turns", method: str = "POST") -> tuple[int, str]:
        connection = _Pinned(head.address, head.fingerprint, 30.0)
        headers = {} if ticket is None else {"Authorization": f"Bearer {ticket}"}
        connection.request(method, path, b"{}" if method == "POST" else None, headers)
        answer = connection.getresponse()
        found = json.loads(answer.read())
        connection.close()
        return answer.status, found["reason"]

    assert asked(None) == (401, "NoTicket")
    assert asked("x.y") == (403, "WrongTicket")
    for wrong in (
        {"group": "wg-other"}, {"admission": ADMISSION + 1}, {"ends": time.time() - 1.0},
    ):  # fmt: skip
        assert asked(loopback.job_ticket(resident, **wrong)) == (403, "WrongTicket")
    assert asked(loopback.ticket("job", "p", resident="job-0")) == (403, "NoResident")
    assert asked(loopback.ticket("operator")) == (403, "WrongTicket")
    assert asked(loopback.job_ticket(resident), "/v1/report", "GET") == (403, "WrongTicket")
    assert asked(loopback.job_ticket(resident), f"/v1/residents/{resident}/leave") == (403, "WrongTicket")
    # A pod that was made again has a ticket of its admission, but is not of its list.
    again = loopback.ticket("member", "pod-1-again", pods=(loopback.pods[0].uid, "pod-1-again"))
    assert asked(again, "/v1/members/exchange") == (403, "WrongTicket")
    plane_signer, loopback.signer = loopback.signer, Signer()
    try:
        assert asked(loopback.job_ticket(resident)) == (403, "WrongTicket")
    finally:
        loopback.signer = plane_signer


def test_a_state_is_read_without_a_turn(loopback: GroupPlane, resident: str, other: str) -> None:
    group = loopback.client(resident)
    assert group.state().members[0].regions == {}
    with group.turn() as turn:
        turn.call("train")
    old = group.state()
    assert old.version == 1
    assert [sorted(one.regions) for one in old.members] == [["counter", "frozen", "weights"]] * 2
    # While another has the turn.
    with loopback.client(other).turn() as held:
        held.call("count")
        for member in (0, 1):
            assert group.read("counter", member) == (1).to_bytes(8, "little")
            assert group.read("frozen", member).rstrip(b"\0").decode() == resident
    with group.turn() as turn:
        turn.call("train")
    with loopback.client(other).turn() as held:
        held.call("count")
    with group.turn() as turn:  # loads version 2, so version 1 is dropped
        pass
    with pytest.raises(StateMoved) as moved:
        group.read("counter", 0, old)
    assert moved.value.version == 3
    # Others' states are not to be had.
    status, _ = raw(loopback, other, "/v1/state", b"{}")
    assert status == 405
    group.close()


def test_a_residency_ends_when_nothing_of_it_is_left_on_any_member(loopback: GroupPlane) -> None:
    name = f"job-{next(_numbers)}"
    loopback.join(name)
    group = loopback.client(name)
    with group.turn() as turn:
        turn.call("train")
    assert all(name in pod.workers() for pod in loopback.pods)
    assert loopback.ask("POST", f"/v1/residents/{name}/leave", {})[0] == 200
    until(lambda: name in (loopback.report() or {})["gone"])
    for pod in loopback.pods:
        assert name not in pod.workers()
        assert not (pod.volume / "memory/states" / name).exists()
    with pytest.raises(NoResidency):
        group.run(lambda turn: turn.call("count"))
    body = {"name": name, "job": "uid", "stateBytes": 10}
    assert loopback.ask("POST", "/v1/residents", body)[0] == 410
    group.close()


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"name": "Job_1", "job": "u", "stateBytes": 10}, 422, "name: 'Job_1' is not allowed"),
        ({"name": "job-x", "job": "u", "stateBytes": 0}, 400, "stateBytes: 0 is not allowed"),
        ({"name": "job-x", "stateBytes": 10}, 400, "expected name and job"),
        ({"name": "job-x", "job": "u", "stateBytes": 1 << 40}, 422, "bytes of host memory"),
    ],
)
def test_residents_that_cannot_be_are_refused(
    loopback: GroupPlane, body: dict[str, Any], status: int, message: str
) -> None:
    found = loopback.ask("POST", "/v1/residents", body)
    assert found[0] == status
    assert message in found[1]["message"]


def test_at_most_as_many_residents_as_there_may_be(loopback: GroupPlane) -> None:
    names = [f"job-{next(_numbers)}" for _ in range(3)]
    loopback.join(*names)
    status, found = loopback.ask("POST", "/v1/residents", {"name": "job-more", "job": "u", "stateBytes": 10})
    assert (status, found["message"]) == (422, "3 residents, at most 3 are allowed")
    for name in names:
        loopback.ask("POST", f"/v1/residents/{name}/leave", {})
    until(lambda: set(names) <= set((loopback.report() or {})["gone"]))


def test_a_resident_whom_nobody_follows_stays_loaded(loopback: GroupPlane, resident: str) -> None:
    group = loopback.client(resident)
    for turns in range(3):
        with group.turn() as turn:
            assert turn.call("train").result["counter"] == turns + 1
    report = loopback.report()
    assert report is not None
    assert report["loaded"] == resident
    assert len(report["residents"][0]["loads"]) == 1
    # A region that no function changed is one file for all versions; one that was is another one in each.
    states = loopback.pods[1].volume / "memory/states" / resident

    def inodes(region: str) -> dict[str, int]:
        return {path.parent.name: path.stat().st_ino for path in states.glob(f"*/{region}")}

    frozen, weights = inodes("frozen"), inodes("weights")
    with group.turn() as turn:
        turn.call("train")
    assert frozen.keys() == weights.keys() == {"2", "3"}  # the one before goes once the next one is granted
    assert inodes("frozen").keys() == {"3", "4"}
    assert len({*frozen.values(), *inodes("frozen").values()}) == 1
    assert len({*weights.values(), *inodes("weights").values()}) == 3
    group.close()


def test_the_log_of_turns_gives_every_state_again(loopback: GroupPlane, resident: str) -> None:
    group, path = loopback.client(resident), loopback.pods[0].disk / "turns.jsonl"
    # Lines are buffered: some turns have to be taken until the first are there.
    for turns in count(1):  # noqa: B007
        group.run(lambda turn: turn.call("count"))
        if path.exists() and path.stat().st_size:
            break
    group.close()
    text = path.read_text()
    lines = text[: text.rfind("\n") + 1].splitlines()
    events, _ = replay(lines)
    assert events == len(lines) - 1 > 1
    # One that says anything else is found.
    wrong = json.loads(lines[-1])
    wrong["state"] += 1
    with pytest.raises(ValueError, match="state"):
        replay([*lines[:-1], json.dumps(wrong)])


def test_health_and_metrics_need_no_ticket(loopback: GroupPlane) -> None:
    head = loopback.pods[0]
    connection = _Pinned(head.address, head.fingerprint, 30.0)
    connection.request("GET", "/healthz")
    answer = connection.getresponse()
    assert (answer.status, answer.read()) == (200, b'{"ready":true}')
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    assert "evalstop_group_members_connected 2.0" in text
    assert 'evalstop_group_turns_total{end="Released"}' in text


def test_a_client_of_a_wrong_certificate_says_nothing(loopback: GroupPlane, resident: str) -> None:
    path = loopback.disk / "wrong.json"
    document = {
        "ticket": loopback.job_ticket(resident), "resident": resident, "address": loopback.pods[0].address,
        "fingerprint": "0" * 64,
    }  # fmt: skip
    path.write_text(json.dumps(document))
    with pytest.raises(Exception, match="another certificate"):
        Group.of_file(path, patience=0.1).state()


def test_each_turn_that_a_worker_loses_at_its_start_is_told_with_the_reason() -> None:
    with GroupPlane(members=1, family="tests.group.families:Missing") as plane:
        plane.join("one")
        for number in range(3):
            assert raw(plane, "one", "/v1/turns", b'{"wait": 0}')[0] == 202
            found = until(lambda n=number: _resident(plane, lost=n + 1), 30.0, "the turn is lost")
            assert found["lostInRow"] == number + 1
        assert found["released"] == 0
        assert found["failing"] > 0
        assert "start: " in found["whyLost"]
        assert "tests.group.families:Missing" in found["whyLost"]


def test_turns_that_are_all_too_long_are_told_whoever_made_them_so() -> None:
    """A trainer that kept each turn beyond its time lost 27 in a row, and nothing told it."""
    with GroupPlane(members=1, TURN_SECONDS=1, IDLE_SECONDS=20) as plane:
        plane.join("one")
        for number in range(2):
            token(plane, "one")
            found = until(lambda n=number: _resident(plane, lost=n + 1), 30.0, "the turn is lost")
            assert (found["lostInRow"], found["whyLost"]) == (number + 1, f"{LASTED} 1 s (Held)")


def test_turns_that_their_holder_gives_up_are_no_failing_of_the_group(
    loopback: GroupPlane, resident: str
) -> None:
    def found() -> dict[str, Any]:
        return _resident(loopback, name=resident)

    for _ in range(2):
        given, _ = token(loopback, resident)
        assert raw(loopback, resident, f"/v1/turns/{given}/release", b'{"discard": true}')[0] == 200
    assert (found()["lost"], found()["lostInRow"], found()["whyLost"]) == (2, 0, "")
    given, _ = token(loopback, resident)
    assert raw(loopback, resident, f"/v1/turns/{given}/calls/1", call("fail"))[0] == 409
    assert (found()["lost"], found()["lostInRow"]) == (3, 1)
    assert "something went wrong" in found()["whyLost"]
    given, _ = token(loopback, resident)
    assert raw(loopback, resident, f"/v1/turns/{given}/release", b"{}")[0] == 200
    assert (found()["released"], found()["lostInRow"], found()["failing"], found()["whyLost"]) == (
        1,
        0,
        0,
        "",
    )


def _resident(plane: GroupPlane, lost: int | None = None, name: str | None = None) -> dict[str, Any]:
    """Return a resident as the group reports it, {}: it has not lost so many turns."""
    every = (plane.report() or {})["residents"]
    one: dict[str, Any] = next(r for r in every if name is None or r["name"] == name)
    return one if lost is None or one["lost"] == lost else {}
