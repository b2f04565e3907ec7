"""Asking the API server whether it would take a workload as it is, without making one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from controller import bounded
from controller.policy.types import Problem
from controller.workloads.child import TEMPLATE
from controller.workloads.running import queue_problem

MESSAGE_LIMIT = 1000  # characters of the server's answer

# Refusals that are about this object and stay until it changes: invalid, forbidden (quota, pod security,
# a webhook's no), unknown kind, not a valid request at all. 409 is the workload being there already.
REFUSALS = (400, 403, 404, 415, 422)


async def server_problem(
    create: Callable[[dict[str, Any]], Awaitable[Any]], manifest: dict[str, Any]
) -> Problem | None:
    """Return why the API server would refuse a workload, or give it to another queue; None: it would take it.

    Args:
        create: makes the object with ``dryRun=All`` and returns it as it would become; raises an exception
            that carries the HTTP ``status`` and, if it can, ``body`` (a Status object as JSON text) or
            ``message``.
        manifest: from `build_child`.

    Raises:
        Exception: whatever ``create`` raised that is no refusal (timeouts, overload, 5xx): not a word
            about the workload, to be tried again.
    """
    try:
        answer = await create(manifest)
    except Exception as error:
        status = getattr(error, "status", None)
        if status == 409:
            return None
        if status not in REFUSALS:
            raise
        text = _message(error)
        return Problem("TemplateRefused", f"{TEMPLATE}: the API server refuses it: {text[:MESSAGE_LIMIT]}")
    captured = queue_problem(answer, manifest) if isinstance(answer, Mapping) else None
    return None if captured is None else Problem("QueueTakesWorkload", captured)


def _message(error: Exception) -> str:
    body = getattr(error, "body", None)
    if isinstance(body, bytes):
        body = body.decode("utf-8", "replace")
    if isinstance(body, str):
        try:
            parsed = bounded.load(body, "the answer", 1 << 20)
        except ValueError:
            return body
        if isinstance(parsed, dict) and parsed.get("message"):
            return str(parsed["message"])
    return str(getattr(error, "message", None) or getattr(error, "reason", None) or error)
