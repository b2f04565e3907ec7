"""The operator as a process: ready, alive, its log of decisions, its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controller.kube.cache import WentBack, key_of
from controller.kube.connect import connect
from controller.kube.resources import PODS, RLHFJOBS
from controller.operator.engine import Engine
from controller.policy import decision_log
from deploy.local.plane import Plane
from deploy.local.ports import free_port
from tests.bench.faults.proxy import FaultyProxy, Upstream
from tests.support.fake_kubelet import FakeKubelet
from tests.support.operator_rig import OPERATOR, SETTINGS, Rig, eventually
from tests.support.waiting import wait_until

# Tests kill operators, and the next one waits for as long as the Lease runs.
LEASE = {
    "EVALSTOP_LEASE_SECONDS": "5",
    "EVALSTOP_LEASE_RENEW_SECONDS": "4",
    "EVALSTOP_LEASE_RETRY_SECONDS": "0.5",
}


@pytest.fixture
def start(
    installed: Path, repository: Path, tmp_path: Path
) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts operators; those still running at the end are killed."""
    running: list[subprocess.Popen[str]] = []

    def run(descriptors: int | None = None, **settings: str) -> subprocess.Popen[str]:
        environ = {k: v for k, v in os.environ.items() if not k.startswith("EVALSTOP_")}
        environ |= {"KUBECONFIG": str(installed), "EVALSTOP_HOST": "127.0.0.1", "EVALSTOP_METRICS_PORT": "0"}
        environ |= LEASE | settings
        process = subprocess.Popen(
            [sys.executable, "-m", "controller.operator"],
            cwd=repository,
            env=environ,
            stderr=(tmp_path / "operator.log").open("w"),
            text=True,
            preexec_fn=None if descriptors is None else lambda: resource.setrlimit(*limited(descriptors)),
        )
        running.append(process)
        return process

    yield run
    for process in running:
        if process.poll() is None:
            process.kill()
            process.wait()


def limited(descriptors: int) -> tuple[int, tuple[int, int]]:
    """So many, half of them before anything is raised."""
    return resource.RLIMIT_NOFILE, (descriptors // 2, descriptors)


def ask(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=2) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def test_it_gets_ready_works_logs_its_decisions_and_ends_on_sigterm(
    rig: Rig, kubelet: FakeKubelet, start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    port, metrics, path = free_port(), free_port(), tmp_path / "decisions.jsonl"
    shown = {"EVALSTOP_METRICS_PORT": str(metrics), "EVALSTOP_METRICS_ACCESS": "open"}
    log = {"EVALSTOP_DECISION_LOG": str(path), "EVALSTOP_INSTANCE": "test"}
    process = start(EVALSTOP_PORT=str(port), **shown, **log)
    wait_until(lambda: ask(port, "/healthz")[0] == 200, "health", 60)
    wait_until(lambda: ask(port, "/readyz")[0] == 200, f"readiness: {ask(port, '/readyz')[1]}", 60)

    async def story() -> None:
        async with rig:
            await rig.make_pool()
            await rig.make_job("run")
            await eventually(lambda: rig.is_true("run", "Running"))

    asyncio.run(story())
    _, text = ask(metrics, "/metrics")
    assert 'evalstop_passes_total{kind="job",result="wrote"}' in text
    assert 'evalstop_api_calls_total{outcome="200",resource="rlhfjobs",verb="patch-status"}' in text
    assert f'namespace="{rig.namespace}"' not in text
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    assert time.monotonic() - began < 15
    replayed = list(decision_log.replay(path.read_text().splitlines()))
    assert {r.kind for r in replayed} == {"job", "pool"}
    assert f"{rig.namespace}/run" in {r.subject for r in replayed}
    for line in replayed:
        assert line.replayed == line.recorded, f"line {line.line}: {line.kind} {line.subject}"


def test_three_hundred_idle_connections_cost_no_probe_no_scrape_and_no_api_call(
    rig: Rig, kubelet: FakeKubelet, start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    """A tenant holds what connections can be had to each port; the operator may have 256 descriptors."""
    ports = {name: free_port() for name in ("EVALSTOP_PORT", "EVALSTOP_METRICS_PORT", "EVALSTOP_QUEUE_PORT")}
    numbers = {name: str(port) for name, port in ports.items()}
    start(256, EVALSTOP_METRICS_ACCESS="open", EVALSTOP_SCRAPE_CONCURRENCY="32", **numbers)
    health, metrics = ports["EVALSTOP_PORT"], ports["EVALSTOP_METRICS_PORT"]
    wait_until(lambda: ask(health, "/readyz")[0] == 200, "readiness", 60)

    def outcomes(word: str) -> float:
        lines = [line for line in ask(metrics, "/metrics")[1].splitlines() if word in line]
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("evalstop_api_calls"))

    async def story() -> None:
        async with rig:
            await rig.make_pool()
            await rig.make_job("run")
            await eventually(lambda: rig.is_true("run", "Running"), 60)

    with contextlib.ExitStack() as stack:
        for n in range(300):
            with contextlib.suppress(OSError):
                peer, port = f"127.0.0.{1 + n % 50}", list(ports.values())[n % 3]
                wire = socket.create_connection(("127.0.0.1", port), timeout=5, source_address=(peer, 0))
                stack.enter_context(wire)
        for _ in range(3):
            assert ask(health, "/healthz")[0] == 200
            assert ask(metrics, "/metrics")[0] == 200
        asyncio.run(story())
        assert ask(health, "/readyz")[0] == 200
        assert outcomes('outcome="broken"') == 0
        assert "evalstop_connections_turned_away_total" in ask(metrics, "/metrics")[1]
    assert "Too many open files" not in (tmp_path / "operator.log").read_text()


def test_killed_hard_and_started_again(
    rig: Rig, kubelet: FakeKubelet, start: Callable[..., subprocess.Popen[str]]
) -> None:
    """SIGKILL between admission and running; the next process goes on."""

    async def story() -> None:
        async with rig:
            first = start(EVALSTOP_PORT="0")
            await rig.make_pool()
            await rig.make_job("run", replicas=2)
            await eventually(lambda: rig.is_true("run", "Admitted"))
            first.kill()
            first.wait()
            start(EVALSTOP_PORT="0")
            await eventually(lambda: rig.is_true("run", "Running"))
            record = await rig.record("run")
        assert record.attempt == 1

    asyncio.run(story())


def test_wrong_settings_and_missing_credentials_end_with_code_2(repository: Path, tmp_path: Path) -> None:
    def run(**environ: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "controller.operator"],
            cwd=repository,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), **environ},
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.returncode, done.stderr

    code, text = run(EVALSTOP_WORKERS="many")
    assert (code, text) == (
        2,
        "evalstop operator: EVALSTOP_WORKERS='many': expected a whole number from 1 to 256 (workers)\n",
    )
    code, text = run(KUBECONFIG=str(tmp_path / "none"))
    assert code == 2
    assert "no such file" in text


