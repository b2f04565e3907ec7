"""Stand-ins for the members of worker groups: one process that registers every pod as a member does, with the
product's own part, and answers at the pods' addresses as member 0 would. No workers, no states.

`python -m tests.bench.scale_members URL CA`: of the operator's step API. It prints its port, then reads lines
of JSON from its stdin until that ends: a pod {"pod", "ip", "token"}; {"turns": true or false}: whether turns
are taken; {"count": true}: it prints how many there were.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from controller import log
from controller.group import certificate
from controller.group.account import RECENT_KEPT, SWITCHES_KEPT, TURNS_KEPT
from controller.group.registration import Admitted, Registration
from controller.policy.sharing import UNITS
from controller.web import group_tickets
from controller.web.group_tickets import OPERATOR
from controller.web.tickets import TicketError

Json = dict[str, Any]

REGISTER_SECONDS = 10.0  # as a member's setting is
GPUS = 8  # of a group
# Microseconds of one turn, alone and shared. Its duty is .2, so that two fit beside each other.
AWAY, WAITED, SWITCH, HELD = 3_100_000, 100_000, 50_000, 800_000
CYCLE = AWAY + WAITED + HELD


class Played:
    """Microseconds for which turns were taken. ``clock``: s."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._before, self._since = clock, 0.0, clock()
        self.taken = True

    def now(self) -> int:
        return round(1e6 * (self._before + (self._clock() - self._since if self.taken else 0.0)))

    def take(self, taken: bool) -> None:
        """Have turns taken from now on, or none."""
        self._before, self._since, self.taken = self.now() / 1e6, self._clock(), taken


@dataclass(slots=True)
class Resident:
    """One resident. ``came``: microseconds played."""

    name: str
    job: str
    kind: str
    came: int

    def turns(self, now: int) -> int:
        """Return how many turns it has released."""
        return (now - self.came) // CYCLE


@dataclass
class Group:
    """One group's residents, and its report."""

    name: str
    admission: int
    pods: tuple[str, ...]
    played: Played
    residents: dict[str, Resident] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)

    def join(self, given: Json) -> None:
        name = given["name"]
        if name not in self.gone:
            new = Resident(name, given["job"], given["kind"], self.played.now())
            self.residents.setdefault(name, new)

    def leave(self, name: str) -> None:
        if name not in self.gone:
            self.gone.append(name)
        self.residents.pop(name, None)

    def turns(self) -> int:
        now = self.played.now()
        return sum(one.turns(now) for one in self.residents.values())

    def report(self) -> Json:
        """Return it as `controller.group.report` makes one."""
        now, names = self.played.now(), list(self.residents)
        count = self.turns()
        newest = range(min(count, RECENT_KEPT), 0, -1)
        began = [now - n * CYCLE // len(names) for n in newest]
        return {
            "group": self.name, "admission": self.admission, "start": 1, "now": now, "opened": 0,
            "ready": True,
            "members": [
                {"uid": uid, "index": index, "connected": True, "hostBytes": len(names) << 20}
                for index, uid in enumerate(self.pods)
            ],
            "turn": {
                "resident": names[0], "sequence": count + 1, "phase": "Held", "since": now, "began": now,
                "function": "",
            } if names and self.played.taken else None,
            "waiting": [],
            "loaded": names[0] if names else None,
            "residents": [self._resident(one, now) for one in self.residents.values()],
            "leaving": [], "gone": self.gone, "lost": [], "vacant": 0,
            "calls": 2 * count, "switches": count, "expired": 0,
            "recent": [
                [names[n % len(names)], max(0, at), max(0, at) + SWITCH, max(0, at) + SWITCH + HELD, True]
                for n, at in enumerate(began)
            ],
        }  # fmt: skip

    def _resident(self, one: Resident, now: int) -> Json:
        count = one.turns(now)
        switches = min(SWITCHES_KEPT, count + 1) if len(self.residents) > 1 else 1
        first = max(0, count - TURNS_KEPT)
        return {
            "name": one.name, "job": one.job, "kind": one.kind, "version": count,
            "turns": [[AWAY, HELD, step, WAITED] for step in range(first, count)],
            "loads": [SWITCH] * switches, "offloads": [SWITCH] * (switches - 1),
            "charge": GPUS * UNITS * (now - one.came) // len(self.residents),
            "released": count, "lost": 0, "longestWait": WAITED,
        }  # fmt: skip


class Member(Registration):
    """A member's registration from its pod's own address: the operator counts how much each peer asks."""

    def __init__(self, ip: str, *given: Any) -> None:
        super().__init__(*given)
        self._ip = ip

    def session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(local_addr=(self._ip, 0)))


