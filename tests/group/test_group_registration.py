"""How a member gets its ticket: from whoever leads, kept over a restart, never another pod's."""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi import Request, Response
from pydantic_core import to_json

from controller.group.registration import MOST_EARLIER, Admitted, Registration
from controller.web.bare_app import bare_app
from controller.web.certificates import issue_server, make_authority
from controller.web.group_tickets import MEMBER, SECONDS, GroupTicket
from controller.web.server import WebServer
from controller.web.tickets import Signer
from controller.web.tls import Tls


class Operator:
    """Answers of the step port, one after the other; the last again and again."""

    def __init__(self, folder: Path, answers: list[tuple[int, Any]]) -> None:
        self.answers, self.asked = answers, list[tuple[str, Any]]()
        now = datetime.datetime.now(datetime.UTC)
        authority = make_authority(now)
        pair = issue_server(authority, ["127.0.0.1"], now)
        self.ca = folder / "ca.pem"
        self.ca.write_text(authority.certificate)
        (folder / "server.pem").write_text(pair.key + pair.certificate)
        app = bare_app()
        app.add_api_route("/v1/groups/members", self._answer, methods=["POST"], response_model=None)
        path = str(folder / "server.pem")
        self.server = WebServer(app, "127.0.0.1", 0, tls=Tls(path, path))

    async def _answer(self, request: Request) -> Response:
        self.asked.append((request.headers["authorization"], await request.json()))
        status, document = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)
        return Response(to_json(document), status)


def answer(
    signer: Signer, pod: str = "pod-1", admission: int = 1, index: int = 1, **more: Any
) -> dict[str, Any]:
    ticket = GroupTicket(
        MEMBER, "wg", admission, pod, time.time() + 1000.0, pods=("pod-0", pod), address="127.0.0.1:1",
        fingerprint="ab",
    )  # fmt: skip
    return {"ticket": signer.sign(ticket), "keys": [signer.public], "index": index, **more}


def registered(
    folder: Path,
    answers: list[tuple[int, Any]],
    until: Callable[[list[Admitted], Registration], bool],
    ca: Path | None = None,
) -> tuple[list[Admitted], Registration, Operator]:
    """Run a registration until something is so. ``ca``: of another authority than the operator's."""
    (folder / "token").write_text("projected\n")
    took: list[Admitted] = []

    async def play() -> tuple[Registration, Operator]:
        operator = Operator(folder, answers)
        await operator.server.start()
        made = Registration(
            "pod-1", [f"https://127.0.0.1:{operator.server.port}"], str(ca or operator.ca),
            str(folder / "token"), "127.0.0.1:7", "cd", folder / "ticket.json", took.append,
        )  # fmt: skip
        task = asyncio.create_task(made.run(0.01))
        async with asyncio.timeout(60):
            while not until(took, made):  # noqa: ASYNC110 -- what is waited for tells nobody
                await asyncio.sleep(0.01)
        task.cancel()
        await operator.server.stop()
        return made, operator

    return took, *asyncio.run(play())


def test_it_asks_until_whoever_leads_admits_it(tmp_path: Path) -> None:
    signer = Signer()
    not_yet = (503, {"reason": "NotReady", "message": "pods are missing"})
    answers = [(421, {"reason": "NotLeading"}), not_yet, (200, answer(signer))]
    took, made, operator = registered(tmp_path, answers, lambda took, _: bool(took))
    assert [(one.index, one.ticket.pods) for one in took] == [(1, ("pod-0", "pod-1"))]
    assert operator.asked[0] == ("Bearer projected", {"address": "127.0.0.1:7", "fingerprint": "cd"})
    # A restart goes on from what is kept, without an answer.
    again: list[Admitted] = []
    other = Registration(
        "pod-1", [], "", str(tmp_path / "token"), "", "", tmp_path / "ticket.json", again.append
    )
    other.recall()
    assert again == took
    assert (tmp_path / "ticket.json").stat().st_mode & 0o077 == 0
    assert made.problem in ("", "not tried yet")


def test_an_answer_that_comes_in_parts_is_read_whole(tmp_path: Path) -> None:
    """As that to a member of a group of a thousand is: one read brings a part."""
    signer = Signer()
    long = answer(signer)
    long["keys"] += ["0" * 64] * 2000
    took, _, _ = registered(
        tmp_path, [(200, long)], lambda took, made: bool(took) or "not JSON" in made.problem
    )
    assert len(took[0].keys) == 2001


def test_a_new_leaders_key_is_taken_up_and_those_before_count_for_a_day(tmp_path: Path) -> None:
    """Jobs have tickets of the leader before, and the new one may not know them yet."""
    one, two = Signer(), Signer()
    given = [(200, answer(one)), (200, answer(two))]
    took, _, _ = registered(tmp_path, given, lambda took, _: len(took) == 2)
    assert took[1].keys == (two.public, one.public)
    now, again = [time.time()], list[Admitted]()
    restarted = Registration(
        "pod-1",
        [],
        "",
        str(tmp_path / "token"),
        "",
        "",
        tmp_path / "ticket.json",
        again.append,
        lambda: now[0],
    )
    restarted.recall()
    assert again[0].keys == (two.public, one.public)
    now[0] += SECONDS - 100.0
    restarted.take(answer(two))
    assert again[-1].keys == (two.public, one.public)
    now[0] += 200.0
    restarted.take(answer(two))
    assert again[-1].keys == (two.public,), "a ticket of before has ended by itself"


def test_of_keys_before_so_many_are_kept(tmp_path: Path) -> None:
    took = list[Admitted]()
    made = Registration("pod-1", [], "", "", "", "", tmp_path / "ticket.json", took.append)
    signers = [Signer() for _ in range(MOST_EARLIER + 5)]
    for signer in signers:
        made.take(answer(signer))
    assert took[-1].keys[0] == signers[-1].public
    assert set(took[-1].keys[1:]) == {one.public for one in signers[-MOST_EARLIER - 1 : -1]}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"pod": "pod-2"}, "the ticket is not this pod's"),
        ({"index": 0}, "the ticket is not this pod's"),
        ({"keys": []}, "is not signed"),
        ({"index": "x"}, "expected ticket, keys and index"),
    ],
)
def test_a_ticket_that_is_not_its_own_is_not_taken(
    tmp_path: Path, wrong: dict[str, Any], message: str
) -> None:
    given = [(200, answer(Signer(), **wrong))]
    took, made, _ = registered(tmp_path, given, lambda _, made: made.problem != "not tried yet")
    assert took == []
    assert message in made.problem


def test_a_pod_is_of_one_admission(tmp_path: Path) -> None:
    signer = Signer()
    answers = [(200, answer(signer)), (200, answer(signer, admission=2))]
    took, made, _ = registered(tmp_path, answers, lambda _, made: "admission" in made.problem)
    assert [one.ticket.admission for one in took] == [1]
    assert "admission 2: this pod is of 1" in made.problem


def test_a_renewed_authority_is_taken_up(tmp_path: Path) -> None:
    ca = tmp_path / "mounted.pem"
    ca.write_text(make_authority(datetime.datetime.now(datetime.UTC)).certificate)

    def until(took: list[Admitted], made: Registration) -> bool:
        if "CERTIFICATE_VERIFY_FAILED" in made.problem:
            ca.write_text((tmp_path / "ca.pem").read_text())
        return bool(took)

    took, _, operator = registered(tmp_path, [(200, answer(Signer()))], until, ca)
    assert len(took) == 1
    assert len(operator.asked) == 1
