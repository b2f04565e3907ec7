"""The certificates of a local control plane: one authority for Kubernetes, one for etcd."""

import dataclasses
import datetime
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from controller.web import signing

_DAY = datetime.timedelta(days=1)
_AUTHORITY_DAYS = 3650
_LEAF_DAYS = 365
_CLIENT = (signing.CLIENT,)
_SERVER = (signing.SERVER,)


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
        self._key = signing.new_key()
        self._certificate = signing.sign_authority(self._key, common_name, _now(), _AUTHORITY_DAYS)
        write_private(self.pair.key, signing.key_pem(self._key))
        self.pair.certificate.write_bytes(signing.certificate_pem(self._certificate))

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
        key = signing.new_key()
        certificate = signing.sign_leaf(
            self._certificate,
            self._key,
            key.public_key(),
            common_name,
            purposes=purposes,
            now=_now(),
            days=_LEAF_DAYS,
            hosts=names,
            organizations=organizations,
        )
        write_private(pair.key, signing.key_pem(key))
        pair.certificate.write_bytes(signing.certificate_pem(certificate))
        return pair


def token_keys(folder: Path) -> Pair:
    """Return the pair that signs service-account tokens (`certificate` is the bare public key)."""
    pair = Pair(folder / "service-accounts.pub", folder / "service-accounts.key")
    if not (pair.certificate.exists() and pair.key.exists()):
        key = signing.new_key()
        write_private(pair.key, signing.key_pem(key))
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