def test_it_ends_with_a_failure_when_the_watch_ends(rig: Rig) -> None:
    """kopf gives up on some faults of the API by design; nothing is watched then, so the process must end."""

    async def story() -> None:
        async with rig:
            engine = rig.engine()
            life = asyncio.create_task(engine.run(asyncio.Event()))
            await eventually(lambda: ready(engine), what="readiness")
            assert engine._kopf is not None
            engine._kopf._stop.set()
            with pytest.raises(RuntimeError, match="kopf has ended"):
                await asyncio.wait_for(life, 60)

    async def ready(engine: object) -> bool:
        return not engine.health.unready()  # type: ignore[attr-defined]

    asyncio.run(story())


def test_it_lists_anew_when_a_watch_is_refused_as_too_old(rig: Rig, plane: Plane, tmp_path: Path) -> None:
    """410 as the answer to a watch itself, at which kopf by itself ends."""
    upstream = Upstream.of(plane, OPERATOR, ("system:serviceaccounts", "system:authenticated"))

    async def story() -> None:
        async with rig, FaultyProxy(upstream, random.Random(1)) as proxy:
            rig._connection = await connect({"KUBECONFIG": str(proxy.kubeconfig(tmp_path))})
            engine = rig.engine()
            stop = asyncio.Event()
            life = asyncio.create_task(engine.run(stop))
            await eventually(lambda: ready(engine), what="readiness")
            proxy.on("410")  # every other time
            for _ in range(60):
                proxy.on("away")  # the streams break, and are asked for anew
                proxy.off("away")
                if proxy.felt["410"] > 6 or (await asyncio.wait([life], timeout=1.0))[0]:
                    break
            assert proxy.felt["410"] > 6
            proxy.off("410")
            made = await rig.make_job("seen")
            await eventually(lambda: knows(engine, made), what="the next job to be seen")
            stop.set()
            assert await life == 0

    async def knows(engine: Engine, made: dict[str, Any]) -> bool:
        return engine.cache.find(RLHFJOBS, key_of(made)) is not None

    async def ready(engine: object) -> bool:
        return not engine.health.unready()  # type: ignore[attr-defined]

    asyncio.run(story())


def test_it_ends_with_a_failure_when_the_cluster_was_restored_from_a_backup(rig: Rig) -> None:
    """What is cached is then not to be compared with what comes: a part ends, and with it the process."""

    async def story() -> None:
        async with rig:
            engine = rig.engine(replace(SETTINGS, relist_seconds=1.0))
            life = asyncio.create_task(engine.run(asyncio.Event()))
            await eventually(lambda: ready(engine), what="readiness")
            engine.cache.stores[PODS].replace(
                [], 10**15
            )  # a LIST at a version that the cluster is not at yet
            with pytest.raises(WentBack, match="restored from a backup"):
                await asyncio.wait_for(life, 60)

    async def ready(engine: object) -> bool:
        return not engine.health.unready()  # type: ignore[attr-defined]

    asyncio.run(story())


def test_the_api_server_is_restarted_under_it(
    rig: Rig, kubelet: FakeKubelet, plane: Plane, start: Callable[..., subprocess.Popen[str]]
) -> None:
    """It stays up or ends to be started again, and goes on either way."""
    port = free_port()

    async def story() -> None:
        async with rig:
            process = start(EVALSTOP_PORT=str(port))
            await rig.make_pool()
            await rig.make_job("run", replicas=2)
            await eventually(lambda: rig.is_true("run", "Running"))
            await rig.make_job("next", replicas=2)
            await eventually(lambda: rig.has_reason("next", "Admitted", "WaitingForGPUs"))
            await asyncio.to_thread(plane.restart, "kube-apiserver")
            await rig.patch("run", {"spec": {"runState": "Stopped"}})
            lives = [process]

            async def goes_on() -> bool:
                """As in its Deployment: one that has ended, its Lease lost or its watch, is started anew."""
                if lives[-1].poll() is not None:
                    assert lives[-1].returncode == 1
                    lives.append(start(EVALSTOP_PORT=str(port)))
                return await rig.is_true("next", "Running")

            await eventually(goes_on, 60, what="the next job to run")

    asyncio.run(story())
