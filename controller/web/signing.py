"""X.509 certificates of an authority of one's own: what extender, dashboard and the local plane sign with.

RFC 5280, section 4.2.1: an authority names its key (Subject Key Identifier), and whatever it signs names the
key that signed it (Authority Key Identifier). Python 3.13 refuses certificates without them
(``ssl.VERIFY_X509_STRICT`` is in its default context), older ones do not ask.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterable, Sequence

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CLIENT, SERVER = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH
_BACKDATED = datetime.timedelta(hours=1)  # clocks that differ a little, or are set right in between


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def certificate_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def sign_authority(
    key: ec.EllipticCurvePrivateKey, common_name: str, now: datetime.datetime, days: float
) -> x509.Certificate:
    """Return the certificate of an authority, signed by itself, that ends ``days`` from ``now``."""
    name = _name(common_name, ())
    return (
        _builder(name, name, key.public_key(), now, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def sign_leaf(
    issuer: x509.Certificate,
    signer: ec.EllipticCurvePrivateKey,
    key: ec.EllipticCurvePublicKey,
    common_name: str,
    *,
    purposes: Sequence[x509.ObjectIdentifier],
    now: datetime.datetime,
    days: float,
    hosts: Sequence[str] = (),
    organizations: Iterable[str] = (),
) -> x509.Certificate:
    """Return a certificate of ``key`` that the authority ``issuer``, whose key is ``signer``, vouches for.

    Args:
        issuer: certificate of the authority.
        signer: key of the authority.
        key: what the new certificate is for.
        common_name: of its subject.
        purposes: `CLIENT`, `SERVER` or both.
        now: begin of its validity.
        days: length of its validity.
        hosts: DNS names and IP addresses under which a server is reached.
        organizations: of its subject; to Kubernetes the groups of the user ``common_name``.
    """
    builder = (
        _builder(_name(common_name, organizations), issuer.subject, key, now, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(_authority_key(issuer), critical=False)
    )
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName(map(_general, hosts)), critical=False)
    return builder.sign(signer, hashes.SHA256())


def _authority_key(issuer: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    """Return the identifier that the authority bears, which its maker was free to choose; else that of its
    key."""
    try:
        borne = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    except x509.ExtensionNotFound:
        borne = x509.SubjectKeyIdentifier.from_public_key(issuer.public_key())
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(borne)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: datetime.datetime,
    days: float,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _name(common_name: str, organizations: Iterable[str]) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, name) for name in organizations]
    return x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


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
