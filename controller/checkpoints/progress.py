"""Progress of this process in bytes, served as Prometheus text while it works.

The operator asks about once a minute (operator/state/access_progress.py). The access pod has no token
and writes nothing anywhere, so it can only be asked. Without an address in ``POD_IP`` nothing is served.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from controller.names import PROGRESS_PORT, PROGRESS_PREFIX

ADDRESS_ENV = "POD_IP"
PHASES = ("Reading", "Copying", "Checking")
_PATIENCE = 5.0  # s that one who asks may take


class Meter:
    """Bytes of the phase under way. Several workers count at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._phase, self._done, self._total = "", 0, 0

    def begin(self, phase: str, total: int, done: int = 0) -> None:
        """Begin a phase of ``total`` bytes, of which an earlier try has done ``done``."""
        with self._lock:
            self._phase, self._total, self._done = phase, total, done

    def advance(self, count: int) -> None:
        """``count`` bytes more of the phase are done."""
        with self._lock:
            self._done += count

    def read(self) -> tuple[str, int, int]:
        """Phase, bytes done, bytes in all (0: not known)."""
        with self._lock:
            # What is read beside the work that was counted beforehand must not make it more than whole.
            return self._phase, min(self._done, self._total or self._done), self._total

    def text(self) -> str:
        """Return the page."""
        phase, done, total = self.read()
        lines = [
            f"# TYPE {PROGRESS_PREFIX}bytes_done gauge",
            f"{PROGRESS_PREFIX}bytes_done {done}",
            f"# TYPE {PROGRESS_PREFIX}bytes_total gauge",
            f"{PROGRESS_PREFIX}bytes_total {total}",
            f"# TYPE {PROGRESS_PREFIX}phase gauge",
            *(f'{PROGRESS_PREFIX}phase{{phase="{p}"}} {int(p == phase)}' for p in PHASES),
        ]
        return "\n".join(lines) + "\n"


METER = Meter()


@contextmanager
def served(environment: Mapping[str, str], port: int = PROGRESS_PORT) -> Iterator[int | None]:
    """Serve the page on this pod's address while the block runs; gives the port, None: not served.

    What goes wrong with it is not told and ends nothing: the work matters more than the words about it.
    """
    address = environment.get(ADDRESS_ENV, "")
    listening: socket.socket | None = None
    with suppress(OSError):
        if address:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            listening = socket.create_server((address, port), family=family, backlog=8)
    if listening is None:
        yield None
        return
    threading.Thread(target=_serve, args=(listening,), name="progress", daemon=True).start()
    try:
        yield int(listening.getsockname()[1])
    finally:
        listening.close()


def _serve(listening: socket.socket) -> None:
    # One after the other: there is one who asks, once a minute.
    while True:
        try:
            asking, _ = listening.accept()
        except OSError:
            return  # closed: the work is done
        with asking, suppress(OSError):
            asking.settimeout(_PATIENCE)
            asking.recv(4096)  # whatever is asked for, there is one page
            page = METER.text().encode()
            head = (
                "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n"
                f"Content-Length: {len(page)}\r\nConnection: close\r\n\r\n"
            )
            asking.sendall(head.encode() + page)
