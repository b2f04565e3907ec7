"""The operator as a program that is killed at its own writes, and starts again at once.

``python mortal_operator.py AT ENDS LOG ABOUT...``: each life is a process of its own, forked from this one,
which has loaded the code once. SIGKILL ends it right after its write number AT took effect; where ENDS is
``both``, every other life ends right before it was sent. Writes that count are those whose path has one of
ABOUT in it; Events and dry runs do not count, for nothing depends on them. Each death is a line of LOG, the
write by which it came. SIGTERM ends the life under way, and no other one begins.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from controller.operator.process.lazy_imports import leave_out

Response = tuple[int, bytes, Mapping[str, str]]


class _Writes:
    """Counts a life's writes, and ends it at one of them."""

    def __init__(self, at: int, before: bool, log: str, about: list[str]) -> None:
        self._at, self._before, self._log, self._about = at, before, log, about
        self._count = 0
        # One at a time: else a life dies of one write while another one, which comes once in a job, takes
        # effect beside it, and nobody ever dies of that one.
        self._one_at_a_time = asyncio.Lock()

    def watch(self) -> None:
        """From now on this process dies of its writes."""
        from controller.kube.client import Api

        sent: Callable[..., Awaitable[Response]] = Api._request

        async def request(
            api: Any, method: str, path: str, query: Any, body: Any, content_type: str
        ) -> Response:
            counts = (
                method != "GET"
                and "/events" not in path
                and "dryRun" not in (query or {})
                and any(name in path for name in self._about)
            )
            if not counts:
                return await sent(api, method, path, query, body, content_type)
            async with self._one_at_a_time:
                if self._before and self._count + 1 == self._at:
                    self._die("before", method, path, body)
                answer = await sent(api, method, path, query, body, content_type)
                if answer[0] < 300:
                    self._count += 1
                    if self._count == self._at:
                        self._die("after", method, path, body)
                return answer

        setattr(Api, "_request", request)  # noqa: B010 (no method of its type)

    def _die(self, moment: str, method: str, path: str, body: Any) -> None:
        labels = ((body or {}).get("metadata") or {}).get("labels") or {}
        line = {
            "moment": moment,
            "method": method,
            "path": path,
            "component": labels.get("evalstop.dev/component"),
        }
        with open(self._log, "a", encoding="utf-8") as log:
            log.write(json.dumps(line) + "\n")
        os.kill(os.getpid(), signal.SIGKILL)


def _life(writes: _Writes) -> int:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    from controller.operator.main import main

    writes.watch()
    return main([])


def run(at: int, both: bool, log: str, about: list[str]) -> int:
    """Return the exit code of the life that was asked to end, or ended by itself."""
    over, pid = False, 0

    def end(number: int, frame: object) -> None:
        nonlocal over
        over = True
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)
    lives = 0
    while not over:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # until it is known whom to tell
        pid = os.fork()
        if pid == 0:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            os._exit(_life(_Writes(at, both and lives % 2 == 0, log, about)))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        _, status = os.waitpid(pid, 0)
        pid, lives = 0, lives + 1
        code = os.waitstatus_to_exitcode(status)
        if code == -signal.SIGTERM:  # before it could listen
            return 0
        if code != -signal.SIGKILL:
            return code
    return 0


if __name__ == "__main__":
    leave_out()
    # What a life would load by itself later on.
    import controller.operator.main
    import controller.steps.service
    import controller.web.app  # noqa: F401

    raise SystemExit(run(int(sys.argv[1]), sys.argv[2] == "both", sys.argv[3], sys.argv[4:]))
