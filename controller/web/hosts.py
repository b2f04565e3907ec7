"""Names by which a server may be asked: a guard against DNS rebinding.

A page of somebody else's can have its own name resolve to an address that the reader's browser reaches and
the page's author does not (a loopback port, a pod), and then read answers there as its own. The browser still
says that name in ``Host``. So names are refused that nobody gave to this server; addresses cannot be made to
mean something else, and pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send


class Hosts:
    """``Host`` headers that are answered.

    Args:
        names: host names, each with a port or without one, which is then any port.
        addresses: whether ``localhost`` and whatever IP address are answered, too.
    """

    def __init__(self, names: Iterable[str] = (), *, addresses: bool = True) -> None:
        self.names = frozenset(name.strip().lower() for name in names if name.strip())
        self._addresses = addresses

    def allow(self, header: str) -> bool:
        """Return whether a request with this ``Host`` is answered."""
        host = header.strip().lower()
        name = _without_port(host)
        if host in self.names or name in self.names:
            return bool(host)
        return self._addresses and (name == "localhost" or _is_address(name))

    def advice(self) -> str:
        """Return the host names to use instead, in words."""
        found = sorted(self.names)
        if self._addresses:
            found = ["localhost", "the address itself", *found]
        return " or ".join(found)


class HostGuard:
    """An ASGI app that answers 421 to other names, and passes on the rest."""

    def __init__(self, app: ASGIApp, hosts: Hosts) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            host = Headers(scope=scope).get("host", "")
            if not self._hosts.allow(host):
                message = f"Host: {host[:100]!r} is no name of this server; ask by {self._hosts.advice()}"
                answer = JSONResponse({"reason": "WrongHost", "message": message}, 421)
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
