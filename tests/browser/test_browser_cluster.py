"""The dashboard on a real API server: real tokens, real rights, an RLHFJob with a real operator."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from playwright.sync_api import Locator, expect

from deploy.local.api import LocalApi
from deploy.local.plane import Plane
from deploy.local.ports import free_port
from tests.support.dashboard_world import job_object, judged, over_optimising, pool_object, with_record
from tests.support.fresh_namespace import fresh_namespace
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = ROOT / "deploy" / "manifests"
API = "/apis/evalstop.dev/v1alpha1"
POOL = "dashboard-pool"
DASHBOARD = "system:serviceaccount:evalstop-system:evalstop-dashboard"
OPERATOR = "system:serviceaccount:evalstop-system:evalstop-operator"
SERVICE_ACCOUNTS = ["system:serviceaccounts", "system:authenticated"]


def ask(port: int, path: str, token: str = "") -> tuple[int, str]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


@contextmanager
def process(module: str, log: Path, kubeconfig: Path, **settings: str) -> Iterator[subprocess.Popen[bytes]]:
    environ = {k: v for k, v in os.environ.items() if not k.startswith("EVALSTOP_")}
    environ |= {"KUBECONFIG": str(kubeconfig), **settings}
    with log.open("wb") as stderr:
        started = subprocess.Popen([sys.executable, "-m", module], cwd=ROOT, env=environ, stderr=stderr)
        try:
            yield started
            started.send_signal(signal.SIGTERM)
            assert started.wait(45) == 0, log.read_text()[-2000:]
        finally:
            if started.poll() is None:
                started.kill()
                started.wait()


class Cluster:
    """Two namespaces, each with a job, and tokens of ServiceAccounts with various rights."""

    def __init__(self, plane: Plane, first: str, second: str, port: int) -> None:
        self.plane, self.first, self.second, self.port = plane, first, second, port
        self.admin: LocalApi = plane.client()

    def token(self, name: str, cluster_role: str = "", everywhere: bool = False) -> str:
        """A real token of a ServiceAccount made for it, bound in its own namespace or in all."""
        kubectl, subject = self.plane.kubectl, f"--serviceaccount={self.first}:{name}"
        kubectl("create", "serviceaccount", name, "-n", self.first)
        if cluster_role and everywhere:
            binding = f"{self.first}-{name}"
            kubectl("create", "clusterrolebinding", binding, f"--clusterrole={cluster_role}", subject)
        elif cluster_role:
            kubectl("create", "rolebinding", name, "-n", self.first, f"--clusterrole={cluster_role}", subject)
        if cluster_role:
            # The API server's authorizer hears of a binding, and of what `view` is made of, a moment later;
            # a no that the dashboard gets until then it keeps for half a minute.
            wait_until(lambda: self.may_list(name), f"{name} to have its rights")
        return kubectl("create", "token", name, "-n", self.first, "--audience=evalstop-dashboard").strip()

    def may_list(self, name: str) -> bool:
        """Whether the API server lets a ServiceAccount of the first namespace list RLHFJobs there."""
        attributes = {
            "group": "evalstop.dev",
            "resource": "rlhfjobs",
            "verb": "list",
            "namespace": self.first,
        }
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": f"system:serviceaccount:{self.first}:{name}",
                "resourceAttributes": attributes,
            },
        }
        answer = self.admin.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
        return answer["status"]["allowed"] is True

    def write(self, namespace: str, name: str, evals: int) -> None:
        """The status of a run with so many evals, as an operator would write it."""
        pool = pool_object(POOL)
        obj = job_object(namespace, name, created=time.time(), pool=POOL)
        found = with_record(obj, judged(obj, over_optimising(3)[:evals], time.time(), pool), pool)
        path = f"{API}/namespaces/{namespace}/rlhfjobs/{name}"
        self.admin.patch(f"{path}/status", {"status": found["status"]})


@pytest.fixture(scope="module")
def cluster(plane: Plane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The dashboard as it runs in a cluster: with its own ServiceAccount's rights and no others."""
    plane.kubectl("apply", "-f", str(ROOT / "crds"))
    for name in ("namespace", "rbac", "users", "priorityclass"):
        plane.kubectl("apply", "-f", str(MANIFESTS / f"{name}.yaml"))
    documents = list(yaml.safe_load_all((ROOT / "deploy" / "dashboard" / "dashboard.yaml").read_text()))
    rights = [d for d in documents if d["kind"] != "Deployment"]
    plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(rights))
    plane.established()
    identity = plane.kubeconfig_for(DASHBOARD, SERVICE_ACCOUNTS)
    port, status_port = free_port(), free_port()
    with (
        fresh_namespace(plane, "dashboard-first") as first,
        fresh_namespace(plane, "dashboard-second") as second,
    ):
        found = Cluster(plane, first, second, port)
        body = pool_object(POOL)
        found.admin.post(f"{API}/gpupools", {**body, "metadata": {"name": POOL}})
        for namespace, name in ((first, "mine"), (second, "theirs")):
            obj = job_object(namespace, name, pool=POOL)
            made: dict[str, Any] = {**obj, "metadata": {"name": name, "namespace": namespace}}
            found.admin.post(f"{API}/namespaces/{namespace}/rlhfjobs", made)
            found.write(namespace, name, 5)
        log = tmp_path_factory.mktemp("dashboard") / "dashboard.log"
        settings = {
            "EVALSTOP_DASHBOARD_PORT": str(port),
            "EVALSTOP_DASHBOARD_STATUS_HOST": "127.0.0.1",
            "EVALSTOP_DASHBOARD_STATUS_PORT": str(status_port),
        }
        with process("controller.web.dashboard", log, identity, **settings):
            wait_until(lambda: ask(status_port, "/readyz")[0] == 200, "the dashboard to be ready")
            yield found
        found.admin.delete(f"{API}/gpupools/{POOL}")
        plane.kubectl("delete", "clusterrolebinding", f"{first}-everything", "--ignore-not-found")
        plane.kubectl("delete", "-f", "-", "--wait=false", stdin=yaml.safe_dump_all(rights))


