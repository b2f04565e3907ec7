"""The API client for launchers: connections are shared, and a server that closed one is asked anew."""

from __future__ import annotations

import asyncio
import gc
import os
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from controller.kube.errors import Unavailable
from deploy.local import pki
from deploy.local.api import LocalApi


class CountingServer(ThreadingHTTPServer):
    """Answers each GET with how many connections there were; ``closing``: and closes without a word."""

    daemon_threads = True
    connections = 0
    closing = False
    silent = False

    def __init__(self, *given: object) -> None:
        super().__init__(*given)  # type: ignore[arg-type]
        self.asked, self.answers, self.over = threading.Event(), threading.Event(), threading.Event()

    def process_request(self, request, client_address) -> None:  # type: ignore[no-untyped-def]
        self.connections += 1
        super().process_request(request, client_address)

    def shutdown_request(self, request) -> None:  # type: ignore[no-untyped-def]
        super().shutdown_request(request)
        self.over.set()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: CountingServer

    def do_GET(self) -> None:
        if self.server.silent:
            self.server.asked.set()
            self.server.answers.wait(5.0)
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


def _client(server: CountingServer) -> LocalApi:
    return LocalApi(f"https://127.0.0.1:{server.server_port}", None, None)


def _in_a_thread(client: LocalApi, path: str = "/") -> tuple[threading.Thread, list[int]]:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(client.get(path)))
    thread.start()
    return thread, found


def test_requests_share_a_connection_whichever_thread_makes_them(server: CountingServer) -> None:
    client = _client(server)
    assert [client.get("/") for _ in range(3)] == [1, 1, 1]
    thread, found = _in_a_thread(client)
    thread.join()
    assert (found, client.get("/")) == ([1], 1)


def test_requests_at_once_have_a_connection_each(server: CountingServer) -> None:
    client = _client(server)
    server.silent = True
    thread, first = _in_a_thread(client)
    assert server.asked.wait(10.0)
    server.silent = False
    assert client.get("/") == 2
    server.answers.set()
    thread.join()
    assert first == [2]  # answered when there were two


def test_a_server_that_closed_is_asked_anew(server: CountingServer) -> None:
    client = _client(server)
    server.closing = True
    assert [client.get("/") for _ in range(3)] == [1, 2, 3]


def test_what_comes_too_late_answers_nothing_else(server: CountingServer) -> None:
    client = _client(server)
    assert client.get("/") == 1
    server.silent = True
    with pytest.raises(Unavailable, match=r"no answer within 0\.2 s"):
        client.get("/", timeout_s=0.2)
    server.silent = False
    server.answers.set()
    assert client.get("/") == 2


def test_it_answers_in_a_running_loop_and_in_a_child(server: CountingServer) -> None:
    client = _client(server)

    async def ask() -> int:
        return int(client.get("/"))

    assert asyncio.run(ask()) == 1
    child = os.fork()
    if not child:
        os._exit(_client(server).get("/"))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2


def test_whoever_is_done_leaves_no_connection(server: CountingServer) -> None:
    client = _client(server)
    assert client.get("/") == 1
    del client
    gc.collect()
    assert server.over.wait(10.0)


def test_nobody_there_has_no_status(server: CountingServer) -> None:
    with pytest.raises(Unavailable, match="ConnectionRefusedError") as found:
        LocalApi("https://127.0.0.1:1", None, None).get("/")
    assert found.value.status == 0
