"""Commands on a real API server, with the caller's own kubeconfig and rights: what they print and return."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import http.server
import json
import os
import pty
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cli_world as w
import pytest
import yaml
from fresh_namespace import fresh_namespace
from typer.testing import CliRunner

from controller.cli import complete
from controller.cli.main import app, complete_for_kubectl
from controller.kube.client import PAGE
from controller.policy import conditions as c
from controller.policy.jobs import Condition
from deploy.local.plane import Plane

MANY = PAGE + 10
pytestmark = pytest.mark.cluster


class Shell:
    """`shell("list", "-o", "json")`: the command, with this world's namespace in its kubeconfig's context."""

    def __init__(self, plane: Plane, namespace: str, pool: str, kubeconfig: Path) -> None:
        self.plane, self.namespace, self.pool, self.kubeconfig = plane, namespace, pool, kubeconfig

    def __call__(self, *arguments: str, code: int = 0, **env: str) -> Any:
        environ = {"KUBECONFIG": str(self.kubeconfig), "COLUMNS": "", **env}
        result = CliRunner().invoke(app, list(arguments), env=environ)
        told = f"{result.stdout}{result.stderr}"
        assert result.exit_code == code, told
        assert result.exception is None or isinstance(result.exception, SystemExit), told
        return result

    def out(self, *arguments: str, **env: str) -> str:
        return str(self(*arguments, **env).stdout)

    def spec(self, name: str) -> dict[str, Any]:
        path = f"{w.GROUP}/namespaces/{self.namespace}/rlhfjobs/{name}"
        found: dict[str, Any] = self.plane.client().get(path)["spec"]
        return found


def kubeconfig_in(folder: Path, source: Path, namespace: str) -> Path:
    """A copy of a kubeconfig whose context names a namespace."""
    content = yaml.safe_load(source.read_text())
    for entry in content["contexts"]:
        entry["context"]["namespace"] = namespace
    path = folder / f"{namespace}.kubeconfig"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture(scope="module")
def shell(plane: Plane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    w.install(plane)
    with fresh_namespace(plane, "cli") as namespace:
        pool = f"pool-{namespace[-6:]}"
        w.fill(plane, namespace, pool)
        kubeconfig = kubeconfig_in(tmp_path_factory.mktemp("cli"), plane.kubeconfig, namespace)
        yield Shell(plane, namespace, pool, kubeconfig)
        plane.client().delete(f"{w.GROUP}/gpupools/{pool}")


# -- looking ------------------------------------------------------------------------------------------------


def test_list_in_every_form(shell: Shell) -> None:
    lines = shell.out("list").splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [
        ["done", "Completed"], ["fresh", "New"], ["healthy", "Running"], ["over", "Stopped"],
        ["refused", "Refused"], ["shadow", "Running"], ["waits", "Queued"],
    ]  # fmt: skip
    assert shell.out("list", "--no-headers").startswith("done ")
    assert len(shell.out("list", "-o", "wide").splitlines()[0].split()) > len(lines[0].split())
    assert shell.out("list", "-o", "name").splitlines()[0] == "rlhfjob.evalstop.dev/done"
    found = json.loads(shell.out("list", "-o", "json"))
    assert (found["kind"], len(found["items"])) == ("List", 7)
    assert yaml.safe_load(shell.out("list", "-o", "yaml")) == found
    everywhere = shell.out("list", "-A").splitlines()
    assert everywhere[0].split()[0] == "NAMESPACE"
    assert [shell.namespace, "over"] in [line.split()[:2] for line in everywhere]


def test_what_json_gives_can_be_applied_again(shell: Shell, kubectl: Any) -> None:
    one = shell.out("get", "over", "-o", "json")
    assert json.loads(one)["kind"] == "RLHFJob"
    assert "managedFields" not in one
    told = kubectl("apply", "--dry-run=server", "-f", "-", "-n", shell.namespace, stdin=one)
    assert "over" in told


def test_labels(shell: Shell) -> None:
    assert len(shell.out("list", "-l", "team=a").splitlines()) == 8
    result = shell("list", "-l", "team=nobody")
    assert result.stdout == ""
    assert f"No RLHFJobs in namespace {shell.namespace} with labels team=nobody." in result.stderr


def test_watch_prints_what_changes(shell: Shell) -> None:
    command = [sys.executable, "-m", "controller.cli", "list", "--watch"]
    environ = {**os.environ, "KUBECONFIG": str(shell.kubeconfig), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as process:
        try:
            assert process.stdout is not None
            first = [process.stdout.readline() for _ in range(8)]
            assert first[-1].startswith("waits")
            w.write(shell.plane, shell.namespace, "waits", w.running())
            assert process.stdout.readline().split()[:2] == ["waits", "Running"]
        finally:
            process.terminate()
            w.write(shell.plane, shell.namespace, "waits", w.queued())


def test_why_history_get_simulate_of_a_stopped_run(shell: Shell) -> None:
    page = shell.out("why", "over")
    assert f"{shell.namespace}/over: Stopped by kDeclines at step 240" in page
    found = json.loads(shell.out("why", "over", "-o", "json"))
    assert (found["decision"]["statistic"], found["decision"]["bestStep"]) == (3.0, 160)
    assert [e["step"] for e in found["evals"]][-1] == 240
    assert yaml.safe_load(shell.out("why", f"{shell.namespace}/over", "-o", "yaml")) == found
    assert ["retained", "160"] in [line.split()[:2] for line in shell.out("get", "over").splitlines()]
    assert "GPUs handed to team/next" in shell.out("history", "over")
    assert len(json.loads(shell.out("history", "over", "-o", "json"))["evals"]) == 12
    outcomes = json.loads(shell.out("simulate", "over", "--rule", "drawdown:max_drop=0.3", "-o", "json"))
    own, other = outcomes["outcomes"]
    assert own["stopped_step"] == 240, "three evals, each more than .01 below the one before"
    assert other["stopped_step"] is None
    assert "(its own)" in shell.out("simulate", "over", "--rule", "scan")


def test_events_are_part_of_the_history(shell: Shell) -> None:
    about = {
        "kind": "RLHFJob",
        "namespace": shell.namespace,
        "name": "done",
        "apiVersion": "evalstop.dev/v1alpha1",
    }
    event = {
        "metadata": {"name": "done.1", "namespace": shell.namespace},
        "involvedObject": about,
        "reason": "BeganAnew",
        "message": "the evaluator changed",
        "type": "Warning",
        "count": 2,
        "firstTimestamp": "2025-11-13T02:13:20Z",
        "lastTimestamp": "2025-11-13T02:14:20Z",
    }
    shell.plane.client().post(f"/api/v1/namespaces/{shell.namespace}/events", event)
    assert "the evaluator changed" in shell.out("history", "done")


def test_pools_and_top(shell: Shell) -> None:
    row = next(line for line in shell.out("pools").splitlines() if line.startswith(shell.pool))
    assert row.split()[1:6] == ["Yes", "fifo", "8", "2", "0"]
    assert "team/next" in shell.out("pools", shell.pool)
    picture = shell.out("top", "--once")
    assert f"{shell.pool}  [" in picture
    assert picture.index("refused") < picture.index("healthy") < picture.index("done")


def test_queue_from_statuses_where_there_is_no_operator(shell: Shell) -> None:
    result = shell("queue", shell.pool, "--operator-namespace", shell.namespace)
    assert "waits" in result.stdout
    assert "1 waiting in pool" in result.stdout
    assert "places in the queue are the operator's to tell" in result.stderr
    one = json.loads(
        shell.out(
            "queue", shell.pool, "--job", f"{shell.namespace}/waits", "-o", "json",
            "--operator-namespace", shell.namespace,
        )
    )  # fmt: skip
    assert (one["position"], one["reason"]) == (None, "WaitingForGPUs")


# -- changing -----------------------------------------------------------------------------------------------


def test_mode(shell: Shell) -> None:
    assert "nothing was changed" in shell.out("mode", "healthy", "off", "--dry-run")
    assert shell.spec("healthy")["mode"] == "Enforce"
    assert shell.out("mode", "healthy", "shadow").strip().endswith("mode Shadow (was Enforce)")
    assert shell.spec("healthy")["mode"] == "Shadow"
    assert "already" in shell.out("mode", "healthy", "Shadow")
    shell.out("mode", "healthy", "Enforce")
    assert "Shadow" in shell("mode", "healthy", "on", code=2).stderr


def test_stop_and_resume_write_what_the_operator_reads(shell: Shell) -> None:
    assert "is to be stopped" in shell.out("stop", "shadow")
    assert shell.spec("shadow")["runState"] == "Stopped"
    shell.out("resume", "over", "--from", "best", "--id", "again")
    assert shell.spec("over")["resume"] == {"from": "Best", "id": "again"}
    shell.out("resume", "over", "--step", "160", "--id", "third")
    assert shell.spec("over")["resume"] == {"from": "Step", "id": "third", "step": 160}
    shell.out("resume", "over", "--from", "latest", "--id", "fourth")
    assert shell.spec("over")["resume"] == {"from": "Latest", "id": "fourth"}
    assert shell.spec("over")["runState"] == "Run"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["resume", "healthy"], 1, "there is nothing to resume"),
        (["resume", "done"], 1, "has ended (Complete)"),
        (["resume", "over", "--from", "step"], 2, "give --step N"),
        (
            ["resume", "over", "--from", "best", "--step", "5"],
            2,
            "--from best or --from latest without --step",
        ),
        (["resume", "over", "--id", "no spaces", "--from", "latest"], 1, "spec.resume.id"),
        (["stop", "done"], 1, "has ended"),
        (["pin", "healthy", "soon"], 2, "expected a whole number or best"),
        (["pin", "fresh", "best"], 1, "has no eval yet"),
        (["pin", "healthy", "1", "2", "3", "4", "5"], 1, "at most 4 are kept"),
        (["simulate", "fresh", "--rule", "scan"], 1, "has no evals to show"),
        (["simulate", "over", "--rule", "nonesuch"], 2, "nonesuch"),
        (["why", "ovr"], 3, "did you mean over?"),
        (["why", "nothing-like-it"], 3, "there are: done, fresh"),
        (["why", "a/b/c"], 2, "give NAME, or NAMESPACE/NAME"),
        (["pools", "nonesuch"], 3, "there is no GPUPool 'nonesuch'"),
        (["list", "-o", "table2"], 2, "table2"),
        (["why"], 2, "Missing argument"),
    ],
)
def test_what_cannot_be_ends_with_its_code_and_what_is_next(
    shell: Shell, arguments: list[str], code: int, said: str
) -> None:
    result = shell(*arguments, code=code)
    told = " ".join(result.stderr.replace("│", " ").split())
    assert said in told
    assert code == 2 or "next:" in told


def test_the_same_name_in_another_namespace_is_pointed_at(shell: Shell) -> None:
    told = shell("why", "over", "-n", "default", code=3).stderr
    assert f"there is one in namespace {shell.namespace}" in told


def test_pin(shell: Shell) -> None:
    assert "pins nothing" in shell.out("pin", "healthy")
    shell.out("pin", "healthy", "40", "best")
    assert shell.spec("healthy")["checkpoints"]["pins"] == [40, 120]
    assert "nothing to change" in shell.out("pin", "healthy", "40")
    shell.out("pin", "healthy", "40", "--remove")
    assert shell.spec("healthy")["checkpoints"]["pins"] == [120]
    there = replace(w.running(proxy=True), pinned=(w.kept(120, "/checkpoints/.evalstop/uid/120"),))
    w.write(shell.plane, shell.namespace, "healthy", there)
    assert "120   pinned" in shell.out("pin", "healthy")
    assert "step 120 is pinned at" in shell.out("pin", "healthy", "120", "--wait")
    shell.out("pin", "healthy", "60")
    told = Condition(c.PINNED, False, "CheckpointMissing", "step 60: it is not there", w.START, 9)
    w.write(shell.plane, shell.namespace, "healthy", replace(there, conditions=(*there.conditions, told)))
    assert "CheckpointMissing: step 60" in shell.out("pin", "healthy")
    late = shell("pin", "healthy", "60", "--wait", "--timeout", "1", code=6).stderr
    assert "is not pinned at 60 after 1 s" in late


def test_wait_ends_when_the_operator_has_done_it(shell: Shell) -> None:
    record = replace(
        w.queued(), resume_id="w1", conditions=(Condition(c.RESUMED, True, "Resumed", "goes on", w.START, 9),)
    )

    def carry_out() -> None:
        # Not before it is asked for: a run that is in the queue already cannot be resumed.
        w.eventually("the request is there", lambda: shell.spec("over").get("resume", {}).get("id") == "w1")
        w.write(shell.plane, shell.namespace, "over", record)

    operator = threading.Thread(target=carry_out)
    operator.start()
    try:
        assert "goes on" in shell.out("resume", "over", "--from", "latest", "--id", "w1", "--wait")
    finally:
        operator.join()
        w.write(shell.plane, shell.namespace, "over", w.stopped())


# -- the way to the cluster ---------------------------------------------------------------------------------


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
        ("just words", "expected a YAML mapping"),
        ("a: [", "kubeconfig"),
        ("{}", "no current context"),
    ],
)
def test_no_usable_kubeconfig(tmp_path: Path, content: str | None, said: str) -> None:
    path = tmp_path / "config"
    if content is not None:
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
        assert "kubectl create rolebinding" in told.stderr


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

    w.eventually("role view includes RLHFJobs", aggregated)
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

        async def make(api: cluster.Cluster) -> None:
            for start in range(0, MANY, 50):
                await asyncio.gather(*(api.create(RLHFJOBS, body) for body in bodies[start : start + 50]))

        cluster.run(make, str(shell.kubeconfig))
        lines = shell.out("list", "-n", namespace).splitlines()
        assert len(lines) == MANY + 1
        assert lines[-1].startswith(f"run-{MANY - 1:04}")
        assert len(json.loads(shell.out("list", "-n", namespace, "-o", "json"))["items"]) == MANY


# -- the shell and kubectl ----------------------------------------------------------------------------------


@pytest.fixture
def completed(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., list[str]]:
    """What kubectl gets for `kubectl rlhf WORDS<TAB>`."""
    monkeypatch.setattr(complete, "PATIENCE", 45.0)  # a shell's is short; a busy machine's answer comes late
    for variable in ("_EVALSTOP_COMPLETE", "COMP_WORDS", "COMP_CWORD"):
        monkeypatch.setenv(variable, "")  # the program sets them for itself; here they must go again

    def ask(*words: str, kubeconfig: str = str(shell.kubeconfig)) -> list[str]:
        monkeypatch.setenv("KUBECONFIG", kubeconfig)
        monkeypatch.setattr(sys, "argv", ["kubectl_complete-rlhf", *words])
        complete_for_kubectl()
        *found, directive = capsys.readouterr().out.splitlines()
        assert directive == ":4"
        return found

    return ask


def test_completion(shell: Shell, completed: Callable[..., list[str]]) -> None:
    assert set(completed("wh")) == {"why", "what-if"}
    assert completed("why", "h") == ["healthy"]
    assert shell.pool in completed("pools", "")
    assert completed("list", "-n", shell.namespace[:-1]) == [shell.namespace]
    assert "glr" in completed("simulate", "over", "--rule", "g")
    assert completed("why", "h", kubeconfig="/nowhere") == [], "one that cannot look offers nothing"


def test_as_a_plugin_of_kubectl(shell: Shell) -> None:
    scripts = Path(sys.executable).parent
    environ = {
        **os.environ,
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
        "KUBECONFIG": str(shell.kubeconfig),
    }
    kubectl = [str(shell.plane.binaries["kubectl"]), "rlhf", "get", "over"]
    done = subprocess.run(kubectl, capture_output=True, text=True, env=environ, check=True)
    assert f"{shell.namespace}/over: Stopped" in done.stdout
    offered = subprocess.run(
        [str(scripts / "kubectl_complete-rlhf"), "po"],
        capture_output=True,
        text=True,
        env=environ,
        check=True,
    )
    assert offered.stdout == "pools\n:4\n"


# -- what stays until it is ended ---------------------------------------------------------------------------


class Screen:
    """A command on a pseudo-terminal: what it draws can be read, and Ctrl-C be pressed."""

    def __init__(self, shell: Shell, *arguments: str) -> None:
        self._reader, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
        environ = {**os.environ, "KUBECONFIG": str(shell.kubeconfig), "TERM": "xterm"}
        environ = {name: value for name, value in environ.items() if name not in ("COLUMNS", "NO_COLOR")}
        command = [sys.executable, "-m", "controller.cli", *arguments]
        self.process = subprocess.Popen(
            command,
            stdin=other,
            stdout=other,
            stderr=other,
            env=environ,
            start_new_session=True,
            close_fds=True,
        )
        os.close(other)
        self.before = ""  # what was drawn before the text that was shown last
        self.drawn = ""

    def shows(self, text: str, seconds: float = 60.0) -> bool:
        """Whether it comes to show a text; what was drawn until then is forgotten."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if text in self.drawn:
                self.before, _, self.drawn = self.drawn.partition(text)
                return True
            if select.select([self._reader], [], [], 0.5)[0]:
                try:
                    self.drawn += os.read(self._reader, 65536).decode("utf-8", "replace")
                except OSError:  # it has ended
                    return text in self.drawn
        return False

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        drain = threading.Thread(target=self._drain, daemon=True)
        drain.start()
        code = self.process.wait(timeout=60)
        drain.join(60)  # it must not read from whatever gets this number next
        os.close(self._reader)
        return code

    def _drain(self) -> None:
        with contextlib.suppress(OSError):
            while os.read(self._reader, 65536):
                pass


