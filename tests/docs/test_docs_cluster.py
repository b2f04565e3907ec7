"""The pages' shell blocks, line by line, on a real API server without an operator."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from docs_commands import ALL, SAID
from docs_table import LOOK, MENTIONED, WITHIN
from typer.testing import CliRunner

from controller.cli.main import app
from deploy.local.acquire import Found
from deploy.local.errors import PlaneError
from deploy.local.plane import Plane
from tests.support import cli_world as w
from tests.support.fresh_namespace import fresh_namespace
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.cluster
SYSTEM = "evalstop-system"
ENDLESS = (" -w",)
# What ends with another code than 0, and is right.
CODES = {
    "kubectl auth can-i patch gpupools": 1,
    "kubectl auth can-i get secrets": 1,
    "evalstop doctor": 1,  # there is no operator here
}


class Desk:
    """Where somebody sits with the pages: a shell, a kubeconfig, the repository's folder."""

    def __init__(self, plane: Plane, namespace: str, folder: Path) -> None:
        self.plane, self.namespace, self.folder = plane, namespace, folder
        self.environ = {
            **os.environ,
            "KUBECONFIG": str(plane.kubeconfig),
            "PATH": f"{plane.binaries['kubectl'].parent}:{os.environ['PATH']}",
        }

    def runs(self, command: str) -> str:
        """As it stands on the page, but in this test's namespace."""
        wanted = next((code for start, code in CODES.items() if command.startswith(start)), 0)
        code, said = self.tried(command)
        assert code == wanted, f"{command}: {code}\n{said}"
        return said

    def succeeds(self, command: str) -> bool:
        return self.tried(command)[0] == 0

    def tried(self, command: str) -> tuple[int, str]:
        """Its exit code, and what it said."""
        here = re.sub(r"(-n |--namespace )team\b", rf"\g<1>{self.namespace}", command)
        if here.startswith("evalstop "):
            done = CliRunner().invoke(app, shlex.split(here)[1:], env=self.environ)
            code, said = done.exit_code, done.output
            assert done.exception is None or isinstance(done.exception, SystemExit), said
        else:
            ran = subprocess.run(
                ["bash", "-c", here], cwd=self.folder, env=self.environ, capture_output=True, text=True,
                timeout=120,
            )  # fmt: skip
            code, said = ran.returncode, ran.stdout + ran.stderr
        return code, said


@pytest.fixture(scope="module")
def desk(tools: dict[str, Found], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """On a cluster of its own: the pages name things as a user would, who has nothing else there."""
    folder = tmp_path_factory.mktemp("desk")
    (folder / "examples").symlink_to(ROOT / "examples")
    page = (ROOT / "docs" / "use" / "writing-a-job.md").read_text()
    first, *_ = re.findall(r"^```yaml\n(.*?)^```", page, re.M | re.S)
    (folder / "job.yaml").write_text(first)
    with Plane(tmp_path_factory.mktemp("plane") / "p") as plane:
        w.install(plane)
        with fresh_namespace(plane, "docs") as namespace:
            yield Desk(plane, namespace, folder)


def lines(page: str) -> list[str]:
    (path,) = (ROOT / "docs").rglob(page)
    text = path.read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S)
    found = [re.sub(r"\s+#\s.*", "", line) for block in blocks for line in block.splitlines()]
    return [line for line in found if not line.endswith(ENDLESS)]


def test_the_pages_commands_on_a_real_api_server(desk: Desk) -> None:
    said: dict[str, str] = {}
    for command in lines("writing-a-job.md"):
        said[command] = desk.runs(command)
        if command == "kubectl apply -n team -f job.yaml":
            w.write(desk.plane, desk.namespace, "my-run", w.shadow())  # what an operator would note
    assert "would have stopped it at step 240" in said["evalstop why my-run -n team"]
    assert "mode Enforce (was Shadow)" in said["evalstop mode my-run Enforce -n team"]
    for command in lines("security.md"):
        if command.startswith("kubectl auth can-i create "):
            # The API server's authorizer hears of the binding made before a moment after it was made.
            wait_until(partial(desk.succeeds, command), "the binding counts")
        said[command] = desk.runs(command)
    asked = [s for c, s in said.items() if "can-i" in c and "--list" not in c]
    assert [("yes" in s.splitlines(), "no" in s.splitlines()) for s in asked] == [
        (True, False), (False, True), (False, True)
    ]  # fmt: skip
    w.put(desk.plane, desk.namespace, "nowhere", "waits", w.queued())
    for command in lines("troubleshooting.md"):
        said[command] = desk.runs(command)
    assert "Name:         waits" in said["kubectl -n team describe rlhfjob waits"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"gangs": {}}, 'unknown field "spec.gangs"'),
        ({"gang": {"replicas": 0, "gpusPerReplica": 2}}, "spec.gang.replicas: Invalid value"),
    ],
)
def test_refusals_are_as_the_page_says(desk: Desk, change: dict[str, Any], told: str) -> None:
    assert told in (ROOT / "docs" / "use" / "writing-a-job.md").read_text()
    job = yaml.safe_load((desk.folder / "job.yaml").read_text())
    job["spec"] |= change
    with pytest.raises(PlaneError, match=re.escape(told)):
        desk.plane.kubectl("apply", "-n", desk.namespace, "-f", "-", stdin=yaml.safe_dump(job))