def test_the_api_servers_word_decides_who_sees_what(cluster: Cluster) -> None:
    assert ask(cluster.port, "/view/jobs")[0] == 401
    assert ask(cluster.port, "/view/jobs", "not.a.token")[0] == 401
    status, text = ask(cluster.port, "/view/jobs", cluster.token("nobody"))
    assert status == 403
    assert f"system:serviceaccount:{cluster.first}:nobody" in text
    reader = cluster.token("reader", "view")
    status, text = ask(cluster.port, "/view/jobs", reader)
    assert status == 200
    assert f"{cluster.first}/mine" in text
    assert "theirs" not in text
    assert ask(cluster.port, f"/view/jobs/{cluster.second}/theirs", reader)[0] == 404
    assert ask(cluster.port, "/view/pools", reader)[0] == 403
    status, text = ask(cluster.port, "/view/jobs", cluster.token("everything", "cluster-admin", True))
    assert f"{cluster.first}/mine" in text
    assert f"{cluster.second}/theirs" in text


def test_a_token_is_pasted_and_a_new_eval_appears(cluster: Cluster, tabs: Callable[..., Any]) -> None:
    page = tabs().page
    page.goto(f"http://127.0.0.1:{cluster.port}/jobs/{cluster.first}/mine")
    page.locator("#token").fill(cluster.token("looker", "view"))
    page.get_by_role("button", name="Sign in").click()
    points = page.locator('figure.chartbox g[id$="pts-score"] use')
    expect(points).to_have_count(5)
    cluster.write(cluster.first, "mine", 6)
    expect(points).to_have_count(6)
    expect(page.locator("#announce")).to_contain_text("step 60")


