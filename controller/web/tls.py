"""TLS of a server: certificate, key and, where clients show one, the authority and names of theirs.

The files are renewed while the server runs (by cert-manager, by an upgrade of the chart): each new connection
is served with what lies there now. When the clients' authority changes, connections made under the one before
end as soon as nothing is under way on them: its word counts no more.
"""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from controller.frozen import dataclass

_Stamp = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Tls:
    """Files in PEM.

    Attributes:
        client_ca: clients must show a certificate of this authority; "": none is asked for.
        client_names: one of these must be its common name or a DNS name in it; empty: any.
    """

    certificate: str
    key: str
    client_ca: str = ""
    client_names: frozenset[str] = frozenset()

    def context(self) -> ssl.SSLContext:
        """Return the TLS context of the server.

        Raises:
            OSError: a file cannot be read or used (ssl.SSLError is one).
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        context.load_cert_chain(self.certificate, self.key)
        if self.client_ca:
            context.load_verify_locations(self.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def serving_stamp(self) -> _Stamp:
        """Differs once certificate or key do."""
        return _stamps((self.certificate, self.key))

    def authority_stamp(self) -> _Stamp:
        """Differs once the clients' authority does."""
        return _stamps((self.client_ca,)) if self.client_ca else ()

    def knows(self, shown: Mapping[str, Any] | None) -> bool:
        """Return whether a client's verified certificate bears a name that may ask."""
        return not self.client_names or not self.client_names.isdisjoint(names_of(shown))


def names_of(shown: Mapping[str, Any] | None) -> list[str]:
    """Return the common names and DNS names of a certificate as ``getpeercert`` gives it."""
    found = shown or {}
    common = [value for part in found.get("subject", ()) for key, value in part if key == "commonName"]
    return common + [value for key, value in found.get("subjectAltName", ()) if key == "DNS"]


def self_signed(hosts: Sequence[str]) -> ssl.SSLContext:
    """Serve with a certificate made now, which nobody can verify: what passes is hidden from whoever only
    listens. Its key is in this process's memory alone."""
    # The ssl module reads files only.
    descriptor, path = tempfile.mkstemp()
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(_new_pair(hosts))
        context = Tls(path, path).context()
    finally:
        os.unlink(path)
    return context


def _new_pair(hosts: Sequence[str]) -> str:
    """Return a new certificate and its key as PEM.

    What makes them takes 12 MB, for once in a process's life: unless it is here already, another process has
    it, and ends.
    """
    if "cryptography" in sys.modules:
        from controller.web.certificates import self_signed

        return self_signed(hosts)
    command = [sys.executable, "-m", "controller.web.certificates", *hosts]
    return subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout


def _stamps(paths: Iterable[str]) -> _Stamp:
    """Return when files last changed; one that is away counts as changed."""
    found = []
    for path in paths:
        try:
            stat = Path(path).stat()
            found.append((stat.st_mtime_ns, stat.st_ino, stat.st_size))
        except OSError:
            found.append((0, 0, 0))
    return tuple(found)
