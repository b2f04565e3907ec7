"""The way to the cluster and the rights there: kubeconfigs, servers that cannot help, callers who may not."""

from __future__ import annotations

import asyncio
import http.server
import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli_shell import Shell
from typer.testing import CliRunner

from controller.cli.connection import Connection
from controller.cli.main import app
from controller.kube.client import PAGE
from tests.support import cli_world as w
from tests.support.fresh_namespace import fresh_namespace
from tests.support.waiting import wait_until

MANY = PAGE + 10
pytestmark = pytest.mark.cluster


def test_context_and_kubeconfig_as_kubectl_has_them(shell: Shell, tmp_path: Path) -> None:
    content = yaml.safe_load(shell.kubeconfig.read_text())
    current = content["current-context"]
    other = {**content["contexts"][0], "name": "elsewhere"}
    other["context"] = {**other["context"], "namespace": "default"}
    second = tmp_path / "second"
    second.write_text(yaml.safe_dump({**content, "contexts": [other], "current-context": "elsewhere"}))
    both = f"{shell.kubeconfig}{os.pathsep}{second}"
    assert "over" in shell.out("list", KUBECONFIG=both), "the first current-context counts"
    assert "namespace default" in shell("list", "--context", "elsewhere", KUBECONFIG=both).stderr
    assert "over" in shell.out("list", "--kubeconfig", str(shell.kubeconfig), KUBECONFIG="/nowhere")
    told = shell("list", "--context", "elsewher", code=5, KUBECONFIG=both).stderr
    assert "closest: elsewhere" in told
    assert current in shell("list", "--context", "zzz", code=5).stderr


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no such file"),
        ("", "it is a folder"),
        ("just words", "expected a YAML mapping"),
        ("a: [", "kubeconfig"),
        ("{}", "no current context"),
    ],
)
def test_no_usable_kubeconfig(tmp_path: Path, content: str | None, said: str) -> None:
    path = tmp_path / "config"
    if content == "":
        path.mkdir()
    elif content is not None:
        path.write_text(content)
    result = CliRunner().invoke(app, ["list"], env={"KUBECONFIG": str(path)})
    assert (result.exit_code, said in result.stderr, "next:" in result.stderr) == (5, True, True)


def test_a_server_whose_certificate_nobody_vouches_for(shell: Shell, tmp_path: Path) -> None:
    content = yaml.safe_load(shell.kubeconfig.read_text())
    for entry in content["clusters"]:
        for field in ("certificate-authority", "certificate-authority-data"):
            entry["cluster"].pop(field, None)
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(content))
    told = shell("list", "--kubeconfig", str(path), code=5).stderr
    assert "a certificate is not valid" in told
    assert "get a new kubeconfig" in told


