"""The pages' examples: every ``$ evalstop …`` in a fenced block is run, and what it prints stands below it.

    python -m tests.support.cli_docs            # writes these pages anew

The API server is a stub here that gives the objects of `cli_world`, so that names, times and numbers on the
pages stay the same; that commands work on a real one is what test_cli_cluster.py is about.
"""

from __future__ import annotations

import contextlib
import copy
import http.server
import json
import re
import secrets
import shlex
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import yaml
from typer.testing import CliRunner

from controller.cli.main import app
from tests.support import cli_world as w

ROOT = Path(__file__).resolve().parents[2]

PAGES = tuple(
    ROOT / "docs" / f"{page}.md" for page in ("use/cli", "use/reading-a-decision", "operate/troubleshooting")
)
WIDTH = "110"
NOW = w.START + 900.0
BLOCK = re.compile(r"^```\n(\$ .*?)^```$", re.M | re.S)
RLHFJOBS = re.compile(r"/apis/evalstop\.dev/v1alpha1(?:/namespaces/team)?/rlhfjobs(?:/([a-z-]+))?")
GPUPOOLS = re.compile(r"/apis/evalstop\.dev/v1alpha1/gpupools(?:/([a-z0-9-]+))?")


class Stub(http.server.BaseHTTPRequestHandler):
    """RLHFJobs of namespace team and GPUPool a100, as `cli_world` has them; nothing else exists."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if found := RLHFJOBS.fullmatch(path):
            jobs = {n: w.whole(n, r) for n, r in w.records().items()}
            self._answer(jobs, found[1], "rlhfjobs.evalstop.dev")
        elif found := GPUPOOLS.fullmatch(path):
            pool = {**w.pool("a100"), "status": w.pool_status()}
            pool["metadata"]["creationTimestamp"] = "2025-11-01T00:00:00Z"
            self._answer({"a100": pool}, found[1], "gpupools.evalstop.dev")
        elif "/" not in path.rpartition("/namespaces/team/")[2] and "/namespaces/team/" in path:
            self._send(200, {"metadata": {"resourceVersion": "1"}, "items": []})
        else:
            name = path.rpartition("/")[2]
            self._send(404, {"reason": "NotFound", "message": f'persistentvolumeclaims "{name}" not found'})

    def do_PATCH(self) -> None:
        found = RLHFJOBS.fullmatch(self.path.partition("?")[0])
        assert found is not None
        self._send(200, w.whole(found[1], w.records()[found[1]]))

    def _answer(self, objects: dict[str, Any], name: str | None, resource: str) -> None:
        if name is None:
            self._send(200, {"metadata": {"resourceVersion": "1"}, "items": list(objects.values())})
        elif name in objects:
            self._send(200, copy.deepcopy(objects[name]))
        else:
            self._send(404, {"reason": "NotFound", "message": f'{resource} "{name}" not found'})

    def _send(self, status: int, body: Any) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def stub() -> Iterator[dict[str, str]]:
    """The environment in which the pages' commands run."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Stub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config"
        context = {"cluster": "c", "user": "u", "namespace": "team"}
        content = {
            "clusters": [
                {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_address[1]}"}}
            ],
            "contexts": [{"name": "x", "context": context}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "current-context": "x",
        }
        path.write_text(yaml.safe_dump(content))
        yield {"KUBECONFIG": str(path), "COLUMNS": WIDTH, "PATH": folder}
    server.shutdown()
    server.server_close()


def said(command: str, env: dict[str, str]) -> str:
    """What a command prints, at the pages' moment; its exit code last, where it is not 0."""
    name, *arguments = shlex.split(command)
    assert name == "evalstop", command
    with (
        mock.patch.object(time, "time", return_value=NOW),
        mock.patch.object(time, "gmtime", gmtime),
        mock.patch.object(secrets, "token_hex", return_value="5f3a91c2"),  # the end of a request's id
    ):
        result = CliRunner().invoke(app, arguments, env=env)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    lines = result.output.rstrip("\n").replace(env["KUBECONFIG"], "~/.kube/config")
    return lines + (f"\n(exit code {result.exit_code})" if result.exit_code else "")


_GMTIME = time.gmtime


def gmtime(seconds: float | None = None) -> time.struct_time:
    return _GMTIME(NOW if seconds is None else seconds)


def anew(page: str, env: dict[str, str]) -> str:
    """A page with what its commands print now."""

    def block(found: re.Match[str]) -> str:
        out = []
        for line in found[1].splitlines():
            if line.startswith("$ "):
                out.append(f"{line}\n{said(line.removeprefix('$ '), env)}")
        return "```\n" + "\n".join(out) + "\n```"

    return BLOCK.sub(block, page)


def main() -> None:
    with stub() as env:
        for page in PAGES:
            page.write_text(anew(page.read_text(), env))


if __name__ == "__main__":
    main()
