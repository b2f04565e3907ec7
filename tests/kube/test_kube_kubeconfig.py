"""A kubeconfig as kubectl reads it, and what of it never lies on a disk: keys."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import signal
import ssl
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.kube import connection, kubeconfig
from controller.kube.connect import connect
from controller.kube.connection import NoCredentials, tls_context, unseen_file
from controller.kube.kubeconfig import BadKubeconfig, Caller, PluginRefused
from deploy.local.pki import Authority

Given = dict[str, Any]


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    authority = Authority(tmp_path_factory.mktemp("pki"), "ca")
    server, client = authority.server("server", "api", ["127.0.0.1"]), authority.client("client", "jo", ["g"])
    pairs = {"ca": authority.pair, "server": server, "client": client}
    return {
        **{name: pair.certificate.read_bytes() for name, pair in pairs.items()},
        **{f"{name}-key": pair.key.read_bytes() for name, pair in pairs.items()},
    }


def inline(pem: bytes) -> str:
    return base64.b64encode(pem).decode()


def written(folder: Path, user: Given, cluster: Given | None = None, name: str = "config") -> Path:
    path = folder / name
    content = {
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:6443/", **(cluster or {})}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
        "users": [{"name": "u", "user": user}],
        "current-context": "x",
    }
    path.write_text(yaml.safe_dump(content))
    return path


def read(path: Path, context: str = "") -> Caller:
    return asyncio.run(kubeconfig.as_caller(str(path), context, {}))


def inline_user(pki: dict[str, bytes]) -> Given:
    return {
        "client-certificate-data": inline(pki["client"]),
        "client-key-data": inline(pki["client-key"]),
    }


def handshake(pki: dict[str, bytes], client: ssl.SSLContext) -> str:
    """Whom a server sees that asks for certificates of its authority."""
    server = tls_context(pki["ca"], pki["server"], pki["server-key"])
    asking = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=pki["ca"].decode())
    with unseen_file(pki["server"]) as shown, unseen_file(pki["server-key"]) as key:
        asking.load_cert_chain(shown, key)
    asking.verify_mode = ssl.CERT_REQUIRED
    del server
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    here = asking.wrap_bio(to_server, to_client, server_side=True)
    there = client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    for _ in range(8):
        for side in (there, here):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    subject = here.getpeercert()["subject"]  # type: ignore[index]
    return str(dict(pair[0] for pair in subject)["commonName"])  # type: ignore[index, misc]


def test_keys_of_a_kubeconfig_are_used_and_lie_on_no_disk(
    tmp_path: Path, pki: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inline and by file, relative to the kubeconfig; the command, and an operator told by KUBECONFIG."""
    for name, pem in pki.items():
        (tmp_path / name).write_bytes(pem)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    by_file = {"client-certificate": "client", "client-key": "client-key"}
    for user, cluster in (
        (inline_user(pki), {"certificate-authority-data": inline(pki["ca"])}),
        (by_file, {"certificate-authority": "ca"}),
    ):
        path = written(tmp_path, user, cluster)
        caller = read(path)
        assert (caller.namespace, caller.context, caller.server) == ("team", "x", "https://127.0.0.1:6443")
        for way in (caller.connection, asyncio.run(connect({"KUBECONFIG": str(path)}))):
            assert way.tls is not None
            assert handshake(pki, way.tls) == "jo"
    assert list(scratch.iterdir()) == []


LOADS = """
import asyncio, os, signal, sys
from controller.kube.connect import connect
from controller.kube.kubeconfig import as_caller
from controller.kube.client import Api
way = asyncio.run(as_caller(sys.argv[1])).connection
other = asyncio.run(connect({"KUBECONFIG": sys.argv[1]}))
async def use():
    async with Api(other):
        os.kill(os.getpid(), int(sys.argv[2]))
asyncio.run(use())
"""


