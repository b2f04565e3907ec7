"""The release download, against a file server of the test's own."""

import contextlib
import hashlib
import http.server
import io
import json
import re
import socket
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deploy.local import pin
from deploy.local.acquire import Sources, obtain
from deploy.local.download import Releases, check_address, download, etcd_archive
from deploy.local.recipe import goarch, goos
from deploy.local.report import silent
from deploy.local.versions import BINARIES, DIGESTS, ETCD, KUBERNETES

BIN = f"/k8s/v{KUBERNETES}/bin/{goos()}/{goarch()}"
ETCD_AT = f"/etcd/v{ETCD}"


class ReleaseServer:
    """Serves `files` (path -> bytes, or a function that answers the request) and counts requests."""

    def __init__(self) -> None:
        self.files: dict[str, bytes | Callable[[http.server.BaseHTTPRequestHandler], None]] = {}
        self.asked: list[str] = []
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.asked.append(self.path)
                content = server.files.get(self.path)
                if content is None:
                    self.send_error(404)
                elif callable(content):
                    content(self)
                else:
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(content)))
                    self.end_headers()
                    self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"

    def release(self, name: str) -> bytes:
        """Publish a binary with its checksum; its content."""
        content = f"#!/bin/sh\necho {name}\n".encode() * 200
        if name != "etcd":
            self.files[f"{BIN}/{name}"] = content
            self.files[f"{BIN}/{name}.sha256"] = hashlib.sha256(content).hexdigest().encode()
            return content
        archive = archive_of({f"{etcd_archive().removesuffix('.tar.gz')}/etcd": content, "../escape": b"x"})
        self.files[f"{ETCD_AT}/{etcd_archive()}"] = archive
        digest = hashlib.sha256(archive).hexdigest()
        sums = f"{'0' * 64}  etcd-v{ETCD}-other.tar.gz\n{digest}  {etcd_archive()}\n"
        self.files[f"{ETCD_AT}/SHA256SUMS"] = sums.encode()
        return content


