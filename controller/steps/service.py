"""The step API as a part of a process: its server, jobs' sessions and the planner's process, together."""

from __future__ import annotations

import ssl

from controller.steps.app import AUDIENCE, ReviewedTokens, StepApi, create
from controller.steps.directory import Directory
from controller.steps.groups import GroupDirectory
from controller.steps.planner import PlannerProcess
from controller.steps.sessions import Note, Sessions, unnoted
from controller.web.connections import Connections, Limits
from controller.web.reviews import Allowance, Reviews
from controller.web.server import WebServer
from controller.web.tls import Tls

__all__ = ["AUDIENCE", "IN_ALL", "LIMITS", "PER_PEER", "StepService"]

# A job keeps one connection open for its watch, and each actor one while it registers.
LIMITS = Limits(connections=4096, per_peer=256, keep_alive=30.0)
# Unknown tokens that the API server is asked about: each pod's is renewed once an hour, and all of them are
# unknown to a new leader.
PER_PEER, IN_ALL = Allowance(burst=20, rate=0.5), Allowance(burst=500, rate=50.0)


class StepService:
    """See the module. It answers on every replica: on one that does not lead, with 421.

    Args:
        directory: what the operator's passes observe.
        reviews: ask the API server whose a token is, for `AUDIENCE`.
        host, port: where it listens.
        tls: its certificate.
        connections: shared with the process's other servers.
        groups: what the operator's passes observe of worker groups.
        note: called with each step's question and plan, for the decision log.
    """

    def __init__(
        self,
        directory: Directory,
        reviews: Reviews,
        host: str,
        port: int,
        tls: Tls | ssl.SSLContext,
        connections: Connections,
        groups: GroupDirectory,
        note: Note = unnoted,
    ) -> None:
        self.planner = PlannerProcess()
        self.sessions = Sessions(directory, self.planner, note=note)
        self.api = StepApi(directory, self.sessions, ReviewedTokens(reviews), groups=groups)
        self.server = WebServer(
            create(self.api), host, port, tls=tls, limits=LIMITS, connections=connections, name="steps"
        )

    async def stop(self) -> None:
        """Answer watches, serve no more, end the planner's process."""
        await self.sessions.close()
        await self.server.stop()
        await self.planner.close()