def test_without_rights_the_page_says_what_to_do(cluster: Cluster, tabs: Callable[..., Any]) -> None:
    tab = tabs()
    tab.page.goto(f"http://127.0.0.1:{cluster.port}/")
    tab.page.locator("#token").fill(cluster.token("stranger"))
    tab.page.keyboard.press("Enter")
    expect(tab.page.locator("main h1")).to_contain_text("403")
    expect(tab.page.locator("main pre")).to_contain_text("kubectl create rolebinding evalstop-view")
    tab.page.close()  # it would go on asking
    assert tab.errors  # the browser's own report of the 403
    assert all("403" in error for error in tab.errors)
    tab.errors.clear()


def test_the_command_serves_the_callers_own_view_with_positions_from_a_real_operator(
    cluster: Cluster, tabs: Callable[..., Any], tmp_path: Path
) -> None:
    """`evalstop dashboard`, and an RLHFJob that asks for more GPUs than its pool has."""
    plane, queue_port = cluster.plane, free_port()
    name = "waits"
    obj = job_object(cluster.second, name, pool=POOL)
    settings = {
        "EVALSTOP_HOST": "127.0.0.1",
        "EVALSTOP_PORT": "0",
        "EVALSTOP_METRICS_PORT": "0",
        "EVALSTOP_QUEUE_PORT": str(queue_port),
    }
    identity = plane.kubeconfig_for(OPERATOR, SERVICE_ACCOUNTS)
    with process("controller.operator", tmp_path / "operator.log", identity, **settings):
        made = {**obj, "metadata": {"name": name, "namespace": cluster.second}}
        cluster.admin.post(f"{API}/namespaces/{cluster.second}/rlhfjobs", made)
        queue = f"{API}/gpupools/{POOL}/queue/{cluster.second}/{name}"
        said: list[tuple[int, str]] = [(0, "")]

        def planned() -> bool:
            said[0] = ask(queue_port, queue)
            return said[0][0] == 200

        try:
            wait_until(planned, "the operator to plan it")
        except AssertionError as error:
            log = (tmp_path / "operator.log").read_text()[-3000:]
            raise AssertionError(f"{error}: {said[0]}\n{log}") from None

        def told(shown: Locator) -> None:
            """A place shows the message that the operator gives of it, which is its newest plan's."""

            def same() -> bool:
                status, text = ask(queue_port, queue)
                message = json.loads(text)["message"] if status == 200 else ""
                return message != "" and message in " ".join((shown.text_content() or "").split())

            wait_until(same, "the page to say what the operator says")

        with command(plane, cluster.second, queue_port, tmp_path) as address:
            page = tabs().open(address)
            expect(page.locator("main")).to_contain_text("waiting")
            page.get_by_role("link", name="Jobs").click()
            row = page.locator("table.jobs tbody tr", has_text=name)
            expect(row).to_be_visible()
            expect(page.locator("main")).not_to_contain_text(f"{cluster.first}/mine")
            row.get_by_role("link", name=name).click()
            expect(page.locator("main h1")).to_contain_text(name)
            told(page.locator("main .lead"))
            page.get_by_role("link", name=POOL).first.click()
            table = page.locator(".scroll[aria-label=Queue]")
            expect(table).to_contain_text(f"{cluster.second}/{name}")
            told(table)
            page.close()  # it would go on asking when nobody is there any more


@contextmanager
def command(plane: Plane, namespace: str, queue_port: int, folder: Path) -> Iterator[str]:
    """`evalstop dashboard` as a user runs it; gives the address that it prints."""
    line = [sys.executable, "-m", "controller.cli", "dashboard", "--no-open", "-n", namespace]
    line += [f"--kubeconfig={plane.kubeconfig}", f"--queue-url=http://127.0.0.1:{queue_port}"]
    with (folder / "command.log").open("w") as stderr:
        running = subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, stderr=stderr, text=True)
    try:
        assert running.stdout is not None
        first = running.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/#key=\S+", first)
        assert found is not None, first + (folder / "command.log").read_text()
        yield found[0]
        running.send_signal(signal.SIGINT)
        assert running.wait(45) == 130
    finally:
        if running.poll() is None:
            running.kill()
            running.wait()
