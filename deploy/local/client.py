"""A few requests to the API server with nothing but the standard library.

Enough for a launcher to wait and to ask; programs use a real Kubernetes client.
"""

import contextlib
import http.client
import json
import ssl
import threading
import urllib.parse
from pathlib import Path
from typing import Any

from deploy.local.pki import Pair


class Unreachable(RuntimeError):
    """No answer, or one that is not a success; `status` is the HTTP status or None."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class Client:
    """Requests to one server; `ca` None trusts any certificate (loopback health checks only)."""

    def __init__(self, url: str, ca: Path | None, identity: Pair | None) -> None:
        parts = urllib.parse.urlsplit(url)
        self.url, self.host, self.port = url, parts.hostname or "", parts.port or 443
        self.context = ssl.create_default_context(cafile=ca)
        if ca is None:
            self.context.check_hostname = False
            self.context.verify_mode = ssl.CERT_NONE
        if identity is not None:
            self.context.load_cert_chain(identity.certificate, identity.key)
        self._kept = threading.local()  # .connection: of the last GET, one for each thread

    def get(self, path: str, timeout_s: float = 10.0) -> Any:
        """Return the answer to GET: parsed JSON, else text. Errors: Unreachable."""
        return self.request("GET", path, None, timeout_s)

    def post(self, path: str, body: Any, timeout_s: float = 10.0) -> Any:
        """Return the answer to a POST of JSON. Errors: Unreachable."""
        return self.request("POST", path, body, timeout_s)

    def patch(self, path: str, body: Any, timeout_s: float = 10.0) -> Any:
        """Return the answer to a JSON merge patch (RFC 7386). Errors: Unreachable."""
        return self.request("PATCH", path, body, timeout_s, "application/merge-patch+json")

    def delete(self, path: str, timeout_s: float = 10.0) -> Any:
        """Return the answer to DELETE. Errors: Unreachable."""
        return self.request("DELETE", path, None, timeout_s)

    def request(
        self, method: str, path: str, body: Any, timeout_s: float, content_type: str = "application/json"
    ) -> Any:
        """Return the answer to any request. Errors: Unreachable."""
        payload = None if body is None else json.dumps(body)
        headers = {"Content-Type": content_type}
        try:
            if method == "GET":  # what is asked again and again: a handshake costs ten times the answer
                text, answer = self._asked_again(path, timeout_s)
            else:
                with contextlib.closing(self._connection(timeout_s)) as connection:
                    connection.request(method, path, payload, headers)
                    answer = connection.getresponse()
                    text = answer.read().decode()
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"{method} {self.url}{path}: {error}") from error
        parsed = json.loads(text) if answer.headers.get_content_type() == "application/json" else text
        if answer.status >= 300:
            message = parsed.get("message", text) if isinstance(parsed, dict) else text
            raise Unreachable(f"{method} {self.url}{path}: {answer.status} {message}".strip(), answer.status)
        return parsed

    def _connection(self, timeout_s: float) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(self.host, self.port, timeout=timeout_s, context=self.context)

    def _asked_again(self, path: str, timeout_s: float) -> tuple[str, http.client.HTTPResponse]:
        """Return the answer to GET, by the last one's connection, or a new one if the server closed that."""
        kept: http.client.HTTPSConnection | None = getattr(self._kept, "connection", None)
        self._kept.connection = None  # until it has answered: what is still to come answers no other request
        if kept is not None:
            try:
                return self._got(kept, path, timeout_s)
            except TimeoutError:
                kept.close()
                raise
            except (OSError, http.client.HTTPException):
                kept.close()
        connection = self._connection(timeout_s)
        try:
            return self._got(connection, path, timeout_s)
        except BaseException:
            connection.close()
            raise

    def _got(
        self, connection: http.client.HTTPSConnection, path: str, timeout_s: float
    ) -> tuple[str, http.client.HTTPResponse]:
        connection.timeout = timeout_s
        if connection.sock is not None:
            connection.sock.settimeout(timeout_s)
        connection.request("GET", path)
        answer = connection.getresponse()
        text = answer.read().decode()
        self._kept.connection = connection
        return text, answer

    def succeeds(self, path: str) -> bool:
        """Return whether GET works at this moment."""
        return self.contains(path, "")

    def contains(self, path: str, text: str) -> bool:
        """Return whether GET works at this moment, and its answer holds `text`."""
        try:
            # A starting API server listens before it serves: ask anew rather than wait on one connection.
            return text in str(self.get(path, timeout_s=2.0))
        except Unreachable:
            return False
