"""The notifier on a real API server, with no more rights than the chart gives it."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.local.plane import Plane
from tests.support import cli_world as w

pytestmark = pytest.mark.cluster
Json = dict[str, Any]
USER = "evalstop-notify"
CHART = w.ROOT / "deploy" / "helm" / "evalstop" / "templates" / "notify.yaml"
RULE = re.compile(
    r"rules:\n  - apiGroups: \[(?P<group>\S+)\]\n    resources: \[(?P<kinds>\S+)\]\n"
    r"    verbs: \[(?P<verbs>.+)\]\n---"
)


class Told:
    """What a receiver was told, each event by its type and subject."""

    def __init__(self) -> None:
        self.got: queue.Queue[Json] = queue.Queue()
        got = self.got

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                got.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(202)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/"

    def of(self, kind: str, subject: str, seconds: float = 90.0) -> Json:
        """Return the next event of a kind about a job; others are passed over."""
        deadline = time.monotonic() + seconds
        while True:
            event = self.got.get(timeout=max(0.1, deadline - time.monotonic()))
            if (event["type"].rpartition(".")[2], event["subject"]) == (kind, subject):
                return event


@pytest.fixture
def told() -> Iterator[Told]:
    made = Told()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def kubeconfig(plane: Plane) -> Path:
    """Of a user with the rights that the chart gives the notifier, and with no others."""
    w.install(plane)
    found = RULE.search(CHART.read_text())
    assert found is not None, "the chart's rights of the notifier are one rule"
    rule = {
        "apiGroups": [found["group"]],
        "resources": [found["kinds"]],
        "verbs": found["verbs"].split(", "),
    }
    role = {"kind": "ClusterRole", "apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": USER}}
    binding = {
        **role,
        "kind": "ClusterRoleBinding",
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": USER},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER}],
    }
    for obj in ({**role, "rules": [rule]}, binding):
        plane.kubectl("apply", "-f", "-", stdin=json.dumps(obj))
    return plane.kubeconfig_for(USER, ["system:authenticated"])


@pytest.fixture
def notifier(told: Told, kubeconfig: Path, tmp_path: Path) -> Callable[[], Any]:
    (tmp_path / "urls").write_text(told.url)
    environ = {
        **os.environ,
        "KUBECONFIG": str(kubeconfig),
        "EVALSTOP_NOTIFY_URL_FILE": str(tmp_path / "urls"),
        "EVALSTOP_NOTIFY_LINK": "https://board.example.org",
        "EVALSTOP_NOTIFY_PORT": "0",
    }

    @contextlib.contextmanager
    def running() -> Iterator[None]:
        with (tmp_path / "log").open("a") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "controller.notify"], env=environ, stdout=log, stderr=log
            )
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(60)
        assert code == 0, (tmp_path / "log").read_text()

    return running


def test_marks_and_stops_are_told_and_told_again_under_the_same_id(
    plane: Plane,
    namespace: str,
    told: Told,
    notifier: Callable[[], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(w, "START", time.time() - 600.0)  # what is a day old is not told again
    w.put(plane, namespace, "a100", "over", w.running())
    with notifier():
        w.put(plane, namespace, "a100", "refused", w.refused())
        mark = told.of("marked", f"{namespace}/refused")
        assert "PoolNotFound" in json.dumps(mark["data"])
        w.write(plane, namespace, "over", w.stopped())
        stop = told.of("stopped", f"{namespace}/over")
        assert stop["data"]["link"] == f"https://board.example.org/jobs/{namespace}/over"
    while not told.got.empty():
        told.got.get()
    with notifier():  # another process: what it cannot know to have been told is told again
        assert told.of("stopped", f"{namespace}/over")["id"] == stop["id"]