@pytest.mark.parametrize("number", [0, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_however_the_process_ends(tmp_path: Path, pki: dict[str, bytes], number: int) -> None:
    """1,181 folders with keys lay in a /tmp: one of each operator, and of each command that was killed."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    path = written(tmp_path, inline_user(pki), {"certificate-authority-data": inline(pki["ca"])})
    done = subprocess.run(
        [sys.executable, "-c", LOADS, str(path), str(int(number))],
        env={**os.environ, "TMPDIR": str(scratch)},
        check=False,
    )
    assert done.returncode == -number
    assert list(scratch.iterdir()) == []


def test_where_memory_is_no_file_the_file_is_gone_at_once(
    tmp_path: Path, pki: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(connection.os, "memfd_create", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with unseen_file(b"a key") as path:
        assert Path(path).read_bytes() == b"a key"
        assert os.stat(path).st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == []
    handshake(pki, tls_context(pki["ca"], pki["client"], pki["client-key"]))
    with pytest.raises(ssl.SSLError):
        tls_context(pki["ca"], b"no certificate", b"no key")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("user", "header"),
    [
        ({"token": "t0k"}, "Bearer t0k"),
        ({"tokenFile": "token", "token": "older"}, "Bearer of-a-file"),
        ({"username": "jo", "password": "pw"}, "Basic am86cHc="),
        ({}, ""),
    ],
)
def test_who_asks(tmp_path: Path, user: Given, header: str) -> None:
    (tmp_path / "token").write_text("of-a-file\n")
    assert read(written(tmp_path, user)).connection.authorization() == header


def test_how_the_server_is_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = {"tls-server-name": "api.here", "insecure-skip-tls-verify": True, "proxy-url": "http://p:1"}
    way = read(written(tmp_path, {}, cluster)).connection
    assert way.tls is not None
    assert (way.server_name, way.tls.verify_mode, way.proxy, way.direct) == (
        "api.here",
        ssl.CERT_NONE,
        "http://p:1",
        False,
    )
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    far = read(written(tmp_path, {}, {"server": "https://10.0.0.1"})).connection
    near = read(written(tmp_path, {})).connection
    assert far.direct
    monkeypatch.setenv("https_proxy", "http://p:1")
    assert (far.direct, near.direct) == (False, True), "for this machine itself no proxy counts"


def test_of_several_files_the_first_that_has_a_name_counts(tmp_path: Path) -> None:
    first = written(tmp_path, {"token": "first"})
    other = tmp_path / "other"
    other.mkdir()
    second = written(other, {"token": "second"})
    content = yaml.safe_load(second.read_text())
    content["contexts"].append({"name": "y", "context": {"cluster": "c", "user": "v"}})
    content["users"].append({"name": "v", "user": {"tokenFile": "token"}})
    second.write_text(yaml.safe_dump(content))
    (other / "token").write_text("beside it")
    environ = {"KUBECONFIG": f"{first}{os.pathsep}{tmp_path / 'none'}{os.pathsep}{second}"}

    def token(context: str) -> str:
        return asyncio.run(kubeconfig.as_caller("", context, environ)).connection.authorization()

    assert (token(""), token("y")) == ("Bearer first", "Bearer beside it")
    assert kubeconfig.contexts(kubeconfig.files("", environ)) == (["x", "y"], "x")


@pytest.mark.parametrize(
    ("user", "cluster", "said"),
    [
        ({}, {"server": "127.0.0.1:6443"}, "cluster c: server is '127.0.0.1:6443', expected https://HOST"),
        ({}, {"certificate-authority": "nowhere"}, "No such file"),
        ({}, {"certificate-authority-data": "%%"}, "certificate-authority-data is not base64"),
        ({"client-certificate-data": inline(b"no"), "client-key-data": inline(b"no")}, {}, "context 'x'"),
        ({"exec": {"command": "./none", "apiVersion": "v1"}}, {}, "No such file"),
        ({"exec": {"command": "./none"}}, {}, "apiVersion"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, user: Given, cluster: Given, said: str) -> None:
    path = written(tmp_path, user, cluster)
    with pytest.raises(BadKubeconfig, match="kubeconfig") as raised:
        read(path)
    assert str(path) in str(raised.value)
    assert said in str(raised.value)
    with pytest.raises(NoCredentials):
        asyncio.run(connect({"KUBECONFIG": str(path)}))


def test_a_context_of_a_user_that_is_not_there(tmp_path: Path) -> None:
    path = written(tmp_path, {})
    content = yaml.safe_load(path.read_text())
    content["contexts"][0]["context"]["user"] = "w"
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(BadKubeconfig, match=r"names the user 'w'.*there are: u"):
        read(path)


PLUGIN = """#!/bin/sh
test "$MODE" = told && test "$1" = arg || exit 3
cat <<END
{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": STATUS}
END
"""


def plugin(folder: Path, status: str) -> Given:
    path = folder / "plugin"
    path.write_text(PLUGIN.replace("STATUS", status))
    path.chmod(0o755)
    return {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "./plugin",
            "args": ["arg"],
            "env": [{"name": "MODE", "value": "told"}],
        }
    }


def test_a_plugin_may_give_a_certificate(tmp_path: Path, pki: dict[str, bytes]) -> None:
    def text(name: str) -> str:
        return pki[name].decode().replace("\n", "\\\\n")

    status = f'{{"clientCertificateData": "{text("client")}", "clientKeyData": "{text("client-key")}"}}'
    user = plugin(tmp_path, status)
    way = read(written(tmp_path, user, {"certificate-authority-data": inline(pki["ca"])})).connection
    assert way.tls is not None
    assert (handshake(pki, way.tls), way.authorization()) == ("jo", "")


@pytest.mark.parametrize(
    ("status", "said"),
    [("{}", "gave neither a token nor a certificate"), ("oops", "not JSON"), ("1", "has no status")],
)
def test_what_a_plugin_says_that_is_no_credential(tmp_path: Path, status: str, said: str) -> None:
    with pytest.raises(PluginRefused, match=said):
        read(written(tmp_path, plugin(tmp_path, status)))
