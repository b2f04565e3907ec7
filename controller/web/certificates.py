"""Certificates between kube-scheduler and the extender: an authority of their own, a server, a client.

Of their own, because whoever the authority vouches for may ask: with the cluster's, that would be every user
with a client certificate.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from controller.frozen import dataclass
from controller.web import signing

AUTHORITY_DAYS = 3650  # kube-scheduler reads it once, at its start: it must outlive many leaves
LEAF_DAYS = 365


class CertificateError(Exception):
    """The authority given cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class Pem:
    """A certificate and its private key, as PEM."""

    certificate: str
    key: str


def make_authority(now: datetime.datetime) -> Pem:
    """Return a new authority."""
    key = signing.new_key()
    return _pem(signing.sign_authority(key, "evalstop-extender-ca", now, AUTHORITY_DAYS), key)


def issue_server(authority: Pem, hosts: Sequence[str], now: datetime.datetime) -> Pem:
    """Return a serving certificate for ``hosts`` (DNS names and IP addresses).

    Raises:
        CertificateError: see `_issue`.
    """
    return _issue(authority, "evalstop-extender", signing.SERVER, now, hosts)


def issue_client(authority: Pem, name: str, now: datetime.datetime) -> Pem:
    """Return a client certificate.

    Raises:
        CertificateError: see `_issue`.
    """
    return _issue(authority, name, signing.CLIENT, now, ())


def self_signed(hosts: Sequence[str]) -> str:
    """Return, in one PEM, a serving certificate that nobody can verify, made now, and its key."""
    now = datetime.datetime.now(datetime.UTC)
    made = issue_server(make_authority(now), hosts, now)
    return made.key + made.certificate


def _issue(
    authority: Pem,
    common_name: str,
    purpose: x509.ObjectIdentifier,
    now: datetime.datetime,
    hosts: Sequence[str],
) -> Pem:
    try:
        issuer = x509.load_pem_x509_certificate(authority.certificate.encode())
        signer = serialization.load_pem_private_key(authority.key.encode(), password=None)
    except ValueError as error:
        raise CertificateError(f"the authority's files are no PEM certificate and key ({error})") from None
    if not isinstance(signer, ec.EllipticCurvePrivateKey) or signer.public_key() != issuer.public_key():
        raise CertificateError("the authority's key is not the one of its certificate")
    if issuer.not_valid_after_utc < now + datetime.timedelta(days=LEAF_DAYS):
        raise CertificateError(
            f"the authority ends on {issuer.not_valid_after_utc:%Y-%m-%d}, before a new certificate would"
        )
    key = signing.new_key()
    leaf = signing.sign_leaf(
        issuer,
        signer,
        key.public_key(),
        common_name,
        purposes=[purpose],
        now=now,
        days=LEAF_DAYS,
        hosts=hosts,
    )
    return _pem(leaf, key)


def _pem(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pem:
    return Pem(signing.certificate_pem(certificate).decode(), signing.key_pem(key).decode())


def expiry(path: Path) -> float | None:
    """Return when (s since the epoch) the first of the certificates in a PEM file ends; None: it holds
    none."""
    try:
        found = x509.load_pem_x509_certificates(path.read_bytes())
    except (OSError, ValueError):
        return None
    return min(certificate.not_valid_after_utc.timestamp() for certificate in found)


if __name__ == "__main__":  # `controller.web.tls.self_signed`
    print(self_signed(sys.argv[1:]))
