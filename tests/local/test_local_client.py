"""The launcher's client: GETs share a connection, and a server that closed it is asked anew."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from deploy.local import pki
from deploy.local.client import Client, Unreachable


class CountingServer(ThreadingHTTPServer):
    """Answers each GET with how many connections there were; ``closing``: and closes without a word."""

    daemon_threads = True
    connections = 0
    closing = False
    silent = False

    def process_request(self, request, client_address) -> None:  # type: ignore[no-untyped-def]
        self.connections += 1
        super().process_request(request, client_address)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: CountingServer

    def do_GET(self) -> None:
        if self.server.silent:
            threading.Event().wait(5.0)
        text = str(self.server.connections).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
        self.close_connection = self.server.closing

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[CountingServer]:
    with CountingServer(("127.0.0.1", 0), Handler) as running:
        pair = pki.Authority(tmp_path, "test").server("server", "api", ["127.0.0.1"])
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.certificate, pair.key)
        running.socket = context.wrap_socket(running.socket, server_side=True)
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield running
        running.shutdown()


def test_gets_share_a_connection_each_thread_its_own(server: CountingServer) -> None:
    client = Client(f"https://127.0.0.1:{server.server_port}", None, None)
    assert [client.get("/") for _ in range(3)] == [1, 1, 1]
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(client.get("/")))
    thread.start()
    thread.join()
    assert (found, client.get("/")) == ([2], 2)


def test_a_server_that_closed_is_asked_anew(server: CountingServer) -> None:
    client = Client(f"https://127.0.0.1:{server.server_port}", None, None)
    server.closing = True
    assert [client.get("/") for _ in range(3)] == [1, 2, 3]


def test_what_comes_too_late_answers_nothing_else(server: CountingServer) -> None:
    client = Client(f"https://127.0.0.1:{server.server_port}", None, None)
    assert client.get("/") == 1
    server.silent = True
    with pytest.raises(Unreachable, match="timed out"):
        client.get("/", timeout_s=0.2)
    server.silent = False
    assert client.get("/") == 2
