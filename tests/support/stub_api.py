"""An API server of some objects in a thread, over TLS, for commands whose start is what is looked at."""

from __future__ import annotations

import base64
import http.server
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from deploy.local.pki import Authority


@contextmanager
def stub_api(folder: Path, jobs: list[dict[str, Any]]) -> Iterator[Path]:
    """Serve RLHFJobs, and yield the kubeconfig of a user with a certificate of its own."""
    authority = Authority(folder / "pki", "ca")
    pair, user = authority.server("server", "api", ["127.0.0.1"]), authority.client("client", "jo", ["g"])

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            name = self.path.partition("?")[0].rpartition("/")[2]
            one = next((job for job in jobs if job["metadata"]["name"] == name), None)
            found = {"metadata": {"resourceVersion": "1"}, "items": jobs}
            data = json.dumps(one or found).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def inline(path: Path) -> str:
        return base64.b64encode(path.read_bytes()).decode()

    path = folder / "kubeconfig"
    cluster = {
        "server": f"https://127.0.0.1:{server.server_port}",
        "certificate-authority-data": inline(authority.pair.certificate),
    }
    whom = {"client-certificate-data": inline(user.certificate), "client-key-data": inline(user.key)}
    path.write_text(
        yaml.safe_dump(
            {
                "clusters": [{"name": "c", "cluster": cluster}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
                "users": [{"name": "u", "user": whom}],
                "current-context": "x",
            }
        )
    )
    try:
        yield path
    finally:
        server.shutdown()
        server.server_close()