def shown(page: str, start: str) -> list[str]:
    """Commands of a page's indented blocks that begin so, without comments."""
    (path,) = (ROOT / "docs").rglob(page)
    text = path.read_text()
    found = [line.strip() for line in re.findall(rf"^    ({re.escape(start)}.*)$", text, re.M)]
    return [re.sub(r"\s+#\s.*", "", line) for line in found]


def test_what_operators_are_told_to_look_at(desk: Desk) -> None:
    """On an installation without pods: the names are right, and the objects there."""
    desk.plane.kubectl("apply", "-f", str(ROOT / "deploy" / "manifests" / "operator.yaml"))
    try:
        commands = shown("alerts.md", "kubectl ") + shown("high-availability.md", f"kubectl -n {SYSTEM} get")
        assert len(commands) == 3
        for command in commands:
            if found := re.search(r" logs (deploy/\S+)", command):  # nobody starts its pods here
                desk.runs(f"kubectl -n {SYSTEM} get {found[1]}")
            elif command.endswith("get lease evalstop-operator"):
                with pytest.raises(AssertionError, match=r'"evalstop-operator" not found'):
                    desk.runs(command)
            else:
                desk.runs(command)
    finally:
        desk.plane.kubectl("delete", "-f", str(ROOT / "deploy" / "manifests" / "operator.yaml"))


def test_what_operators_are_told_to_change(desk: Desk) -> None:
    """How an installation is cleared away; in a dry run, since other tests share the cluster."""
    admin = desk.plane.client()
    admin.post(f"{w.GROUP}/gpupools", w.pool("research"))
    taint = {"key": "evalstop.dev/pool", "effect": "NoSchedule"}
    node = {"metadata": {"name": "docs-node"}, "spec": {"taints": [taint]}}
    admin.post("/api/v1/nodes", node)
    desk.plane.kubectl("apply", "-f", str(ROOT / "deploy" / "manifests" / "priorityclass.yaml"))
    try:
        (patch,) = shown("install.md", "kubectl patch gpupool research")
        assert "patched" in desk.runs(patch)
        for kind in (
            "delete rlhfjobs",
            "delete gpupools",
            "delete crd",
            "delete priorityclass",
            "taint nodes",
        ):
            (command,) = shown("install.md", f"kubectl {kind}")
            said = desk.runs(f"{command} --dry-run=server")
            assert "(server dry run)" in said or "untainted" in said or "No resources found" in said
        w.put(desk.plane, desk.namespace, "research", "run", None)
        (patch,) = (s.command for s in ALL if s.command.startswith("kubectl patch rlhfjob run --type=merge"))
        assert "patched" in desk.runs(f"{patch} -n {desk.namespace}")
    finally:
        admin.delete("/api/v1/nodes/docs-node")
        admin.delete(f"{w.GROUP}/gpupools/research")


def left_to_this() -> list[str]:
    """Commands that the table of sentences leaves to the next test."""
    found = []
    for shown in SAID:
        key = max((key for key in WITHIN if shown.command.startswith(key)), key=len, default="")
        if shown.command not in MENTIONED and WITHIN.get(key) == LOOK:
            found.append(shown.command)
    return list(dict.fromkeys(found))


def test_commands_within_sentences(desk: Desk) -> None:
    """As they stand, but for names in capitals; what would take an installation away, or bring one, dryly.
    A search in what they print (grep) is left to who looks for something."""
    # Who may do what is there already; with these it is whole.
    more = (
        "manifests/operator",
        "manifests/priorityclass",
        "manifests/admission",
        "manifests/networkpolicy",
        "extender/extender",
    )
    manifests = [ROOT / "deploy" / f"{path}.yaml" for path in more]
    desk = Desk(desk.plane, desk.namespace, ROOT)
    desk.environ["EDITOR"] = "true"  # who changes nothing
    w.put(desk.plane, desk.namespace, "anywhere", "looked-at", w.running())
    for path in manifests:
        desk.plane.kubectl("apply", "-f", str(path))
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases"
    desk.plane.client().post(leases, {"metadata": {"name": "evalstop-operator"}})
    try:
        commands = left_to_this()
        assert len(commands) > 20
        for command in commands:
            here = re.sub(r" \| grep .*", "", command)
            here = here if shutil.which("jq") else re.sub(r" \| jq .*", "", here)
            here = re.sub(r"\b(NAME|JOB)\b", f"looked-at -n {desk.namespace}", here)
            here = re.sub(r"\bNAMESPACE\b", desk.namespace, here)
            here = re.sub(r"\bkubectl (apply|delete)\b", r"kubectl \1 --dry-run=server", here)
            # The definitions are there already, by this test's own hand.
            here = here.replace("--server-side", "--server-side --force-conflicts")
            # Nobody starts the pods of these Deployments here.
            here = re.sub(r"\blogs (--previous )?(deploy/\S+)", r"get \2", here)
            desk.runs(here)
    finally:
        desk.plane.client().delete(f"{leases}/evalstop-operator")
        for path in manifests:
            desk.plane.kubectl("delete", "-f", str(path))
