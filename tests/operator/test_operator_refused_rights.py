"""An operator that has lost its rights is not ready, and whoever looks at runs is told."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from controller import names
from controller.cli import cluster
from controller.cli.main import app
from controller.kube import refused_rights
from controller.kube.client import Api
from controller.kube.connect import connect
from controller.kube.lease import RefusedNote, Timing, refused
from controller.kube.refused_rights import LAPSED, LASTING, RefusedRights
from controller.kube.resources import EVENTS, JOBS, PODS, RLHFJOBS
from controller.operator.engine import Engine
from controller.operator.process.leader_election import Leadership
from deploy.local.plane import Plane
from tests.support.operator_rig import SETTINGS, Rig, eventually

NO_RIGHT = 'jobs.batch "a" is forbidden: User "op" cannot create resource "jobs" in API group "batch"'
QUOTA = 'jobs.batch "a" is forbidden: exceeded quota: gpus, requested: 8'
TOLD = "the operator has been refused its rights for "
LOOKING = ["list"], ["why", "run"], ["top", "--once"], ["doctor", "run"]
ENDING = 'jobs.batch "a" is forbidden: unable to create new content in namespace ns because it is being'


class Watched:
    """Answers at given times (s), and what is told at the end."""

    def __init__(self) -> None:
        self.now = 0.0
        self.rights = RefusedRights((PODS, JOBS, RLHFJOBS), lambda: self.now, lambda: 1000.0 + self.now)

    def told(self) -> str:
        found = self.rights.lasting()
        return "" if found is None else f"{found.since - 1000.0:g}: {found.what}"


def test_what_is_refused_for_long_is_told_by_its_right_and_since_when() -> None:
    for answers, told in (
        ([(0, "list", PODS, "", 403, "")], "0: list pods"),
        ([(0, "list", PODS, "", 403, ""), (40, "list", PODS, "", 403, "")], "0: list pods"),
        ([(9, "watch", JOBS, "", 403, ""), (0, "list", PODS, "", 403, "")], "0: list pods, watch jobs"),
        ([(0, "list", PODS, "", 403, ""), (40, "list", PODS, "", 200, "")], ""),
        ([(0, "list", PODS, "a", 403, ""), (40, "list", PODS, "b", 200, "")], "0: list pods"),
        ([(0, "list", PODS, "", 403, ""), (40, "watch", PODS, "", 200, "")], "0: list pods"),
        ([(0, "list", PODS, "", 403, ""), (40, "list", PODS, "", 503, "")], "0: list pods"),
        ([(0, "patch-status", RLHFJOBS, "a", 403, NO_RIGHT)], "0: patch rlhfjobs/status"),
        ([(0, "create", JOBS, "a", 403, NO_RIGHT), (9, "create", JOBS, "a", 409, "there")], ""),
        ([(0, "dry-run", JOBS, "a", 403, NO_RIGHT)], "0: create jobs"),
        ([(0, "create", JOBS, "a", 403, QUOTA)], ""),
        ([(0, "create", JOBS, "a", 403, NO_RIGHT), (9, "create", JOBS, "a", 403, QUOTA)], ""),
        ([(0, "create", JOBS, "a", 403, ENDING)], ""),
        ([(0, "list", EVENTS, "", 403, "")], ""),
        ([(0, "list", PODS, "", 403, ""), (50 - LASTING, "list", PODS, "a", 403, "")], "0: list pods"),
        ([(51 - LASTING, "list", PODS, "", 403, "")], ""),
        ([(50 - LAPSED - 1, "list", PODS, "", 403, "")], ""),
    ):  # fmt: skip
        watched = Watched()
        for at, *answer in answers:
            watched.now = at
            watched.rights.answered(*answer)  # type: ignore[arg-type]
        watched.now = 50.0
        assert watched.told() == told, answers


def test_a_lease_tells_what_its_holder_wrote_and_nothing_that_cannot_be_read() -> None:
    note = RefusedNote(1_790_000_000.0, "list pods, watch nodes")
    for written, read in (
        (note.written(), note),
        (RefusedNote(note.since + 0.9, note.what).written(), note),
        ("yesterday list pods", None),
        ("2026-11-28T00:43:47Z", None),
        ("", None),
    ):
        lease = {"metadata": {"annotations": {names.ANNOTATION_REFUSED: written}}}
        assert refused(lease) == read
    assert refused({"metadata": {}}) is None


def test_a_lost_right_makes_unready_and_is_told_until_it_is_back(
    plane: Plane, rig: Rig, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ClusterRoleBinding was deleted: for six minutes and a half all was ready, and all runs well."""
    monkeypatch.setattr(refused_rights, "LASTING", 1.0)
    monkeypatch.setattr(refused_rights, "NAMED", 20)
    # Where commands look for the Lease. No other module may see this: some are loaded by the commands.
    monkeypatch.setattr(cluster, "names", SimpleNamespace(**vars(names) | {"NAMESPACE": namespace}))
    user = f"operator-{namespace}"
    lost = _bind(plane, namespace, user)
    binding = tmp_path / "binding.yaml"
    binding.write_text(yaml.safe_dump(lost))
    operators = plane.kubeconfig_for(user, ["system:authenticated"])

    async def story() -> None:
        async with rig:
            await rig.make_pool()
            connection = await connect({"KUBECONFIG": str(operators)})
            leadership = Leadership(
                Api(connection, 5.0), namespace, names.OPERATOR, "operator-0", Timing(15, 10.0, 0.3)
            )
            settings = replace(SETTINGS, relist_seconds=2.0)  # open watches bring what there is till then
            engine = Engine(settings, connection, scrape=rig._scrape, term=leadership)
            stop = asyncio.Event()
            running = asyncio.create_task(engine.run(stop))
            try:
                await eventually(lambda: ready(engine, 200), what="the operator to be ready")
                await rig.make_job("run", gpus=4)  # of nodes with two: it waits
                for words in LOOKING:
                    assert TOLD not in await said(words)
                await asyncio.to_thread(plane.kubectl, "delete", "-f", str(binding))
                text = await eventually(lambda: ready(engine, 503), 20.0, "it to be unready")
                assert "rights: the API server has refused for" in text
                await eventually(lambda: ready(engine, 503, "list pods"), 20.0, "looks to be refused")
                await eventually(lambda: ready(engine, 503, " rlhfjobs"), 20.0, "kopf to be refused")
                assert engine.term.leads, "its Lease it still has"
                await eventually(told, 10.0, "commands to tell")
                for words in LOOKING:
                    assert TOLD in await said(words), words
                    assert "list pods" in await said(words), words
                assert "evalstop_refused_seconds 0.0" not in engine.metrics.text().decode()
                await asyncio.to_thread(plane.kubectl, "apply", "-f", str(binding))
                await eventually(lambda: ready(engine, 200), 30.0, "it to be ready again")
                await eventually(quiet, 10.0, "commands to be quiet again")
                assert "evalstop_refused_seconds 0.0" in engine.metrics.text().decode()
            finally:
                stop.set()
                assert await running == 0

    async def ready(engine: Engine, status: int, word: str = "") -> str:
        text = await asyncio.to_thread(_readyz, engine.server.port, status)
        return text if word in text else ""

    async def said(words: list[str]) -> str:
        environ = {"KUBECONFIG": str(plane.kubeconfig), "COLUMNS": "200"}
        done = await asyncio.to_thread(CliRunner().invoke, app, [*words, "-n", namespace], env=environ)
        return done.output

    async def told() -> bool:  # of all that /readyz says by now: the Lease says it at its next renewal
        text = await said(LOOKING[0])
        return TOLD in text and "list pods" in text

    async def quiet() -> bool:
        return TOLD not in await said(LOOKING[0])

    asyncio.run(story())


def _readyz(port: int, status: int) -> str:
    """Return what /readyz says where it answers with this status; "": it does not."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            code, text = answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        code, text = error.code, error.read().decode()
    except OSError:
        return ""
    return str(text) if code == status else ""


def _bind(plane: Plane, namespace: str, user: str) -> dict[str, Any]:
    """Give a user the operator's rights, the Lease in a namespace; return the binding that makes up most."""
    manifests = Path(__file__).resolve().parents[2] / "deploy" / "manifests"
    subjects = [{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}]
    made = []
    for obj in yaml.safe_load_all((manifests / "rbac.yaml").read_text()):
        metadata = obj["metadata"]
        if metadata["name"] == "evalstop-leader":
            metadata["namespace"] = namespace
            made.append(obj)
        elif obj["kind"].endswith("Binding") and metadata["name"].startswith("evalstop-operator"):
            metadata["name"] += f"-{namespace}"
            made.append(obj)
        if "subjects" in obj:
            obj["subjects"] = subjects
    plane.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": made}))
    [cluster_wide] = [obj for obj in made if obj["kind"] == "ClusterRoleBinding"]
    return dict(cluster_wide)
