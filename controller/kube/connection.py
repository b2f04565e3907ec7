"""The way to an API server: its address, TLS, and who asks. No HTTP library is loaded here."""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from controller.frozen import dataclass

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_PERIOD = 60.0  # s: a projected token is rotated long before it expires, a minute late is early enough


class NoCredentials(Exception):
    """No usable kubeconfig or service account; the message says what was looked for."""


@dataclass(frozen=True, slots=True)
class Connection:
    """A way to the API server.

    Attributes:
        server: its address, as in "https://host:6443"; a path may follow, a slash does not end it.
        origin: for logs: "kubeconfig /path" or "service account /path".
        authorization: returns the header Authorization as it is now, "": none is sent. It may raise OSError
            or `NoCredentials`: the token is just being replaced.
        tls: None: plain HTTP.
        server_name: the name that the server's certificate must have; "": the address's.
        proxy: address of an HTTP proxy; "": none.
        environment: whether the environment's proxies count (``HTTPS_PROXY`` and so on).
    """

    server: str
    origin: str
    authorization: Callable[[], str] = lambda: ""
    tls: ssl.SSLContext | None = None
    server_name: str = ""
    proxy: str = ""
    environment: bool = False

    @property
    def direct(self) -> bool:
        """Return whether no proxy stands between. As for kubectl, the environment's variables count."""
        named = self.environment and any(
            value and name.lower() in ("http_proxy", "https_proxy", "all_proxy")
            for name, value in os.environ.items()
        )
        return not self.proxy and not named


def tls_context(
    authority: bytes = b"", certificate: bytes = b"", key: bytes = b"", *, verify: bool = True
) -> ssl.SSLContext:
    """Return a context for calls to a server.

    Args:
        authority: certificates (PEM) that vouch for the server; none: those of the system.
        certificate: the caller's own (PEM), with ``key``; none: the caller shows none.
        key: private key of ``certificate`` (PEM).
        verify: whether the server must show a certificate that somebody vouches for.

    Raises:
        ssl.SSLError, ValueError: what is given is no certificate or key, or they do not belong together.
    """
    context = ssl.create_default_context(cadata=authority.decode("ascii", "ignore") if authority else None)
    if certificate:
        with unseen_file(certificate) as shown, unseen_file(key or certificate) as secret:
            context.load_cert_chain(shown, secret)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


@contextmanager
def unseen_file(content: bytes) -> Iterator[str]:
    """Yield a path under which OpenSSL, which reads keys from files only, finds ``content``.

    On Linux it is memory: no disk ever has it, and it goes with the process however that ends. Elsewhere it
    is a file of the user's own, which is gone when this returns.
    """
    if hasattr(os, "memfd_create"):
        descriptor, path = os.memfd_create("evalstop-key", os.MFD_CLOEXEC), ""
    else:
        import tempfile

        descriptor, path = tempfile.mkstemp(prefix="evalstop-key-")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        yield path or f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
        if path:
            os.unlink(path)


def bearer_of(path: Path, monotonic: Callable[[], float] = time.monotonic) -> Callable[[], str]:
    """Return what reads a token's file, anew after `TOKEN_PERIOD`, as the header Authorization.

    What it returns raises OSError where the file cannot be read, `NoCredentials` where it is empty.
    """
    read_at, known = float("-inf"), ""

    def authorization() -> str:
        nonlocal read_at, known
        now = monotonic()
        if now - read_at >= TOKEN_PERIOD:
            token = path.read_text().strip()
            if not token:
                raise NoCredentials(f"{path} is empty; a token is expected there")
            known, read_at = f"Bearer {token}", now
        return known

    return authorization


def in_cluster(environ: Mapping[str, str] = os.environ, folder: Path = SERVICE_ACCOUNT) -> Connection:
    """Return a pod's way to the API server, by its service account.

    Raises:
        NoCredentials: the folder lacks the token or the certificate.
    """
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ["KUBERNETES_SERVICE_PORT"]
    authorization = bearer_of(folder / "token")
    try:
        authorization()
        context = tls_context((folder / "ca.crt").read_bytes())
    except (OSError, ValueError) as error:  # an ssl.SSLError is an OSError
        raise NoCredentials(f"service account {folder}: {error}") from error
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return Connection(server, f"service account {folder}", authorization, context)