def server_config(folder: Path, url: str) -> Path:
    path = folder / "config"
    path.write_text(
        yaml.safe_dump(
            {
                "clusters": [{"name": "c", "cluster": {"server": url}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
                "current-context": "x",
            }
        )
    )
    return path


def test_an_api_server_that_is_down(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # not listening
        path = server_config(tmp_path, f"http://127.0.0.1:{taken.getsockname()[1]}")
        for command in (["list"], ["doctor"], ["why", "x"]):
            result = CliRunner().invoke(app, command, env={"KUBECONFIG": str(path)})
            assert result.exit_code == 5, result.output
            assert "kubectl cluster-info" in result.stderr


@pytest.fixture
def answers(tmp_path: Path) -> Iterator[Any]:
    """A server that gives one answer to everything: `answers(404, "no")` is its kubeconfig. Who
    brings its token gets an empty list."""
    servers = []

    def start(status: int, body: str, token: str = "") -> Path:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                known = token and self.headers.get("Authorization") == f"Bearer {token}"
                data = b'{"metadata": {"resourceVersion": "1"}, "items": []}' if known else body.encode()
                self.send_response(200 if known else status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return server_config(tmp_path, f"http://127.0.0.1:{server.server_address[1]}")

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "body", "code", "said"),
    [
        (404, "404 page not found", 3, "install EvalStop's CRDs"),
        (
            401,
            '{"kind": "Status", "message": "Unauthorized", "reason": "Unauthorized"}',
            4,
            "log in to the cluster",
        ),
        (500, "boom", 5, "kubectl cluster-info"),
        (200, "<html>a login page</html>", 5, "kubectl cluster-info"),
    ],
)
def test_clusters_that_cannot_help(answers: Any, status: int, body: str, code: int, said: str) -> None:
    env = {"KUBECONFIG": str(answers(status, body))}
    for command in (["list"], ["why", "x"]):
        result = CliRunner().invoke(app, command, env=env)
        assert (result.exit_code, said in result.stderr) == (code, True), f"{command}: {result.output}"


# -- rights -------------------------------------------------------------------------------------------------


def test_a_caller_without_rights_is_told_which_and_whom_to_ask(shell: Shell) -> None:
    nobody = str(shell.plane.kubeconfig_for("cli-nobody"))
    for command in (["list"], ["why", "over"], ["pools"], ["mode", "over", "Off"]):
        told = shell(
            *command,
            "--kubeconfig",
            nobody,
            *([] if command == ["pools"] else ["-n", shell.namespace]),
            code=4,
        )
        assert "cli-nobody" in told.stderr
        own = f"rolebinding evalstop-cli-nobody -n {shell.namespace}"
        where = "clusterrolebinding" if command == ["pools"] else own
        assert f"kubectl create {where}" in told.stderr
        role = "edit" if command[0] == "mode" and "cannot patch" in told.stderr else "view"
        assert f"--clusterrole={role} --user=cli-nobody" in told.stderr


def test_who_may_look_may_not_change(shell: Shell) -> None:
    viewer = str(shell.plane.kubeconfig_for("cli-viewer"))
    shell.plane.kubectl(
        "create",
        "rolebinding",
        "cli-viewer",
        "-n",
        shell.namespace,
        "--clusterrole=view",
        "--user=cli-viewer",
    )
    here = ["-n", shell.namespace, "--kubeconfig", viewer]

    def aggregated() -> bool:
        return CliRunner().invoke(app, ["list", *here]).exit_code == 0

    wait_until(aggregated, "role view includes RLHFJobs")
    assert "over" in shell.out("list", *here)
    assert "Stopped" in shell.out("why", "over", *here)
    assert "healthy" in shell.out("top", "--once", *here), "without a right to pools, jobs alone"
    told = shell("mode", "healthy", "Off", *here, code=4).stderr
    assert "cannot change" in told
    rights = CliRunner().invoke(app, ["doctor", *here]).stdout
    assert "you may not: patch rlhfjobs.evalstop.dev (for mode, stop, resume, pin)" in rights


def test_more_jobs_than_a_page_of_a_list_has(shell: Shell) -> None:
    """Pages are put together, and the table is whole. (A table of a thousand: test_cli_pages.py.)"""
    from controller.cli import cluster
    from controller.kube.resources import RLHFJOBS

    with fresh_namespace(shell.plane, "cli-many") as namespace:
        bodies = [w.job(f"run-{i:04}", namespace, shell.pool) for i in range(MANY)]

        async def make(api: cluster.CallerApi) -> None:
            for start in range(0, MANY, 50):
                await asyncio.gather(*(api.create(RLHFJOBS, body) for body in bodies[start : start + 50]))

        cluster.run(make, Connection(str(shell.kubeconfig)))
        lines = shell.out("list", "-n", namespace).splitlines()
        assert len(lines) == MANY + 1
        assert lines[-1].startswith(f"run-{MANY - 1:04}")
        assert len(json.loads(shell.out("list", "-n", namespace, "-o", "json"))["items"]) == MANY


def test_credential_plugins_are_run(tmp_path: Path, answers: Any) -> None:
    """As clouds use them: the kubeconfig names a program that prints a token."""
    plugin = tmp_path / "plugin"
    credential = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": "s3cr3t"},
    }
    plugin.write_text(f"#!/bin/sh\necho '{json.dumps(credential)}'\n")
    plugin.chmod(0o755)
    path = answers(401, '{"message": "Unauthorized", "reason": "Unauthorized"}', "s3cr3t")
    content = yaml.safe_load(path.read_text())
    content["users"][0]["user"] = {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": str(plugin),
            "interactiveMode": "Never",
        }
    }
    path.write_text(yaml.safe_dump(content))
    result = CliRunner().invoke(app, ["list"], env={"KUBECONFIG": str(path)})
    assert (result.exit_code, "No RLHFJobs" in result.stderr) == (0, True), result.output
    plugin.write_text("#!/bin/sh\necho the session has expired >&2\nexit 1\n")
    result = CliRunner().invoke(app, ["list"], env={"KUBECONFIG": str(path)})
    assert (result.exit_code, "log in to the cluster" in result.stderr) == (4, True), result.output
    assert "plugin, which gives credentials, ended with exit code 1: the session has expired" in result.stderr
