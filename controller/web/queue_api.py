"""The operator's queue API as its clients see it: its paths, and the one function that asks it.

Commands and the dashboard ask alike. The address is the operator's own, or a port-forward's: no proxy is
asked for it, and no redirect is followed.
"""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote, urlsplit

from controller import bounded, names
from controller.kube.client import ANSWER_MOST, read
from controller.kube.connection import Connection, tls_context
from controller.kube.direct import DirectTransport
from controller.kube.errors import TooLarge
from controller.kube.transport import Limits

ROOT = f"/apis/{names.API_VERSION}/gpupools"
GROUPS = f"/apis/{names.API_VERSION}/workergroups"
MOST_ITEMS = 5000  # jobs in one answer


class Refused(Exception):
    """The API's answer is an error.

    Attributes:
        status: HTTP status.
        reason: its code, such as "PoolNotFound"; "": it has none, so it is not this API's.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason = status, reason


class NoAnswer(Exception):
    """Nobody answers, or not in time; the message says why."""


class NotQueueApi(Exception):
    """An answer that this API does not give."""


def queue_path(pool: str, limit: int = MOST_ITEMS) -> str:
    """Return the path of a pool's queue."""
    return f"{ROOT}/{quote(pool, safe='')}/queue?limit={limit}"


def job_path(pool: str, job: str) -> str:
    """Return the path of one job's place. ``job``: namespace/name."""
    return "/".join((ROOT, quote(pool, safe=""), "queue", *(quote(part, safe="") for part in job.split("/"))))


def group_path(name: str = "") -> str:
    """Return the path of one worker group; "": of all."""
    return f"{GROUPS}/{quote(name, safe='')}" if name else GROUPS


async def ask(base: str, path: str, patience: float) -> dict[str, Any]:
    """Return the answer to GET as JSON.

    Args:
        base: the API's address, as in "http://127.0.0.1:8081".
        path: path and query.
        patience: s until the whole answer is there.

    Raises:
        Refused: it answers with an error.
        NoAnswer: it does not answer, or not within ``patience``.
        NotQueueApi: what it answers is none of this API's.
    """
    url = f"{base.rstrip('/')}{path}"
    try:
        async with asyncio.timeout(patience):
            status, text = await _get(base.rstrip("/"), path, patience)
    except TimeoutError:
        raise NoAnswer(f"no answer within {patience:g} s") from None
    except (OSError, ValueError) as error:
        raise NoAnswer(str(error) or type(error).__name__) from error
    except TooLarge as error:
        raise NotQueueApi(error.message) from error
    try:
        answer = bounded.load(text, "its answer", ANSWER_MOST)
    except ValueError as error:
        answer = None
        if status == 200:
            raise NotQueueApi(str(error)) from None
    document: dict[str, Any] = answer if isinstance(answer, dict) else {}
    if status != 200:
        reason, message = document.get("reason"), document.get("message")
        known = isinstance(reason, str) and isinstance(message, str)
        raise Refused(
            status, str(reason) if known else "", str(message) if known else f"HTTP {status} from {url}"
        )
    if not document:
        raise NotQueueApi("its answer is no object")
    return document


async def _get(base: str, path: str, patience: float) -> tuple[int, bytes]:
    context = tls_context() if urlsplit(base).scheme == "https" else None
    transport = DirectTransport(Connection(base, "the queue API", tls=context))
    try:
        answer = await transport.send(
            "GET", path, {"Accept": "application/json"}, None, Limits(connect=patience)
        )
        async with answer:
            return answer.status, await read(answer.chunks(), f"GET {base}{path}")
    finally:
        await transport.close()
