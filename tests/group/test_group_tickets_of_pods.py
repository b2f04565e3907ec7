"""Tickets from the operator's step port, for a pod's projected token: who answers what, over real TLS."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from controller.web import signing
from controller.web.tls import Tls
from evalstop_client.group import Group, GroupError, NoResidency, OperatorTickets, Ticket

TICKET = {"ticket": "t.s", "resident": "u-1-1", "address": "10.0.0.1:8710", "fingerprint": "ab"}


class Operator(ThreadingHTTPServer):
    """One process of the operator's: it answers what ``replies`` has next, and keeps what it was asked."""

    daemon_threads = True

    def __init__(self, tls: Tls) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.socket = tls.context().wrap_socket(self.socket, server_side=True)
        self.replies: list[tuple[int, Any]] = []
        self.asked: list[tuple[str, str | None, Any]] = []
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Operator

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, self.headers["Authorization"], body))
        status, document = self.server.replies.pop(0)
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(document).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def operators(tmp_path: Path) -> Iterator[tuple[Operator, Operator]]:
    now, authority_key, key = datetime.now(UTC), signing.new_key(), signing.new_key()
    authority = signing.sign_authority(authority_key, "test", now, 1)
    leaf = signing.sign_leaf(
        authority, authority_key, key.public_key(), "test",
        purposes=[signing.SERVER], now=now, days=1, hosts=["127.0.0.1"],
    )  # fmt: skip
    server = tmp_path / "server.pem"
    server.write_bytes(signing.key_pem(key) + signing.certificate_pem(leaf))
    (tmp_path / "steps-ca.crt").write_bytes(signing.certificate_pem(authority))
    (tmp_path / "token").write_text("of-the-pod\n")
    made = Operator(Tls(str(server), str(server))), Operator(Tls(str(server), str(server)))
    group = {"urls": [one.url for one in made], "token": str(tmp_path / "token")}
    (tmp_path / "run.json").write_text(json.dumps({"uid": "u-1", "attempt": 3, "group": group}))
    yield made
    for one in made:
        one.shutdown()
        one.server_close()


def tickets(tmp_path: Path) -> OperatorTickets:
    return OperatorTickets.of_pod({"EVALSTOP_RUN_DIR": str(tmp_path)})


def test_the_leader_gives_it(operators: tuple[Operator, Operator], tmp_path: Path) -> None:
    first, second = operators
    first.replies, second.replies = [(421, {"reason": "NotTheLeader"})], [(200, TICKET)]
    assert tickets(tmp_path).get() == Ticket(**TICKET)
    assert first.asked == second.asked == [("/v1/groups/ticket", "Bearer of-the-pod", {"attempt": 3})]


def test_no_residency_yet_is_asked_for_again(operators: tuple[Operator, Operator], tmp_path: Path) -> None:
    first, second = operators
    first.replies = [(503, {"reason": "NotReady"})] * 50
    second.replies = [(421, {})] * 50
    assert tickets(tmp_path).get() is None
    group = Group(tickets(tmp_path), patience=0.2)
    with pytest.raises(GroupError, match="no residency in a group yet"), group.turn():
        pass


def test_a_job_that_has_none_is_told(operators: tuple[Operator, Operator], tmp_path: Path) -> None:
    first, _ = operators
    first.replies = [(403, {"reason": "NoResident", "message": "the job has no spec.sharing"})] * 2
    with pytest.raises(NoResidency, match=r"403 NoResident: the job has no spec.sharing"):
        tickets(tmp_path).get()
    with pytest.raises(NoResidency), Group(tickets(tmp_path)).turn():
        pass


def test_one_that_is_good_lasts_without_an_operator(
    operators: tuple[Operator, Operator], tmp_path: Path
) -> None:
    first, _ = operators
    first.replies = [(200, {**TICKET, "ticket": "eyJlbmRzIjogNS41fQ.x"})]  # over soon: a new one is asked for
    group = Group(tickets(tmp_path))
    had = group._present_ticket()
    group._renews = True  # as after a refused connection: member 0 may be somewhere else
    for one in operators:
        one.shutdown()
        one.server_close()
    assert group._present_ticket() == had


def test_another_authority_is_not_trusted(operators: tuple[Operator, Operator], tmp_path: Path) -> None:
    now, key = datetime.now(UTC), signing.new_key()
    other = signing.sign_authority(key, "other", now, 1)
    (tmp_path / "steps-ca.crt").write_bytes(signing.certificate_pem(other))
    with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
        tickets(tmp_path).get()
    assert operators[0].asked == []
