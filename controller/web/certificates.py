"""Certificates between kube-scheduler and the extender: an authority of their own, a server, a client.

Of their own, because whoever the authority vouches for may ask: with the cluster's, that would be every user
with a client certificate.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_DAY = datetime.timedelta(days=1)
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
    """A new authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("evalstop-extender-ca")
    builder = (
        _builder(name, name, key, now, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
    )
    return _pem(builder.sign(key, hashes.SHA256()), key)


def issue_server(authority: Pem, hosts: Sequence[str], now: datetime.datetime) -> Pem:
    """A serving certificate for ``hosts`` (DNS names and IP addresses).

    Raises:
        CertificateError: see `_issue`.
    """
    names = x509.SubjectAlternativeName([_general(host) for host in hosts])
    return _issue(authority, "evalstop-extender", ExtendedKeyUsageOID.SERVER_AUTH, now, names)


def issue_client(authority: Pem, name: str, now: datetime.datetime) -> Pem:
    """A client certificate.

    Raises:
        CertificateError: see `_issue`.
    """
    return _issue(authority, name, ExtendedKeyUsageOID.CLIENT_AUTH, now, None)


def _issue(
    authority: Pem,
    common_name: str,
    purpose: x509.ObjectIdentifier,
    now: datetime.datetime,
    names: x509.SubjectAlternativeName | None,
) -> Pem:
    try:
        issuer = x509.load_pem_x509_certificate(authority.certificate.encode())
        signer = serialization.load_pem_private_key(authority.key.encode(), password=None)
    except ValueError as error:
        raise CertificateError(f"the authority's files are no PEM certificate and key ({error})") from None
    if not isinstance(signer, ec.EllipticCurvePrivateKey) or signer.public_key() != issuer.public_key():
        raise CertificateError("the authority's key is not the one of its certificate")
    if issuer.not_valid_after_utc < now + LEAF_DAYS * _DAY:
        raise CertificateError(
            f"the authority ends on {issuer.not_valid_after_utc:%Y-%m-%d}, before a new certificate would"
        )
    key = ec.generate_private_key(ec.SECP256R1())
    builder = (
        _builder(_name(common_name), issuer.subject, key, now, LEAF_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
    )
    if names is not None:
        builder = builder.add_extension(names, critical=False)
    return _pem(builder.sign(signer, hashes.SHA256()), key)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now: datetime.datetime,
    days: int,
) -> x509.CertificateBuilder:
    start = now - datetime.timedelta(hours=1)  # clocks that differ a little
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(now + days * _DAY)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pem:
    encoding = serialization.Encoding.PEM
    private = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Pem(certificate.public_bytes(encoding).decode(), private.decode())


def expiry(path: Path) -> float | None:
    """When (s since the epoch) the first of the certificates in a PEM file ends; None: it holds none."""
    try:
        found = x509.load_pem_x509_certificates(path.read_bytes())
    except (OSError, ValueError):
        return None
    return min(certificate.not_valid_after_utc.timestamp() for certificate in found)