class Members:
    """All of them: groups by the address of their member 0.

    Args:
        url, ca: of the operator's step API.
        folder: for tokens and tickets.
    """

    def __init__(self, url: str, ca: str, folder: Path) -> None:
        self._url, self._ca, self._folder = url, ca, folder
        self._context, self._fingerprint = certificate.kept(folder, ["127.0.0.1"])
        self._groups: dict[str, tuple[Group, Admitted]] = {}
        self._opened: dict[str, str] = {}  # tickets that were checked: the address that they open
        self._tasks: list[asyncio.Task[None]] = []
        self._port = 0
        self.played = Played()

    async def serve(self) -> int:
        """Serve; return the port."""
        app = web.Application()
        app.router.add_get("/v1/report", self._report)
        app.router.add_post("/v1/residents", self._join)
        app.router.add_post("/v1/residents/{name}/leave", self._leave)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        # Every loopback address, and nothing that comes from outside this machine.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0")
        listening.bind(("0.0.0.0", 0))
        context: ssl.SSLContext = self._context
        await web.SockSite(runner, listening, ssl_context=context).start()
        self._port = int(listening.getsockname()[1])
        return self._port

    def add(self, pod: str, ip: str, token: str) -> None:
        """Register a pod from now on."""
        kept = self._folder / f"{pod}.token"
        kept.write_text(token)

        def admitted(found: Admitted) -> None:
            if found.index == 0:
                ticket = found.ticket
                known = self._groups.get(ip)
                new = Group(ticket.group, ticket.admission, ticket.pods, self.played)
                self._groups[ip] = known[0] if known else new, found
                self._opened.clear()

        member = Member(
            ip, pod, [self._url], self._ca, str(kept), f"{ip}:{self._port}", self._fingerprint,
            self._folder / f"{pod}.ticket", admitted,
        )  # fmt: skip
        self._tasks.append(asyncio.create_task(member.run(REGISTER_SECONDS)))

    def count(self) -> int:
        """Return how many turns there were."""
        return sum(group.turns() for group, _ in self._groups.values())

    def _group(self, request: web.Request) -> Group:
        """Return the group at the address that is asked, if the ticket opens it."""
        assert request.transport is not None
        ip = str(request.transport.get_extra_info("sockname")[0])
        text = request.headers.get("authorization", "").removeprefix("Bearer ")
        if ip not in self._groups:
            raise web.HTTPServiceUnavailable(text='{"reason": "NotReady"}')
        group, admitted = self._groups[ip]
        if self._opened.get(text) != ip:
            try:
                group_tickets.check(
                    text, admitted.keys, kinds=(OPERATOR,), group=group.name, admission=group.admission,
                    now=time.time(),
                )  # fmt: skip
            except TicketError as error:
                message = json.dumps({"reason": "WrongTicket", "message": str(error)})
                raise web.HTTPForbidden(text=message) from None
            self._opened[text] = ip
        return group

    async def _report(self, request: web.Request) -> web.Response:
        return web.json_response(self._group(request).report())

    async def _join(self, request: web.Request) -> web.Response:
        group = self._group(request)
        group.join(await request.json())
        return web.json_response(group.report())

    async def _leave(self, request: web.Request) -> web.Response:
        group = self._group(request)
        group.leave(request.match_info["name"])
        return web.json_response(group.report())


async def _main(url: str, ca: str, folder: Path) -> None:
    members = Members(url, ca, folder)
    print(await members.serve(), flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        given = json.loads(line)
        if "turns" in given:
            members.played.take(given["turns"])
        elif "count" in given:
            print(members.count(), flush=True)
        else:
            members.add(given["pod"], given["ip"], given["token"])


if __name__ == "__main__":
    log.configure("ERROR", "console")  # to stderr: stdout is for answers
    with tempfile.TemporaryDirectory(prefix="evalstop-members-") as given_folder:
        asyncio.run(_main(sys.argv[1], sys.argv[2], Path(given_folder)))
