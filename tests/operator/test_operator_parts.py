"""The operator's small parts, each by itself."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from controller import log, names
from controller.kube import nodes as kube_nodes
from controller.kube.backoffs import JitteredBackoffs
from controller.kube.connect import connect
from controller.kube.connection import NoCredentials, bearer_of
from controller.kube.errors import AlreadyExists, Conflict, NotFound, Refused, Unavailable, from_response
from controller.kube.events import Recorder
from controller.kube.packed import Plain
from controller.operator.process.decision_log import DecisionLog
from controller.operator.process.metrics import Metrics
from controller.operator.process.settings import Settings, SettingsError, describe
from controller.operator.reconcile.status_writer import saved_gpu_hours
from controller.operator.state import nodes, run_configmap
from controller.operator.state.job_snapshot import JobSnapshot
from controller.policy.job.record import (
    AdmissionRecord,
    Decision,
    JobRecord,
    ProtectedCheckpoint,
    ResidencyRecord,
    RunFile,
)
from controller.policy.job.types import Desired, GroupSeen, Observed, ScrapeOutcome, ScrapeView
from controller.policy.types import Mode, PolicySpec, Proposal
from controller.web.health import Health
from controller.web.server import WebServer
from controller.web.status import health_app

# -- settings ------------------------------------------------------------------------------------------------


def test_settings_have_defaults_and_are_read_from_the_environment() -> None:
    settings = Settings.from_environ({"POD_NAME": "operator-1", "HOME": "/root"})
    assert (settings.port, settings.workers, settings.instance) == (8080, 8, "operator-1")
    settings = Settings.from_environ({"EVALSTOP_PORT": "0", "EVALSTOP_SCRAPE_ADDRESSES": "Private,Loopback"})
    assert (settings.port, settings.scrape_addresses) == (0, "Private,Loopback")


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("EVALSTOP_PORT", "http", "EVALSTOP_PORT='http': expected a whole number from 0 to 65535"),
        ("EVALSTOP_WORKERS", "0", "a whole number from 1 to 256"),
        ("EVALSTOP_DRAIN_SECONDS", "nan", "a number from 0 to 300"),
        ("EVALSTOP_LOG_LEVEL", "LOUD", "one of DEBUG, INFO, WARNING, ERROR"),
        ("EVALSTOP_SCRAPE_ADDRESSES", "Everywhere", "address classes"),
        ("EVALSTOP_HOST", "", "a text that is not empty"),
        ("EVALSTOP_WORKRES", "3", "no such setting; there are EVALSTOP_ACCESS_IMAGE"),
    ],
)
def test_a_wrong_setting_is_named_with_its_value_and_what_would_be_right(
    variable: str, value: str, words: str
) -> None:
    with pytest.raises(SettingsError, match=re.escape(words)):
        Settings.from_environ({variable: value})


def test_all_wrong_settings_are_told_at_once_and_the_contracts_own_variables_are_no_mistake() -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.from_environ({"EVALSTOP_PORT": "x", "EVALSTOP_WORKERS": "y"})
    assert "EVALSTOP_PORT" in str(caught.value)
    assert "EVALSTOP_WORKERS" in str(caught.value)
    Settings.from_environ({"EVALSTOP_RUN_DIR": "/etc/evalstop/run", "EVALSTOP_REQUEST": "{}"})


def test_the_documentation_lists_every_setting(repository: Path) -> None:
    text = (repository / "docs" / "operate" / "operator.md").read_text()
    for variable, default, _ in describe():
        assert f"| `{variable}` | `{default}` |" in text.replace("| `` |", "| `` |"), variable


# -- nodes ---------------------------------------------------------------------------------------------------


def node(
    name: str, *, ready: str = "True", taints: Any = None, labels: Any = None, **spec: Any
) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {**spec, **({"taints": taints} if taints is not None else {})},
        "status": {
            "allocatable": {names.GPU_RESOURCE: "8"},
            "conditions": [{"type": "Ready", "status": ready}],
        },
    }


@pytest.mark.parametrize(
    ("obj", "usable"),
    [
        (node("a"), True),
        (node("a", ready="False"), False),
        (node("a", ready="Unknown"), False),
        (node("a", unschedulable=True), False),
        ({**node("a"), "status": {}}, False),
        ({**node("a"), "metadata": {"name": "a", "deletionTimestamp": "2026-01-01T00:00:00Z"}}, False),
    ],
)
def test_usable_nodes(obj: dict[str, Any], usable: bool) -> None:
    assert kube_nodes.usable(obj) is usable


OTHER = {"key": "other", "effect": "NoExecute"}
OURS = {"key": names.POOL_TAINT, "value": "p", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("taints", "pool", "wanted"),
    [
        (None, None, None),
        (None, "p", [OURS]),
        ([OTHER], "p", [OTHER, OURS]),
        ([OTHER, OURS], "p", None),
        ([{**OURS, "timeAdded": "x"}, OTHER], "p", None),
        ([OURS, OTHER], "q", [OTHER, {**OURS, "value": "q"}]),
        ([OURS, OTHER], None, [OTHER]),
        ([OURS], None, []),
        ([{**OURS, "effect": "NoExecute"}], "p", [OURS]),
    ],
)
def test_only_our_taint_is_touched(taints: Any, pool: str | None, wanted: Any) -> None:
    assert nodes.wanted_taints(node("a", taints=taints), pool) == wanted


def test_a_node_of_two_pools_belongs_to_the_first_and_an_empty_selector_takes_none() -> None:
    found = [node("a", labels={"x": "1", "y": "1"}), node("b", labels={"y": "1"}), node("c")]
    pools = [("everything", {}), ("older", {"x": "1"}), ("newer", {"y": "1"})]
    assert nodes.assign(pools, found) == {"a": "older", "b": "newer"}
    assert nodes.claims(pools, found) == {"a": ("older", "newer"), "b": ("newer",)}


def test_foreign_gpus_are_those_of_live_pods_on_the_pools_nodes() -> None:
    def pod(uid: str, where: str | None, phase: str = "Running", gpus: int = 2) -> dict[str, Any]:
        limits = {"limits": {names.GPU_RESOURCE: str(gpus)}}
        spec: dict[str, Any] = {"containers": [{"name": "c", "resources": limits}]}
        return {
            "metadata": {"uid": uid},
            "spec": {**spec, **({"nodeName": where} if where else {})},
            "status": {"phase": phase},
        }

    pods = [
        pod("1", "a"),
        pod("3", "b", "Succeeded"),
        pod("4", None, "Pending"),
        pod("5", "b", gpus=0),
    ]
    found = nodes.with_gpus_on(pods, frozenset({"a", "b"}))
    assert nodes.gpus_by_node(found) == {"a": 2}
    assert nodes.with_gpus_on(pods, frozenset({"b"})) == []


# -- the run file -------------------------------------------------------------------------------------------

RUNS = st.builds(
    RunFile,
    attempt=st.integers(0, 99),
    resume_path=st.sampled_from(["", "/ckpt/step-40", "s3://b/ü"]),
    request_id=st.integers(0, 9),
    evaluate=st.booleans(),
    checkpoint=st.booleans(),
    stop=st.booleans(),
    scrape_interval=st.sampled_from([5.0, 15.0, 0.5, 3600.0]),
)


@given(RUNS)
def test_the_run_file_reads_back(run: RunFile) -> None:
    run = replace(run, resume_step=40 if run.resume_path else None)
    assert run_configmap.read({"data": {names.RUN_KEY: run_configmap.render(run)}}) == run


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"attempt": 1}', "null", '{"attempt":1, "resume":null,"request":7}']
)
def test_a_run_file_that_was_tampered_with_is_as_good_as_none(text: str) -> None:
    assert run_configmap.read({"data": {names.RUN_KEY: text}}) is None
    edited = run_configmap.render(RunFile(attempt=1)).replace(" ", "  ")
    assert run_configmap.read({"data": {names.RUN_KEY: edited}}) is None
    assert run_configmap.read(None) is None


# -- logs ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("plain_logs")
def test_log_lines_are_json_with_their_job_and_cannot_be_forged() -> None:
    stream = io.StringIO()
    log.configure("INFO", "json", stream)
    with structlog.contextvars.bound_contextvars(job="ns/run"):
        log.get("evalstop.test").info("pass", message='x\n{"level": "error"}\x1b[31m')
        logging.getLogger("kopf.objects").info("chatter")
        logging.getLogger("aiohttp.access").info("chatter")
        logging.getLogger("kopf.objects").warning("trouble")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["event"] for line in lines] == ["pass", "trouble"]
    assert all(line["job"] == "ns/run" for line in lines)
    assert "\x1b" not in lines[0]["message"]
    assert lines[0]["level"] == "info"


# -- the decision log ---------------------------------------------------------------------------------------


def test_the_decision_log_rotates_between_lines_and_keeps_so_many_files(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "decisions.jsonl"
    written = DecisionLog(path, max_bytes=100, files=3)
    lines = [json.dumps({"n": n, "pad": "x" * 20}) for n in range(12)]
    for line in lines:
        written.append(line)
    written.close()
    files = sorted(path.parent.iterdir(), key=lambda p: p.name, reverse=True)
    assert [f.name for f in files] == ["decisions.jsonl.2", "decisions.jsonl.1", "decisions.jsonl"]
    kept = [line for f in files for line in f.read_text().splitlines()]
    assert kept == lines[-len(kept) :]
    assert all(f.stat().st_size < 100 + 40 for f in files)


def test_a_line_cut_off_by_a_crash_does_not_spoil_the_next(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    path.write_text('{"whole": 1}\n{"cut o')
    written = DecisionLog(path, max_bytes=1000, files=1)
    written.append('{"next": 2}')
    written.close()
    assert path.read_text().splitlines() == ['{"whole": 1}', '{"cut o', '{"next": 2}']


def test_a_full_disk_drops_lines_and_says_how_many(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    path.mkdir()  # cannot be opened as a file
    dropped: list[int] = []
    written = DecisionLog(path, max_bytes=1000, files=1, dropped=lambda: dropped.append(1))
    written.append("{}")
    written.append("{}")
    written.close()
    assert len(dropped) == 2


# -- health -------------------------------------------------------------------------------------------------


def test_a_part_without_progress_is_named_and_readiness_says_what_is_missing() -> None:
    async def run() -> None:
        now = 0.0
        health = Health(60, lambda: now)
        health.beat("loop")
        beat = 0.0
        health.watch("scrapes", lambda: beat)
        missing: list[str | None] = ["not every kind is listed yet"]
        health.require("lists", lambda: missing[0])
        app = health_app(health)
        server = WebServer(app, "127.0.0.1", 0)
        await server.start()
        async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session:

            async def ask(path: str) -> tuple[int, str]:
                async with session.get(path) as answer:
                    return answer.status, await answer.text()

            assert await ask("/healthz") == (200, "ok\n")
            assert await ask("/readyz") == (503, "lists: not every kind is listed yet\n")
            missing[0] = None
            assert (await ask("/readyz"))[0] == 200
            now, beat = 61.0, 60.0
            status, text = await ask("/healthz")
            assert (status, text) == (503, "loop: no progress for 61 s, at most 60 s are expected\n")
            health.beat("loop")
            assert (await ask("/healthz"))[0] == 200
            health.role = lambda: "standby: operator-2 has it"
            assert await ask("/readyz") == (200, "ok\nstandby: operator-2 has it\n")
            assert (await ask("/metrics"))[0] == 404, "they are on a port of their own"
        await server.stop()

    asyncio.run(run())


# -- metrics ------------------------------------------------------------------------------------------------


def test_stages_are_counted_once_as_they_appear_and_reasons_are_bounded() -> None:
    metrics = Metrics()
    proposal = Proposal(70, 40, "ConsecutiveDeclines", 3.0, 3.0)
    decision = Decision("kDeclines", Mode.ENFORCE, proposal, "", 100.0)
    kept = ProtectedCheckpoint(40, 40, "/x", "sha256:", 90.0)
    record = JobRecord()
    for stage in (
        JobRecord(decision=decision, secured=kept),
        JobRecord(decision=replace(decision, retained_at=102.0), secured=kept),
        JobRecord(decision=replace(decision, retained_at=102.0, suspended_at=103.0), secured=kept),
        JobRecord(decision=replace(decision, retained_at=102.0, suspended_at=103.0, pods_gone_at=107.0)),
    ):
        metrics.record_changed(record, stage)
        metrics.record_changed(stage, stage)
        record = stage
    sample = metrics.registry.get_sample_value
    assert sample("evalstop_decisions_total", {"mode": "Enforce", "reason": "ConsecutiveDeclines"}) == 1
    sums = {
        s: sample("evalstop_handover_seconds_sum", {"stage": s}) for s in ("secured", "retained", "suspended")
    }
    assert sums == {"secured": 0.0, "retained": 2.0, "suspended": 3.0}
    assert sample("evalstop_handover_seconds_sum", {"stage": "pods_gone"}) == 7.0
    assert sample("evalstop_handover_seconds_count", {"stage": "pods_gone"}) == 1
    for i in range(100):
        metrics.decided(replace(decision, proposal=replace(proposal, reason=f"R{i}")))
    assert sample("evalstop_decisions_total", {"mode": "Enforce", "reason": "Other"}) == 37


# -- the API's errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "reason", "kind"),
    [
        (404, "NotFound", NotFound),
        (409, "Conflict", Conflict),
        (409, "AlreadyExists", AlreadyExists),
        (422, "Invalid", Refused),
        (403, "Forbidden", Refused),
        (429, "TooManyRequests", Unavailable),
        (500, "InternalError", Unavailable),
        (503, "", Unavailable),
    ],
)
def test_answers_become_exceptions_a_caller_can_tell_apart(status: int, reason: str, kind: type) -> None:
    body = json.dumps({"kind": "Status", "reason": reason, "message": "why"}).encode()
    error = from_response(status, body, {"Retry-After": "7"})
    assert type(error) is kind
    assert (error.message, error.retry_after) == ("why", 7.0)
    plain = from_response(status, b"<html>gateway</html>", {})
    assert "gateway" in plain.message


def test_backoffs_never_run_out_and_begin_anew_each_time() -> None:
    backoffs = JitteredBackoffs(first=1, factor=2, cap=8)
    for _ in range(2):
        pauses = iter(backoffs)
        got = [next(pauses) for _ in range(50)]
        assert got[0] <= 1
        assert max(got) <= 8
        assert min(got[5:]) >= 4


# -- credentials --------------------------------------------------------------------------------------------


def test_without_credentials_the_error_says_what_was_looked_for(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(NoCredentials, match=r"KUBECONFIG is not set; KUBERNETES_SERVICE_HOST is not set"):
        asyncio.run(connect({}, tmp_path))
    with pytest.raises(NoCredentials, match="no such file"):
        asyncio.run(connect({"KUBECONFIG": str(tmp_path / "nothing")}, tmp_path))


def test_a_rotated_service_account_token_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "ca.crt").write_text("")
    now = 0.0
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    connection = asyncio.run(connect(environ, tmp_path))
    assert connection.server == "https://10.0.0.1:443"
    assert connection.authorization() == "Bearer first"
    reads = bearer_of(tmp_path / "token", lambda: now)
    assert reads() == "Bearer first"
    (tmp_path / "token").write_text("second")
    assert reads() == "Bearer first"
    now = 61.0
    assert reads() == "Bearer second"
    (tmp_path / "token").write_text("")
    now = 122.0
    with pytest.raises(NoCredentials, match="is empty"):
        reads()


# -- events -------------------------------------------------------------------------------------------------


class FakeEvents:
    """Takes creates and patches of Events; `there` are the names that exist already."""

    def __init__(self) -> None:
        self.created: list[dict[str, Any]] = []
        self.patched: list[tuple[str, dict[str, Any]]] = []
        self.broken = False

    async def create(self, resource: Any, body: dict[str, Any]) -> dict[str, Any]:
        if self.broken:
            raise Unavailable(500, "InternalError", "down")
        if any(b["metadata"]["name"] == body["metadata"]["name"] for b in self.created):
            raise AlreadyExists(409, "AlreadyExists", "")
        self.created.append(body)
        return body

    async def merge_patch(
        self, resource: Any, name: str, patch: dict[str, Any], namespace: str
    ) -> dict[str, Any]:
        self.patched.append((name, patch))
        return {}


ABOUT = {
    "apiVersion": "evalstop.dev/v1alpha1",
    "kind": "RLHFJob",
    "metadata": {"name": "run", "namespace": "ns", "uid": "u1"},
}


def test_repeats_are_folded_floods_are_cut_and_a_broken_server_is_nobodys_problem() -> None:
    async def run() -> None:
        now = 1000.0
        api, dropped = FakeEvents(), []
        recorder = Recorder(api, "pod-1", lambda: now, burst=3, dropped=dropped.append)  # type: ignore[arg-type]
        for _ in range(5):
            await recorder.post(ABOUT, "Secured", "step 40\nforged line")
        assert len(api.created) == 1
        assert api.created[0]["message"] == "step 40 forged line"
        assert api.created[0]["involvedObject"]["uid"] == "u1"
        now += 301
        await recorder.post(ABOUT, "Secured", "step 40\nforged line")
        assert api.patched[-1][1]["count"] == 6
        for i in range(4):
            await recorder.post(ABOUT, "Other", f"number {i}")
        # Three at first, and five more have been earned in 301 s; the object itself took one.
        assert len(api.created) == 1 + 3, "the burst is the most there can be"
        assert dropped == ["Other"]
        again = Recorder(api, "pod-2", lambda: now, dropped=dropped.append)  # type: ignore[arg-type]
        before = len(api.created)
        assert await again.post(ABOUT, "Secured", "step 40\nforged line"), (
            "a restart counts the same Event up"
        )
        assert len(api.created) == before
        api.broken = True
        assert not await again.post(ABOUT, "New", "cannot be told")

    asyncio.run(run())


# -- GPU-hours saved -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "total", "resumed", "hours"),
    [
        (100, 300, 0, 200 * 8 / 3600),  # 200 steps left, 1 s each, on 8 GPUs
        (100, 300, 50, 200 * 100 / 50 * 8 / 3600),
        (100, None, 0, 0.0),
        (None, 300, 0, 0.0),
        (300, 300, 0, 0.0),
        (100, 300, 100, 0.0),
    ],
)
def test_gpu_hours_saved_follow_the_runs_own_pace(
    step: int | None, total: int | None, resumed: int, hours: float
) -> None:
    scrape = ScrapeView(ScrapeOutcome.OK, step=step, total_steps=total, resumed_step=resumed)
    assert saved_gpu_hours(stopped(scrape)) == pytest.approx(hours)


@pytest.mark.parametrize(
    ("written", "seen", "own", "spent"),
    [
        (50.0, None, 0, 50.0),
        (50.0, GroupSeen("wg-1", charged=60.0), 0, 60.0),  # what is written is as old as its last eval
        (50.0, GroupSeen("wg-2", charged=60.0), 0, 50.0),  # of another group
        (50.0, None, 4, 50.0 + 2 * 4 * 100),  # private GPUs besides
    ],
)
def test_gpu_hours_saved_count_what_a_run_is_charged_of_its_group(
    written: float, seen: GroupSeen | None, own: int, spent: float
) -> None:
    scrape = ScrapeView(ScrapeOutcome.OK, step=100, total_steps=300)
    found = stopped(scrape, seen, own, residency=ResidencyRecord("wg-1", 1, 900.0, charged=written))
    assert saved_gpu_hours(found) == pytest.approx(200 * spent / 100 / 3600)


def stopped(scrape: ScrapeView, seen: GroupSeen | None = None, gpus: int = 4, **more: Any) -> JobSnapshot:
    """A run of two members that ran for 100 s until its rule stopped it. ``gpus``: of each member."""
    proposal = Proposal(70, 40, "R", 3.0, 3.0)
    record = JobRecord(
        admission=AdmissionRecord(1, (), 900.0, running_since=1000.0),
        decision=Decision("kDeclines", Mode.ENFORCE, proposal, "", 1090.0, suspended_at=1100.0),
        **more,
    )
    desired = Desired("ns/run", "u", 1, "gold", 2, gpus, PolicySpec("kDeclines"))
    stored = Plain({"metadata": {"name": "run", "namespace": "ns", "resourceVersion": "1"}})
    observed = Observed(scrape=scrape, group=seen)
    return JobSnapshot("ns/run", stored, None, desired, observed, record, None, ())