def archive_of(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


@pytest.fixture
def server() -> Iterator[ReleaseServer]:
    running = ReleaseServer()
    thread = threading.Thread(target=running.http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield running
    running.http.shutdown()
    running.http.server_close()
    thread.join()


@pytest.fixture
def releases(server: ReleaseServer) -> Releases:
    """Patient: this machine may be busy."""
    return Releases(
        f"{server.url}/k8s", f"{server.url}/etcd", digests={}, unpinned=True, answer_s=20.0, stall_s=20.0
    )


def test_all_five_come_complete_and_executable(
    server: ReleaseServer, releases: Releases, tmp_path: Path
) -> None:
    contents = {name: server.release(name) for name in BINARIES}
    found = obtain(sources=Sources(None, tmp_path / "cache", releases, None))
    for name, content in contents.items():
        assert found[name].way == f"downloaded from {releases.file(name)}"
        assert found[name].path == tmp_path / "cache" / name
        assert found[name].path.read_bytes() == content
        assert found[name].path.stat().st_mode & 0o777 == 0o755
    assert not (tmp_path / "escape").exists()
    assert not list((tmp_path / "cache").glob("unfinished-*"))
    asked = len(server.asked)
    assert obtain(sources=Sources(None, tmp_path / "cache", releases, None))["etcd"].way.startswith("cache ")
    assert len(server.asked) == asked  # the cache needs no network


def test_only_what_is_missing_is_asked_for(server: ReleaseServer, releases: Releases, tmp_path: Path) -> None:
    server.release("kubectl")
    download(releases, ["kubectl"], tmp_path, silent)
    assert sorted(server.asked) == [f"{BIN}/kubectl", f"{BIN}/kubectl.sha256"]


def slowly(handler: http.server.BaseHTTPRequestHandler) -> None:
    """A byte now and then: never a stall, never an end."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000000")
    handler.end_headers()
    with suppress_broken():
        for _ in range(100):
            handler.wfile.write(b"x")
            time.sleep(0.1)


def stalling(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000000")
    handler.end_headers()
    with suppress_broken():
        handler.wfile.write(b"x")
        time.sleep(10)


def shortened(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000000")
    handler.end_headers()
    handler.wfile.write(b"x" * 1000)
    handler.close_connection = True


def elsewhere(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.send_response(302)
    handler.send_header("Location", "http://example.org/kubectl")
    handler.end_headers()


def moved(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.send_response(302)
    handler.send_header("Location", "/moved")
    handler.end_headers()


def suppress_broken() -> contextlib.suppress:
    return contextlib.suppress(OSError)


FILE, SUM = f"{BIN}/kubectl", f"{BIN}/kubectl.sha256"
# Short patience only for what the server really does slowly: a busy machine must not be taken for that.
HURRIED: dict[tuple[str, object], dict[str, Any]] = {
    (FILE, slowly): {"slow_s": 0.4},
    (FILE, stalling): {"stall_s": 1.0},
    (SUM, stalling): {"answer_s": 0.5},
}


@pytest.mark.parametrize(
    ("path", "content", "said"),
    [
        (FILE, b"#!/bin/sh\necho tampered\n", r"kubectl: refused, its sha256 is \w{12}…, expected"),
        (FILE, None, "kubectl: 404 Not Found"),
        (FILE, slowly, r"kubectl: only 0 kB/s: given up after \d+ s"),
        (FILE, stalling, "kubectl: no byte within 1 s"),
        (FILE, shortened, "kubectl: ended after 1000 of 1000000 bytes"),
        (FILE, elsewhere, "release address 'http://example.org/kubectl' must begin with https://"),
        (SUM, None, "kubectl.sha256: 404 Not Found"),
        (SUM, b"<html>sign in to this network</html>", "kubectl.sha256: holds no sha256 of kubectl"),
        (SUM, b"", "kubectl.sha256: holds no sha256 of kubectl"),
        (SUM, stalling, "kubectl.sha256: (no byte|timed out|no answer)"),
    ],
)
def test_what_is_not_right_is_refused_with_its_address(
    server: ReleaseServer,
    releases: Releases,
    tmp_path: Path,
    path: str,
    content: bytes | Callable[[http.server.BaseHTTPRequestHandler], None] | None,
    said: str,
) -> None:
    server.release("kubectl")
    if content is None:
        del server.files[path]
    else:
        server.files[path] = content
    patience = replace(releases, **HURRIED.get((path, content), {}))
    outcome = download(patience, ["kubectl"], tmp_path, silent)
    assert outcome.fetched == {}

    assert re.search(said, outcome.failed["kubectl"]), outcome.failed
    assert outcome.failed["kubectl"].startswith(server.url)
    assert not (tmp_path / "kubectl").exists()


def test_one_refused_file_does_not_keep_the_others_away(
    server: ReleaseServer, releases: Releases, tmp_path: Path
) -> None:
    for name in BINARIES:
        server.release(name)
    server.files[f"{BIN}/kube-scheduler"] = b"tampered"
    outcome = download(releases, BINARIES, tmp_path, silent)
    assert list(outcome.failed) == ["kube-scheduler"]
    assert set(outcome.fetched) == set(BINARIES) - {"kube-scheduler"}


def test_a_redirect_within_the_rules_is_followed(
    server: ReleaseServer, releases: Releases, tmp_path: Path
) -> None:
    content = server.release("kubectl")
    server.files["/moved"] = content
    server.files[FILE] = moved
    assert download(releases, ["kubectl"], tmp_path, silent).fetched == {"kubectl": releases.file("kubectl")}
    assert (tmp_path / "kubectl").read_bytes() == content


@pytest.mark.parametrize(
    ("archive", "said"),
    [
        (b"not an archive", "no file etcd-v"),
        (archive_of({"other": b"x"}), "no file etcd-v"),
        (archive_of({f"{etcd_archive().removesuffix('.tar.gz')}/etcd": b"x" * 5000})[:-40], "no file etcd-v"),
    ],
)
def test_an_archive_without_etcd_is_refused(
    server: ReleaseServer, releases: Releases, tmp_path: Path, archive: bytes, said: str
) -> None:
    server.files[f"{ETCD_AT}/{etcd_archive()}"] = archive
    sums = f"{hashlib.sha256(archive).hexdigest()}  {etcd_archive()}\n"
    server.files[f"{ETCD_AT}/SHA256SUMS"] = sums.encode()
    assert said in download(releases, ["etcd"], tmp_path, silent).failed["etcd"]


def test_sums_that_do_not_name_our_archive_count_as_none(
    server: ReleaseServer, releases: Releases, tmp_path: Path
) -> None:
    server.release("etcd")
    server.files[f"{ETCD_AT}/SHA256SUMS"] = f"{'a' * 64}  another.tar.gz\n".encode()
    assert (
        "SHA256SUMS: holds no sha256 of etcd-v"
        in download(releases, ["etcd"], tmp_path, silent).failed["etcd"]
    )
    assert f"{ETCD_AT}/{etcd_archive()}" not in server.asked


def test_a_silent_network_costs_one_short_time_out(tmp_path: Path) -> None:
    with socket.socket() as deaf:  # accepts nothing: its queue is full after one
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        began = time.monotonic()
        outcome = download(
            Releases(url, url, digests={}, unpinned=True, answer_s=2.0), BINARIES, tmp_path, silent
        )
        assert time.monotonic() - began < 4, "less than two of the five time-outs"
    assert set(outcome.failed) == set(BINARIES)
    assert all("within 2 s" in why or "timed out" in why for why in outcome.failed.values())


@pytest.mark.parametrize("address", ["https://example.org/x", "http://127.0.0.1:80", "http://localhost/x"])
def test_addresses_allowed(address: str) -> None:
    check_address(address)


@pytest.mark.parametrize("address", ["http://example.org", "file:///etc", "http://127.0.0.1.example.org", ""])
def test_addresses_refused(address: str) -> None:
    with pytest.raises(ValueError, match="must begin with https://"):
        check_address(address)


def test_a_file_without_a_pinned_digest_is_not_even_asked_for(
    server: ReleaseServer, releases: Releases, tmp_path: Path
) -> None:
    server.release("kubectl")
    outcome = download(replace(releases, unpinned=False), ["kubectl"], tmp_path, silent)
    key = f"kubectl {KUBERNETES} {goos()}/{goarch()}"
    assert outcome.failed == {"kubectl": f"no digest is pinned for {key} (deploy/local/digests.json)"}
    assert server.asked == []


def test_what_is_pinned_counts_and_not_what_the_release_says(
    server: ReleaseServer, releases: Releases, tmp_path: Path
) -> None:
    """A release that is replaced, checksum and all, is refused, whatever else is allowed."""
    content = server.release("kubectl")
    key = f"kubectl {KUBERNETES} {goos()}/{goarch()}"
    right = replace(releases, digests={key: hashlib.sha256(content).hexdigest()}, unpinned=False)
    assert list(download(right, ["kubectl"], tmp_path, silent).fetched) == ["kubectl"]
    assert server.asked == [f"{BIN}/kubectl"], "nobody asked the release what its file should be"
    wrong = replace(releases, digests={key: "0" * 64}, unpinned=True)
    outcome = download(wrong, ["kubectl"], tmp_path, silent)
    assert "refused, its sha256 is" in outcome.failed["kubectl"]
    assert outcome.fetched == {}


def test_digests_are_pinned_by_asking_the_releases_once(
    server: ReleaseServer, releases: Releases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = {name: server.release(name) for name in BINARIES}
    monkeypatch.setattr(pin, "releases_from_environment", lambda: releases)
    path = tmp_path / "digests.json"
    other = f"kubectl {KUBERNETES} other/platform"
    path.write_text(json.dumps({"kubectl 1.0.0 linux/amd64": "0" * 64, other: "1" * 64}))
    assert pin.main(path) == 0
    written = json.loads(path.read_text())
    platform = f"{goos()}/{goarch()}"
    names = {f"{name} {ETCD if name == 'etcd' else KUBERNETES} {platform}" for name in BINARIES}
    assert written.keys() == names | {other}, "of other versions nothing stays, of other platforms all"
    assert written[f"kubectl {KUBERNETES} {platform}"] == hashlib.sha256(contents["kubectl"]).hexdigest()
    taken = replace(releases, digests=written, unpinned=False)
    assert sorted(download(taken, BINARIES, tmp_path, silent).fetched) == sorted(BINARIES)
    server.files.pop(f"{BIN}/kubectl.sha256")
    assert pin.main(path) == 1
    assert json.loads(path.read_text()) == written, "and what was pinned stays"


def test_what_is_pinned_is_of_the_versions_that_are_used() -> None:
    for key, digest in DIGESTS.items():
        name, version, _ = key.split(" ")
        assert version == (ETCD if name == "etcd" else KUBERNETES), f"{key}: run python -m deploy.local.pin"
        assert re.fullmatch(r"[0-9a-f]{64}", digest)
