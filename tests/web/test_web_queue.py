"""Queue positions on demand: what the API says of a plan, what it refuses, and the command that prints it."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from typer.testing import CliRunner

from controller.cli.main import app as cli
from controller.policy.pool.plan import plan_pool
from controller.policy.types import JobState, JobView, LossTrend, NodeView, PolicySpec, PoolSnapshot, Quota
from controller.web import positions
from controller.web.app import ROOT, create
from controller.web.hosts import Hosts
from controller.web.positions import PlannedPool
from controller.web.server import WebServer

NOW = 1000.0


def waits(key: str, gpus: int = 2, at: float = 0.0, **more: Any) -> JobView:
    return JobView(key, at, 0, 1, gpus, since=at, **more)


def runs(key: str, **more: Any) -> JobView:
    more.setdefault("attained", 500.0)
    return JobView(
        key, 0.0, 0, 1, 2, state=JobState.ADMITTED, since=10.0, bound=(("n1", 2),), nodes=("n1",), **more
    )


def planned_pool(policy: PolicySpec, *jobs: JobView) -> PlannedPool:
    snapshot = PoolSnapshot("p", policy, (NodeView("n1", 2),), jobs)
    return PlannedPool(snapshot, plan_pool(snapshot, NOW), NOW)


class Pools:
    """What the operator gives, without one."""

    def __init__(self) -> None:
        jobs = [waits("b/2", at=700.0), waits("a/1", at=100.0), waits("a/huge", 64, at=50.0), runs("a/r")]
        self.moments = {"p": planned_pool(PolicySpec("fifo", {"max_wait": 600.0}), *jobs)}

    def pools(self) -> list[str]:
        return ["broken", "fresh", "p"]

    def problem(self, pool: str) -> str | None:
        return "spec.queuePolicy: no" if pool == "broken" else None

    def planned(self, pool: str) -> PlannedPool | None:
        return self.moments.get(pool)


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    """A server in a thread of its own, so that the command can be run against it."""
    started, ended = threading.Event(), asyncio.Event()
    loops: list[Any] = []

    async def serve() -> None:
        server = WebServer(create(Pools(), lambda: NOW), "127.0.0.1", 0)
        await server.start()
        loops.extend([asyncio.get_running_loop(), server.port])
        started.set()
        await ended.wait()
        await server.stop()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert started.wait(30)
    yield f"http://127.0.0.1:{loops[1]}"
    loops[0].call_soon_threadsafe(ended.set)
    thread.join(30)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8081", "localhost.evil.example", "127.0.0.1.nip.example", "[evil]", ""],
)
def test_a_page_whose_own_name_resolves_to_the_operator_reads_nothing(base: str, host: str) -> None:
    """DNS rebinding: the browser of somebody with a port-forward sends what the page has it send."""
    port = int(base.rpartition(":")[2])
    for path in (ROOT, f"{ROOT}/p/queue", "/openapi.json"):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request("GET", path, headers={"Host": host})
        answer = connection.getresponse()
        body = answer.read().decode()
        connection.close()
        assert answer.status == 421
        assert json.loads(body)["reason"] == "WrongHost"
        assert "a/1" not in body


@pytest.mark.parametrize(
    ("host", "yes"),
    [
        ("127.0.0.1:40123", True),
        ("localhost", True),
        ("LOCALHOST:1", True),
        ("[::1]:8081", True),
        ("10.96.0.30:8081", True),
        ("queue.example:8081", True),
        ("queue.example", True),
        ("evil.queue.example", False),
        ("queue.example.evil", False),
        ("0x7f.1", False),
    ],
)
def test_addresses_and_the_names_given_may_be_asked_by(host: str, yes: bool) -> None:
    assert Hosts(["Queue.example", " "]).allow(host) is yes


def get(base: str, path: str, method: str = "GET") -> tuple[int, Any]:
    async def ask() -> tuple[int, Any]:
        async with aiohttp.ClientSession() as session, session.request(method, base + path) as answer:
            return answer.status, await answer.json()

    return asyncio.run(ask())


def test_who_waits_in_which_place_and_why(base: str) -> None:
    status, queue = get(base, f"{ROOT}/p/queue")
    assert status == 200
    assert (queue["pool"], queue["policy"], queue["planned"], queue["total"]) == ("p", "fifo", NOW, 3)
    first, second, never = queue["items"]
    assert (first["job"], first["position"], first["reason"]) == ("a/1", 1, "WaitingForGPUs")
    assert (first["waitedSeconds"], first["overdue"]) == (900.0, True)
    assert "needs 1 x 2 GPUs at once; 0 are free" in first["message"]
    assert first["key"] == {"priority": 0, "submitted": 100.0}
    assert (second["job"], second["position"], second["overdue"]) == ("b/2", 2, False)
    assert (never["job"], never["position"], never["reason"]) == ("a/huge", None, "TooLarge")
    assert "at most 2 is right" in never["message"]


def test_only_the_first_if_asked_so(base: str) -> None:
    _, queue = get(base, f"{ROOT}/p/queue?limit=1")
    assert [item["job"] for item in queue["items"]] == ["a/1"]
    assert queue["total"] == 3


def test_one_job_waiting_or_running(base: str) -> None:
    assert get(base, f"{ROOT}/p/queue/b/2")[1]["position"] == 2
    status, running = get(base, f"{ROOT}/p/queue/a/r")
    assert status == 200
    assert (running["state"], running["position"], running["waitedSeconds"]) == ("Admitted", None, None)


def test_the_pools_there_are(base: str) -> None:
    assert get(base, ROOT) == (200, {"items": ["broken", "fresh", "p"]})


@pytest.mark.parametrize(
    ("path", "status", "reason", "said"),
    [
        (f"{ROOT}/none/queue", 404, "PoolNotFound", "no GPUPool 'none'; there are: broken, fresh, p"),
        (f"{ROOT}/broken/queue", 409, "PoolNotUsable", "'broken': spec.queuePolicy: no"),
        (f"{ROOT}/fresh/queue", 503, "NotPlannedYet", "has not been planned yet"),
        (f"{ROOT}/p/queue/a/none", 404, "JobNotFound", "a/none does not stand before GPUPool 'p'"),
        (f"{ROOT}/p/queue?limit=0", 400, "BadRequest", "limit: '0' is not allowed"),
        (f"{ROOT}/p/queue?limit=all", 400, "BadRequest", "limit: 'all' is not allowed"),
        ("/elsewhere", 404, "NotFound", "GET /elsewhere"),
    ],
)
def test_errors_say_what_would_be_right(base: str, path: str, status: int, reason: str, said: str) -> None:
    code, answer = get(base, path)
    assert (code, answer["reason"]) == (status, reason)
    assert said in answer["message"]


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_it_is_read_only(base: str, method: str) -> None:
    status, answer = get(base, f"{ROOT}/p/queue", method)
    assert (status, answer["reason"]) == (405, "MethodNotAllowed")


LAS = {"first_threshold": 100.0, "second_threshold": 1000.0}


@pytest.mark.parametrize(
    ("policy", "job", "key"),
    [
        (PolicySpec("srtf"), waits("a/1", remaining=60.0), {"priority": 0, "remainingSeconds": 60.0}),
        (
            PolicySpec("srtfEst"),
            waits("a/1", estimate=100.0, progress=0.25),
            {"priority": 0, "remainingSeconds": 75.0, "estimateSeconds": 100.0, "progress": 0.25},
        ),
        (
            PolicySpec("srtfEst"),
            waits("a/1"),
            {"priority": 0, "remainingSeconds": None, "estimateSeconds": None, "progress": None},
        ),
        (
            PolicySpec("las", LAS),
            waits("a/1", attained=100.0, at=5.0),
            {"priority": 0, "queue": 2, "attainedGPUSeconds": 100.0, "since": 5.0},
        ),
        (PolicySpec("slaq"), waits("a/1"), {"priority": 0, "predictedGain": None}),  # not known: the last
        (
            PolicySpec("slaq"),
            waits("a/1", loss_trend=LossTrend(1.0, 10.0, drop=0.5, before=1.0, largest=1.0)),
            {"priority": 0, "predictedGain": 0.25},
        ),
        (
            PolicySpec("fairShare"),
            waits("a/1", weight=2.0),
            {"namespaceGPUs": 2, "weight": 2.0, "gpusPerWeight": 2.0, "priority": 0},
        ),
    ],
)
def test_every_policy_s_key_is_spelled_out(policy: PolicySpec, job: JobView, key: dict[str, Any]) -> None:
    from controller.web.positions import place

    found = place(planned_pool(policy, job, runs("a/r", remaining=1.0, estimate=1.0)), "a/1", NOW)
    assert found is not None
    assert dict(found.key) == {**key, "submitted": job.submitted}


def test_an_address_that_is_taken_is_named() -> None:
    async def run() -> None:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            port = other.getsockname()[1]
            with pytest.raises(OSError, match=rf"cannot listen on 127\.0\.0\.1:{port}"):
                await WebServer(create(Pools(), lambda: NOW), "127.0.0.1", port).start()

    asyncio.run(run())


def test_a_request_whose_head_never_ends_is_refused(base: str) -> None:
    host, _, port = base.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=10) as stranger:
        stranger.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: ")
        sent = 0
        try:
            while sent < 4 << 20:
                sent += stranger.send(b"x" * 65536)
            answer = stranger.recv(100)
        except ConnectionError:
            answer = b""
    assert sent < 4 << 20 or answer.startswith(b"HTTP/1.1 400")


# -- the command --------------------------------------------------------------------------------------------


def command(*arguments: str) -> Any:
    return CliRunner().invoke(cli, ["queue", *arguments], env={"COLUMNS": "160"})


def test_the_command_prints_the_queue(base: str) -> None:
    result = command("p", "--url", base)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["#", "JOB", "GPUS", "WAITED", "REASON", "RANKED", "BY"]
    assert lines[1].split()[:4] == ["1", "a/1", "2", "15m"]
    assert "WaitingForGPUs, overdue" in lines[1]
    assert lines[-1] == "3 waiting in pool p (fifo)"


def test_one_job_and_json(base: str) -> None:
    shown = command("p", "--job", "a/1", "--url", base)
    assert "needs 1 x 2 GPUs at once" in shown.stdout
    assert json.loads(command("p", "--url", base, "--json").stdout)["total"] == 3
    assert json.loads(command("p", "--job", "b/2", "--url", base, "--json").stdout)["position"] == 2
    assert json.loads(command("p", "--job", "2", "-n", "b", "--url", base, "--json").stdout)["position"] == 2


def test_one_namespace_s_jobs_in_their_places_in_the_whole_queue(base: str) -> None:
    found = json.loads(command("p", "-n", "b", "--url", base, "--json").stdout)
    assert (found["total"], [(i["job"], i["position"]) for i in found["items"]]) == (1, [("b/2", 2)])
    assert command("p", "-n", "b", "--url", base).stdout.splitlines()[-1] == (
        "1 of namespace b waiting in pool p (fifo)"
    )


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["none"], 3, "there is no GPUPool 'none'; there are: broken, fresh, p (PoolNotFound)"),
        (["p", "--job", "a/b/c"], 2, "--job: 'a/b/c' is not allowed, expected NAME or NAMESPACE/NAME"),
        (["p", "--job", "/b"], 2, "--job: '/b' is not allowed, expected NAME or NAMESPACE/NAME"),
        (["p", "--job", "none", "-n", "a"], 3, "(JobNotFound)"),
        (["p", "--job", "a/none"], 3, "(JobNotFound)"),
        (["../p"], 3, "(NotFound)"),
        (["p", "--limit", "0"], 2, "--limit"),
    ],
)
def test_the_command_says_what_is_wrong(base: str, arguments: list[str], code: int, said: str) -> None:
    result = command(*arguments, "--url", base)
    assert result.exit_code == code
    assert said in " ".join(result.stderr.split())


def test_nobody_there(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # not listening
        result = command("p", "--url", f"http://127.0.0.1:{taken.getsockname()[1]}")
    assert (result.exit_code, "no queue API at" in result.stderr) == (5, True)
    refused = command("p", "--url", "file:///etc")
    assert (refused.exit_code, "--url: 'file:///etc' is not allowed" in refused.stderr) == (2, True)


def stub_kubectl(folder: Path, script: str) -> None:
    tool = folder / "kubectl"
    tool.write_text(f'#!/bin/sh\necho "$@" > {folder}/asked\n{script}\n')
    tool.chmod(0o755)


def test_by_port_forward(base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `kubectl port-forward` prints is read, and it is ended afterwards."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    port = base.rpartition(":")[2]
    stub_kubectl(
        tmp_path, f'echo $$ > {tmp_path}/pid\necho "Forwarding from 127.0.0.1:{port} -> 8081"\nexec sleep 600'
    )
    result = command("p")
    assert result.exit_code == 0, result.stderr
    assert (tmp_path / "asked").read_text().split() == [
        "port-forward", "-n", "evalstop-system", "deployment/evalstop-operator", ":8081",
        "--pod-running-timeout=3s",
    ]  # fmt: skip
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_port_forward_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    stub_kubectl(tmp_path, 'echo "Error: deployments.apps not found" >&2; exit 1')
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))  # so the statuses cannot be asked either
    result = command("p")
    assert result.exit_code == 5
    assert "deployments.apps not found" in " ".join(result.stderr.split())
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert "cannot run kubectl" in command("p").stderr


def test_with_quotas_each_place_says_how_it_stands_with_its_own() -> None:
    quotas = (Quota(("a",), 4), Quota(("b",), 0, 2))
    jobs = (waits("a/1", at=9.0), waits("x/1", at=1.0), waits("b/2", at=2.0), runs("b/r"))
    snapshot = PoolSnapshot("p", PolicySpec("fifo"), (NodeView("n1", 2),), jobs, quotas=quotas)
    told = positions.queue(PlannedPool(snapshot, plan_pool(snapshot, NOW), NOW), NOW, 9)
    assert [(i.job, i.position, i.reason, i.key["quota"]) for i in told.items] == [
        ("a/1", 1, "WaitingForGPUs", "guaranteed"),
        ("x/1", 2, "WaitingForGPUs", "borrows"),
        ("b/2", None, "AtQuotaLimit", "at limit"),
    ]
