"""A member's certificate: made once, kept on the disk volume, known by its fingerprint."""

from __future__ import annotations

import hashlib
import os
import ssl
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from controller.web.certificates import self_signed
from controller.web.tls import Tls


def kept(folder: Path, hosts: Sequence[str]) -> tuple[ssl.SSLContext, str]:
    """Return the TLS context of this member's server, and the SHA-256 of its certificate in DER, in hex.

    A restart of the container finds the same: tickets that name it last a day.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "server.pem"
    if not path.exists():
        beside = path.with_suffix(".part")
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(self_signed(hosts))
        beside.replace(path)
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    fingerprint = hashlib.sha256(certificate.public_bytes(Encoding.DER)).hexdigest()
    return Tls(str(path), str(path)).context(), fingerprint
