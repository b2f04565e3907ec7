"""The certificates of a local control plane: one authority for Kubernetes, one for etcd."""

import dataclasses
import datetime
import ipaddress
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_DAY = datetime.timedelta(days=1)
_AUTHORITY_DAYS = 3650
_LEAF_DAYS = 365
_CLIENT = (ExtendedKeyUsageOID.CLIENT_AUTH,)
_SERVER = (ExtendedKeyUsageOID.SERVER_AUTH,)


@dataclasses.dataclass(frozen=True)
class Pair:
    """A certificate and its private key, as PEM files."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority whose pair lives in `folder/name.crt` and `folder/name.key`.

    Made on first use, read afterwards. Errors: ValueError if the files are there but unreadable or
    do not belong together.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.pair = Pair(folder / f"{name}.crt", folder / f"{name}.key")
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.pair.certificate.exists() and self.pair.key.exists():
            self._read()
        else:
            self._make(f"evalstop local {name}")

    def _read(self) -> None:
        certificate = x509.load_pem_x509_certificate(self.pair.certificate.read_bytes())
        key = serialization.load_pem_private_key(self.pair.key.read_bytes(), password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise ValueError(f"{self.pair.key} is not the key of {self.pair.certificate}")
        if certificate.not_valid_after_utc < _now() + _LEAF_DAYS * _DAY:
            raise ValueError(f"{self.pair.certificate} ends on {certificate.not_valid_after_utc:%Y-%m-%d}")
        self._certificate, self._key = certificate, key

    def _make(self, common_name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        builder = _builder(name, name, self._key, _AUTHORITY_DAYS)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
        self._certificate = builder.sign(self._key, hashes.SHA256())
        write_private(self.pair.key, _key_pem(self._key))
        self.pair.certificate.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def client(self, file: str, common_name: str, organizations: Iterable[str] = ()) -> Pair:
        """Files `file.crt` and `file.key` by which a client is known as user and groups."""
        return self._issue(file, common_name, organizations, _CLIENT, ())

    def server(
        self, file: str, common_name: str, names: Sequence[str], organizations: Iterable[str] = ()
    ) -> Pair:
        """Files for a server reached under `names` (DNS names and IP addresses)."""
        return self._issue(file, common_name, organizations, _SERVER, names)

    def peer(self, file: str, common_name: str, names: Sequence[str]) -> Pair:
        """Files for a process that is both server and client, as etcd is to itself."""
        return self._issue(file, common_name, (), _SERVER + _CLIENT, names)

    def _issue(
        self,
        file: str,
        common_name: str,
        organizations: Iterable[str],
        purposes: Sequence[x509.ObjectIdentifier],
        names: Sequence[str],
    ) -> Pair:
        pair = Pair(self.folder / f"{file}.crt", self.folder / f"{file}.key")
        key = ec.generate_private_key(ec.SECP256R1())
        attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, name) for name in organizations]
        attributes.append(x509.NameAttribute(NameOID.COMMON_NAME, common_name))
        builder = _builder(x509.Name(attributes), self._certificate.subject, key, _LEAF_DAYS)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(map(_general, names)), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        write_private(pair.key, _key_pem(key))
        pair.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return pair


def token_keys(folder: Path) -> Pair:
    """The pair that signs service-account tokens (`certificate` is the bare public key)."""
    pair = Pair(folder / "service-accounts.pub", folder / "service-accounts.key")
    if not (pair.certificate.exists() and pair.key.exists()):
        key = ec.generate_private_key(ec.SECP256R1())
        write_private(pair.key, _key_pem(key))
        pair.certificate.write_bytes(
            key.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
        )
    return pair


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, whatever the umask, replacing what was there."""
    temporary = path.with_name(path.name + ".new")
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    temporary.replace(path)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    # An hour back: a clock that is set right in between must not make a fresh certificate invalid.
    start = _now() - datetime.timedelta(hours=1)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + (days + 1) * _DAY)
    )


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