def test_top_on_a_screen_follows_the_cluster_until_ctrl_c(shell: Shell) -> None:
    screen = Screen(shell, "top", "--interval", "0.3")
    try:
        assert screen.shows("refused"), screen.drawn
        w.write(shell.plane, shell.namespace, "fresh", w.refused())
        assert screen.shows("2 Refused"), screen.drawn
    finally:
        code = screen.interrupt()
    assert code == 130


def test_the_dashboard_is_served_until_ctrl_c(shell: Shell) -> None:
    screen = Screen(
        shell, "dashboard", "--no-open", "-n", shell.namespace, "--queue-url", "http://127.0.0.1:9"
    )
    try:
        assert screen.shows("http://127.0.0.1:"), screen.drawn
        assert screen.shows("/#key="), screen.drawn  # a line may come in pieces: now the port is whole
        with urllib.request.urlopen(f"http://127.0.0.1:{int(screen.before)}/", timeout=30) as page:
            assert page.status == 200
    finally:
        code = screen.interrupt()
    assert code == 130


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
    plugin.write_text("#!/bin/sh\nexit 1\n")
    result = CliRunner().invoke(app, ["list"], env={"KUBECONFIG": str(path)})
    assert (result.exit_code, "log in to the cluster" in result.stderr) == (4, True), result.output
