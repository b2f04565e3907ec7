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

KINDS = ("rlhfjobs", "gpupools", "leases", "namespaces")
NAMESPACES = "/api/v1/namespaces"


@contextmanager
def stub_api(
    folder: Path, objects: list[dict[str, Any]], namespace: str = "team", only: str = ""
) -> Iterator[Path]:
    """Serve RLHFJobs, GPUPools and Leases, and yield the kubeconfig of a user with a certificate of its own.

    There is nothing of any other kind, and neither a patch nor a post changes anything: what is posted would
    be taken where nothing of its name is there, and the user has each right that is asked for.

    ``namespace``: the kubeconfig's own, which is there as are those of the objects; ``only``: the one whose
    objects the user may look at, no more.
    """
    there = {namespace, *(obj["metadata"].get("namespace", namespace) for obj in objects)}
    objects = [*objects, *({"kind": "Namespace", "metadata": {"name": name}} for name in sorted(there))]
    authority = Authority(folder / "pki", "ca")
    pair, user = authority.server("server", "api", ["127.0.0.1"]), authority.client("client", "jo", ["g"])

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if only and f"/namespaces/{only}/" not in path:
                self._send(403, _forbidden(path))
            else:
                self._send(*_answer(path, objects))

        def do_PATCH(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self._send(*_answer(self.path.partition("?")[0], objects))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
            self._send(*_taken(self.path.partition("?")[0], body, objects))

        def _send(self, code: int, found: dict[str, Any]) -> None:
            data = json.dumps(found).encode()
            self.send_response(code)
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
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": namespace}}],
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


def _answer(path: str, objects: list[dict[str, Any]]) -> tuple[int, dict[str, Any]]:
    """Return status and body of the answer to a GET."""
    parts = path.strip("/").split("/")
    of_one = "namespaces" in parts[:-1] and not path.startswith(NAMESPACES)
    where = parts[parts.index("namespaces") + 1] if of_one else ""
    if parts[0] in ("api", "apis"):  # of a kind that there is nothing of, by a name
        rest = parts[2 if parts[0] == "api" else 3 :]
        rest = rest[2:] if rest[:1] == ["namespaces"] and len(rest) > 2 else rest
        if len(rest) > 1 and rest[0] not in KINDS:
            return _not_found(*rest[:2])
    if parts[-1] in KINDS or len(parts) < 2 or parts[-2] not in KINDS:
        listed = [
            obj
            for obj in objects
            if f"{obj['kind'].lower()}s" == parts[-1] and where in ("", obj["metadata"].get("namespace"))
        ]
        return 200, {"metadata": {"resourceVersion": "1"}, "items": listed}
    for obj in objects:
        same = obj["metadata"]["name"] == parts[-1] and f"{obj['kind'].lower()}s" == parts[-2]
        if same and where in ("", obj["metadata"].get("namespace")):
            return 200, obj
    return _not_found(f"{parts[-2]}.evalstop.dev", parts[-1])


def _not_found(kind: str, name: str) -> tuple[int, dict[str, Any]]:
    message = f"{kind} {name!r} not found"
    return 404, {"kind": "Status", "status": "Failure", "reason": "NotFound", "message": message, "code": 404}


def _taken(path: str, body: dict[str, Any], objects: list[dict[str, Any]]) -> tuple[int, dict[str, Any]]:
    """Return status and body of the answer to a POST."""
    if path.endswith("accessreviews"):
        return 201, {**body, "status": {"allowed": True}}
    name = body["metadata"].get("name")  # without one it is given one of its own
    if name and _answer(f"{path}/{name}", objects)[0] == 200 and path.rpartition("/")[2] in KINDS:
        message = f"{path.rpartition('/')[2]} {name!r} already exists"
        return 409, {"kind": "Status", "status": "Failure", "reason": "AlreadyExists", "message": message}
    return 201, body


def _forbidden(path: str) -> dict[str, Any]:
    """Return the API server's refusal to list the kind that a path names."""
    kind = path.rpartition("/")[2]
    message = (
        f'{kind} is forbidden: User "jo" cannot list resource "{kind}" in API group "" at the cluster scope'
    )
    return {"kind": "Status", "status": "Failure", "reason": "Forbidden", "message": message, "code": 403}
