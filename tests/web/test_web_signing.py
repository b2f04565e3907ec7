"""Certificates that we sign pass the strict reading of RFC 5280, which Python 3.13 asks for by default."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509

from controller.web import signing
from controller.web.certificates import Pem, issue_client, issue_server, make_authority
from deploy.local.pki import Authority

NOW = datetime.now(UTC)


def of_the_extender(folder: Path) -> tuple[Path, Path, Path]:
    authority = make_authority(NOW)

    def write(name: str, pem: Pem) -> Path:
        path = folder / name
        path.write_text(pem.key + pem.certificate)
        return path

    (folder / "ca").write_text(authority.certificate)
    server = write("server", issue_server(authority, ["127.0.0.1"], NOW))
    return folder / "ca", server, write("client", issue_client(authority, "kube-scheduler", NOW))


def of_the_plane(folder: Path) -> tuple[Path, Path, Path]:
    authority = Authority(folder, "ca")
    pairs = authority.server("server", "api", ["127.0.0.1"]), authority.client("client", "a", ["b"])
    for pair in pairs:
        pair.certificate.write_bytes(pair.key.read_bytes() + pair.certificate.read_bytes())
    return authority.pair.certificate, pairs[0].certificate, pairs[1].certificate


def test_an_authority_made_by_others_is_named_by_what_it_bears() -> None:
    """Who signs with an authority of one's own may have chosen its key's identifier freely."""
    key = signing.new_key()
    made = signing.sign_authority(key, "of our own", NOW, 10)
    leaf = signing.sign_leaf(
        made, key, signing.new_key().public_key(), "a", purposes=[signing.SERVER], now=NOW, days=1
    )
    borne = made.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest
    named = leaf.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value.key_identifier
    assert named == borne


@pytest.mark.parametrize("made", [of_the_extender, of_the_plane])
def test_both_sides_verify_each_other_strictly(
    made: Callable[[Path], tuple[Path, Path, Path]], tmp_path: Path
) -> None:
    ca, server, client = made(tmp_path)
    asking = ssl.create_default_context(cafile=str(ca))
    asking.load_cert_chain(client)
    answering = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(ca))
    answering.load_cert_chain(server)
    answering.verify_mode = ssl.CERT_REQUIRED
    for context in (asking, answering):
        context.verify_flags |= ssl.VERIFY_X509_STRICT

    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = asking.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    other = answering.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):  # each side's messages of TLS 1.3, and one round to spare
        for side in (one, other):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert one.getpeercert()
    assert other.getpeercert()
