"""A real control plane with nodes of local processes, an operator process that serves steps, and jobs with
rollout actors."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from rollouts_world import ROOT, environment

from controller import names
from controller.kube.errors import ApiError
from controller.web.certificates import issue_server, make_authority
from deploy.local.demo import jobs_manifests
from deploy.local.demo.elastic.observer import gpus_of
from deploy.local.plane import Plane
from tests.support.operator_rig import decided_anew

Json = dict[str, Any]
ENGINE = ["python", "-m", "examples.engine", "--socket", "/run/engine/engine.sock", "--slots", "4"]


@dataclass(frozen=True)
class Dies:
    """By which of its writes an operator dies, again and again: `mortal_operator`."""

    about: tuple[str, ...]  # in the path of each write that counts
    at: int = 1
    ends: str = "after"  # or "both"


@dataclass
class Operator:
    """The operator as a process: started, killed, started again at the same address."""

    folder: Path
    kubeconfig: Path
    port: int = 0  # of its step API
    queue: int = 0  # of its queue API
    process: subprocess.Popen[bytes] | None = None
    dies: Dies | None = None
    silent: float | None = None  # s after which a worker group is silent, instead of the product's
    log: Path = field(init=False)

    def __post_init__(self) -> None:
        self.log = self.folder / "operator.log"
        authority = make_authority(datetime.now(UTC))
        pair = issue_server(authority, ["127.0.0.1"], datetime.now(UTC))
        for name, text in (
            ("tls.crt", pair.certificate),
            ("tls.key", pair.key),
            ("ca.crt", authority.certificate),
        ):
            (self.folder / name).write_text(text)
        with socket.socket() as free, socket.socket() as other:
            for one in (free, other):
                one.bind(("127.0.0.1", 0))
            self.port, self.queue = free.getsockname()[1], other.getsockname()[1]

    @property
    def decisions(self) -> Path:
        return self.folder / "decisions.jsonl"

    def start(self) -> None:
        settings = {
            "HOST": "127.0.0.1",
            "PORT": "0",
            "METRICS_PORT": "0",
            "METRICS_ACCESS": "open",
            "QUEUE_PORT": str(self.queue),
            "LEADER_ELECT": "false",
            "DRAIN_SECONDS": "2",
            "DECISION_LOG": str(self.decisions),
            "SCRAPE_ADDRESSES": "Loopback",
            "STEPS_HOST": "127.0.0.1",
            "STEPS_PORT": str(self.port),
            "STEPS_CERTIFICATE": str(self.folder / "tls.crt"),
            "STEPS_KEY": str(self.folder / "tls.key"),
            "STEPS_CA": str(self.folder / "ca.crt"),
            "STEPS_URLS": f"https://127.0.0.1:{self.port}",
        }
        more = {f"EVALSTOP_{name}": value for name, value in settings.items()}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                env=environment(KUBECONFIG=str(self.kubeconfig), **more),
                cwd=ROOT,
                stdout=log,
                stderr=log,
            )

    def command(self) -> list[str]:
        """Return the program and its arguments."""
        if self.silent is not None:
            program = str(Path(__file__).with_name("hasty_operator.py"))
            return [sys.executable, program, str(self.silent)]
        if self.dies is None:
            return [sys.executable, "-m", "controller.operator"]
        program = str(Path(__file__).with_name("mortal_operator.py"))
        return [
            sys.executable,
            program,
            str(self.dies.at),
            self.dies.ends,
            str(self._deaths),
            *self.dies.about,
        ]

    @property
    def _deaths(self) -> Path:
        return self.folder / "deaths.jsonl"

    def deaths(self) -> list[Json]:
        """Return by which write each of its lives died."""
        if not self._deaths.exists():
            return []
        return [json.loads(line) for line in self._deaths.read_text().splitlines()]

    def kill(self) -> None:
        """End it by SIGKILL: nothing is put in order."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.process = None

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)

    @property
    def words(self) -> str:
        return self.log.read_text()[-6000:] if self.log.exists() else ""


