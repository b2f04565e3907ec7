"""Free loopback ports."""

import socket
from collections.abc import Iterable
from types import TracebackType


class Ports:
    """Ports that nobody can take between choosing and using them: reserved by sockets that are bound but
    never listen.

    The components bind the same ports with SO_REUSEPORT (`--permit-port-sharing`,
    `--socket-reuse-port`); connections reach only sockets that listen. The supervisor inherits the
    sockets, so a port also stays ours while its component restarts.
    """

    def __init__(self, names: Iterable[str], host: str = "127.0.0.1") -> None:
        self._sockets: dict[str, socket.socket] = {}
        for name in names:
            reservation = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            reservation.bind((host, 0))
            self._sockets[name] = reservation

    def __getitem__(self, name: str) -> int:
        return int(self._sockets[name].getsockname()[1])

    @property
    def descriptors(self) -> list[int]:
        """File descriptors to hand to the process that keeps the reservation."""
        return [reservation.fileno() for reservation in self._sockets.values()]

    def __enter__(self) -> "Ports":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for reservation in self._sockets.values():
            reservation.close()


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port that was free a moment ago, for a program that cannot share one with `Ports`."""
    with socket.socket() as found:
        found.bind((host, 0))
        return int(found.getsockname()[1])
