"""When the certificate of whoever asks ends.

A kube-scheduler that is not the chart's may hold a copy in its configuration, which nobody renews with the
Secret, and whose end is seen nowhere else.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable

from uvicorn.protocols.http.h11_impl import H11Protocol

# s after which who asked here is forgotten. A scheduler keeps to one replica for as long as its connection
# lasts: what another replica has seen of it may be the certificate before.
FORGET = 86400.0


class Callers:
    """The client certificate that last asked this process."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._now = monotonic
        self._ends = 0.0
        self._at = float("-inf")

    def note(self, ends: float) -> None:
        """Somebody asks whose certificate ends then (s since the epoch)."""
        self._ends, self._at = ends, self._now()

    @property
    def ends(self) -> float | None:
        """When the certificate that last asked ends; None: nobody has asked for a day."""
        return self._ends if self._now() - self._at < FORGET else None


def noting(callers: Callers) -> type[H11Protocol]:
    """uvicorn's protocol, which notes the certificate of each client that sends something."""

    class Protocol(H11Protocol):
        _ends: float | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            shown = transport.get_extra_info("peercert")  # verified: the context asks for one
            self._ends = ssl.cert_time_to_seconds(shown["notAfter"]) if shown else None

        def data_received(self, data: bytes) -> None:
            if self._ends is not None:
                callers.note(self._ends)
            super().data_received(data)

    return Protocol
