"""The notifier as a process: it reads over TLS with rights of its own, tells, and ends when it is told to."""

from __future__ import annotations

import http.server
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.environ import help_text
from controller.notify.settings import describe
from tests.support.dashboard_world import (
    job_object,
    judged,
    over_optimising,
    pool_object,
    stopped,
    until_stop,
    with_record,
)
from tests.support.stub_api import stub_api

COMMAND = [sys.executable, "-m", "controller.notify"]  # python -m controller.notify


@pytest.fixture
def receiver() -> Iterator[tuple[str, queue.Queue[dict[str, Any]]]]:
    got: queue.Queue[dict[str, Any]] = queue.Queue()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(202)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/hook?key=s3cret", got
    server.shutdown()
    server.server_close()


def test_a_stop_is_told_by_name_and_the_address_stays_out_of_the_log(
    receiver: tuple[str, queue.Queue[dict[str, Any]]], tmp_path: Path
) -> None:
    url, got = receiver
    now, pool = time.time(), pool_object()
    obj = job_object("team", "halted", created=now - 9000)
    record = stopped(judged(obj, until_stop(obj, over_optimising(104), pool), now - 60, pool), now - 50)
    (tmp_path / "urls").write_text(f"# ours\n{url}\n")
    with stub_api(tmp_path, [with_record(obj, record, pool)]) as kubeconfig:
        environ = {
            **os.environ,
            "KUBECONFIG": str(kubeconfig),
            "EVALSTOP_NOTIFY_URL_FILE": str(tmp_path / "urls"),
            "EVALSTOP_NOTIFY_LINK": "https://board.example.org",
            "EVALSTOP_NOTIFY_PORT": "0",
        }
        with (tmp_path / "log").open("w") as log:
            process = subprocess.Popen(COMMAND, env=environ, stdout=log, stderr=log)
        try:
            event = got.get(timeout=120)
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(60)
    told = (tmp_path / "log").read_text()
    assert code == 0, told
    assert "s3cret" not in told
    assert (event["type"], event["subject"]) == ("dev.evalstop.rlhfjob.stopped", "team/halted")
    assert event["data"]["link"] == "https://board.example.org/jobs/team/halted"


def test_without_addresses_it_does_not_start_and_help_names_the_settings(tmp_path: Path) -> None:
    environ = {**os.environ, "EVALSTOP_NOTIFY_URL_FILE": str(tmp_path / "none")}
    done = subprocess.run(COMMAND, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"EVALSTOP_NOTIFY_URL_FILE='{tmp_path}/none': no such file or directory, expected" in done.stderr
    shown = subprocess.run([*COMMAND, "--help"], capture_output=True, text=True, check=True).stdout
    assert help_text(describe()) in shown