class Jobs:
    """Jobs of a namespace in a pool of its own, and what an administrator sees of them."""

    def __init__(self, plane: Plane, namespace: str, pool: str, operator: Operator) -> None:
        self.plane, self.namespace, self.pool, self.operator = plane, namespace, pool, operator
        self._client = plane.client()

    def make_pool(self, **spec: Any) -> None:
        self.apply(jobs_manifests.pool(self.pool, self.namespace, **spec))

    def make(
        self,
        name: str,
        command: list[str],
        rollout: Json | None = None,
        shared: Path | None = None,
        **spec: Any,
    ) -> None:
        """Make a job as `jobs_manifests.job` returns it. ``shared``: folder of this machine that its trainer
        has at /weights, and its actors by ``rollout.weightsVolume``."""
        asked = {} if rollout is None else {"rollout": rollout}
        made = jobs_manifests.job(name, self.namespace, self.pool, command, **asked, **spec)
        if shared is not None:
            volume = {"name": "weights", "hostPath": {"path": str(shared), "type": "Directory"}}
            pod = made["spec"]["workload"]["template"]["spec"]["template"]["spec"]
            pod["volumes"] = [volume]
            pod["containers"][0]["volumeMounts"] = [{"name": "weights", "mountPath": "/weights"}]
            made["spec"]["rollout"]["template"]["spec"]["volumes"] = [volume]
            made["spec"]["rollout"]["weightsVolume"] = "weights"
        self.apply(made)

    def apply(self, *manifests: Json) -> None:
        self.plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(manifests))

    def patch(self, name: str, patch: Json) -> None:
        self.plane.kubectl(
            "-n", self.namespace, "patch", "rlhfjob", name, "--type=merge", "-p", json.dumps(patch)
        )

    def status(self, name: str) -> Json:
        path = f"/apis/{names.API_VERSION}/namespaces/{self.namespace}/rlhfjobs/{name}"
        return dict(self._client.get(path).get("status") or {})

    def pool_status(self) -> Json:
        return dict(self._client.get(f"/apis/{names.API_VERSION}/gpupools/{self.pool}").get("status") or {})

    def condition(self, name: str, kind: str) -> tuple[str, str]:
        found = {c["type"]: c for c in self.status(name).get("conditions") or ()}.get(kind, {})
        return found.get("status", ""), found.get("reason", "")

    def pods(self) -> list[Json]:
        return list(self._client.get(f"/api/v1/namespaces/{self.namespace}/pods")["items"])

    def actors(self, name: str, *, ready: bool = False) -> list[int]:
        """Numbers of a job's actors whose pods run, or are ready."""
        found = []
        for pod in self.pods():
            labels, status = pod["metadata"]["labels"], pod.get("status") or {}
            if labels.get(names.LABEL_JOB) != name or labels.get(names.LABEL_COMPONENT) != "actor":
                continue
            if status.get("phase") in ("Succeeded", "Failed") or not pod["spec"].get("nodeName"):
                continue
            if not ready or _is_ready(status):
                found.append(int(labels[names.LABEL_ACTOR]))
        return sorted(found)

    def says(self, name: str) -> str:
        """What a job's trainer has written."""
        selector = f"batch.kubernetes.io/job-name={name}"
        return self.plane.kubectl("-n", self.namespace, "logs", "-l", selector, "--tail=400")

    def until(self, condition: Callable[[], Any], what: str, seconds: float = 120.0) -> Any:
        """Return the condition's value once it is true; what is not there yet is not true."""
        end = time.monotonic() + seconds
        while True:
            try:
                if found := condition():
                    return found
            except (ApiError, KeyError):
                pass
            process = self.operator.process
            assert process is None or process.poll() is None, self.operator.words
            if time.monotonic() > end:
                raise AssertionError(f"not within {seconds:.0f} s: {what}\n{self.operator.words}")
            time.sleep(0.1)

    def digest(self, name: str) -> tuple[str, int]:
        """Return what a trainer says at its end: SHA-256 of the parameters, tokens trained on."""
        found = re.search(r"parameters sha256 (\w{64}) after (\d+) tokens", self.says(name))
        assert found, self.says(name)
        return found[1], int(found[2])


def _is_ready(status: Json) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or ())


class Observer(threading.Thread):
    """Looks at pods and nothing else: GPUs by node at each look, and GPU-seconds of actors' pods."""

    def __init__(self, jobs: Jobs) -> None:
        super().__init__(daemon=True)
        self._jobs, self._over = jobs, threading.Event()
        self.most: dict[str, int] = {}
        self._seen: dict[str, tuple[float, float, int]] = {}  # uid of an actor's pod: first, last, GPUs
        self.looks = 0
        self.fault: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._over.wait(0.1):
                used: dict[str, int] = {}
                for pod in self._jobs.pods():
                    node, phase = pod["spec"].get("nodeName"), (pod.get("status") or {}).get("phase")
                    if node and phase not in ("Succeeded", "Failed"):
                        used[node] = used.get(node, 0) + gpus_of(pod)
                        self._note(pod)
                self.looks += 1
                for node, gpus in used.items():
                    self.most[node] = max(gpus, self.most.get(node, 0))
        except BaseException as fault:  # told by who stops it
            self.fault = fault

    def _note(self, pod: Json) -> None:
        if pod["metadata"]["labels"].get(names.LABEL_COMPONENT) == "actor":
            uid, now = pod["metadata"]["uid"], time.monotonic()
            first = self._seen[uid][0] if uid in self._seen else now
            self._seen[uid] = first, now, gpus_of(pod)

    @property
    def actors(self) -> int:
        """How many pods of actors there were."""
        return len(self._seen)

    @property
    def gpu_seconds(self) -> float:
        """That all of them held, each from its binding to its end."""
        return sum((last - first) * gpus for first, last, gpus in self._seen.values())

    def stop(self) -> None:
        self._over.set()
        self.join(30)
        if self.fault is not None:
            raise self.fault


def rollout(least: int = 1, most: int = 3, static: int = 2, **more: Any) -> Json:
    engine = {
        "name": "engine",
        "image": names.TRAINER_IMAGE,
        "command": [*ENGINE, "--iteration", "0.02"],
        "resources": {"limits": {names.GPU_RESOURCE: "1"}},
    }
    return {
        "template": {"spec": {"containers": [engine]}},
        "gpusPerActor": 1,
        "actors": {"min": least, "max": most, "static": static},
        "slots": 4,
        **more,
    }


@contextmanager
def running(operator: Operator) -> Iterator[Operator]:
    """The operator until the block ends; all that it decided is decided anew and must be the same."""
    operator.start()
    try:
        yield operator
    finally:
        if operator.process is not None:
            code = operator.stop()
            assert code == 0, operator.words
    if operator.silent is None:
        decided_anew(operator.decisions)
    else:
        again = [*operator.command(), str(operator.decisions)]
        subprocess.run(again, env=environment(), cwd=ROOT, check=True)


def local_digest(folder: Path, given: list[str]) -> tuple[str, int]:
    """Return the same of a run whose responses its own process generates."""
    made = subprocess.run(
        [sys.executable, "-m", "examples.trainer", *given, "--rollouts", "local"],
        env=environment(),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    said = made.stdout + made.stderr
    found = re.search(r"parameters sha256 (\w{64}) after (\d+) tokens", said)
    assert found, said
    return found[1], int(found[2])
