"""The certificate that a sidecar makes for itself: known by its fingerprint, which the step API passes on."""

from __future__ import annotations

import hashlib
import os
import ssl
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime

from cryptography.hazmat.primitives.serialization import Encoding

from controller.web import signing
from controller.web.tls import Tls

DAYS = 365  # an actor lives for hours; a clock that is wrong by months must not stop it


def make(hosts: Sequence[str]) -> tuple[ssl.SSLContext, str]:
    """Return a server's TLS context, and the SHA-256 of its certificate in DER, in hex. The key stays in
    memory."""
    now = datetime.now(UTC)
    authority_key, key = signing.new_key(), signing.new_key()
    authority = signing.sign_authority(authority_key, "evalstop-actor", now, DAYS)
    leaf = signing.sign_leaf(
        authority, authority_key, key.public_key(), "evalstop-actor",
        purposes=[signing.SERVER], now=now, days=DAYS, hosts=hosts,
    )  # fmt: skip
    descriptor, path = tempfile.mkstemp()  # the ssl module reads files only
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(signing.key_pem(key) + signing.certificate_pem(leaf))
        context = Tls(path, path).context()
    finally:
        os.unlink(path)
    return context, hashlib.sha256(leaf.public_bytes(Encoding.DER)).hexdigest()
