"""The engine's routes, as HTTP/1.1 with JSON on a Unix socket: generate, take, abort, weights, report."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import socketserver
import stat
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from examples.engine.batching import Batch, Refused, Response
from examples.engine.model import MOST_BYTES, WeightsError, digest, read

MOST_BODY = 16 << 20  # bytes
MOST_WAIT = 10.0  # s that `take` waits


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Listens on a Unix socket; a socket that an earlier process left is replaced."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, path: Path, batch: Batch, folder: Path | None) -> None:
        self.batch, self.folder = batch, folder
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISSOCK(path.stat().st_mode):
                path.unlink()
        super().__init__(str(path), _Handler)
        os.chmod(path, 0o660)

    def get_request(self) -> tuple[socket.socket, Any]:
        accepted, _ = super().get_request()
        return accepted, ("unix", 0)  # BaseHTTPRequestHandler wants an address


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    server_version = "plain-engine"
    sys_version = ""
    timeout = 120  # s, for a peer that says nothing

    def do_GET(self) -> None:
        if self.path != "/report":
            self._answer(404, {"message": f"path {self.path}: expected /report"})
            return
        self._answer(200, self.server.batch.report())

    def do_POST(self) -> None:
        routes = {
            "/generate": self._generate,
            "/take": self._take,
            "/abort": self._abort,
            "/weights": self._weights,
        }
        if self.path not in routes:
            self.close_connection = True
            self._answer(404, {"message": f"path {self.path}: expected one of {', '.join(routes)}"})
            return
        try:
            length = int(self.headers.get("Content-Length") or -1)
            if not 0 <= length <= MOST_BODY:
                self.close_connection = True
                raise Refused(f"body: {length} bytes, expected at most {MOST_BODY}, and their number", 413)
            self._answer(200, routes[self.path](self.rfile.read(length)))
        except Refused as fault:
            self._answer(fault.status, {"message": str(fault)})
        except WeightsError as fault:
            self._answer(400, {"message": str(fault)})
        except (ValueError, KeyError, TypeError, RecursionError) as fault:
            self._answer(400, {"message": f"{type(fault).__name__}: {str(fault)[:200]}"})

    def _generate(self, body: bytes) -> dict[str, object]:
        document = json.loads(body)
        responses = [
            Response(
                str(given["id"])[:100],
                tuple(map(int, given["prompt"])),
                list(map(int, given.get("tokens", ()))),
                int(given["most"]),
                tuple(map(int, given["draw"])),  # type: ignore[arg-type]  # its length is checked
                float(given.get("temperature", 1.0)),
            )
            for given in document["requests"]
        ]
        return {"waiting": self.server.batch.add(int(document["version"]), responses)}

    def _take(self, body: bytes) -> dict[str, object]:
        wait = float(json.loads(body or b"{}").get("wait", 0.0))
        news, version = self.server.batch.take(min(MOST_WAIT, max(0.0, wait)))
        return {"version": version, "tokens": news.tokens, "ended": news.ended}

    def _abort(self, body: bytes) -> dict[str, object]:
        ids = json.loads(body).get("ids")
        return {"aborted": self.server.batch.abort(None if ids is None else set(map(str, ids)))}

    def _weights(self, body: bytes) -> dict[str, object]:
        if (self.headers.get("Content-Type") or "").startswith("application/json"):
            document = json.loads(body)
            version, wanted = int(document["version"]), str(document["digest"])
            content = self._file(str(document["path"]))
        else:
            version, wanted = int(self.headers["X-Weights-Version"]), str(self.headers["X-Weights-Digest"])
            content = body
        found = digest(content)
        if found != wanted:
            raise Refused(f"digest: the weights have {found}, expected {wanted}", 409)
        self.server.batch.load(read(content), version, found)
        return {"version": version, "digest": found}

    def _file(self, name: str) -> bytes:
        folder = self.server.folder
        if folder is None:
            raise Refused("path: no shared folder of weights was given to this engine (--weights)")
        path = (folder / name).resolve()
        if folder.resolve() not in path.parents:
            raise Refused(f"path: {name[:100]!r} lies outside of the shared folder")
        try:
            with path.open("rb") as file:
                return file.read(MOST_BYTES + 1)
        except OSError as fault:
            raise Refused(f"path: {name[:100]!r} cannot be read ({fault.strerror})", 404) from None

    def _answer(self, status: int, document: dict[str, object]) -> None:
        body = json.dumps(document, separators=(",", ":")).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: a line for each take would be all there is to read."""
