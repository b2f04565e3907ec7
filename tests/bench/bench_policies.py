"""What the admission policies add to a suspend: the operator's patch on two planes, with and without them.

Request by request one after the other, so that whatever else the machine does meets both alike. Baseline: the
plane without policies. Before each suspend the Job is started again, which is not measured, and there is a
pause: no operator suspends as fast as it can, and at such a rate every hundredth request meets the API
server's garbage collection, which the requests themselves then cause. Both planes lie in memory where there
is a tmpfs: policies write nothing, and etcd's disk is shared with whatever else runs. A 99th percentile is
that of the few slowest, which on a shared machine are slow by chance: so one is taken of each of many rounds,
and the median of their differences is told, with its 95 % interval. Not to be run at a real-time priority:
threads of the API server's garbage collection then keep a core for 100 ms, and requests wait behind them. A
round lasts about 55 s, of which 50 are pauses ($EVALSTOP_BENCH_ROUNDS rounds, 12).
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from controller import names, workloads
from controller.kube.errors import ApiError
from deploy.local.api import LocalApi
from deploy.local.components import Options
from deploy.local.plane import Plane
from deploy.local.versions import APISERVER
from tests.bench.rows import Row, quantile
from tests.support.process_cpu import cpu_seconds

ROUNDS = int(os.environ.get("EVALSTOP_BENCH_ROUNDS", "12"))
SUSPENDS = 100  # of a round, on each plane
PAUSE_S = 0.25
ALLOWED = 5.0  # ms that the 99th percentile may be later
_RESAMPLES = 2000
_REPOSITORY = Path(__file__).parents[2]
_OPERATOR = f"system:serviceaccount:{names.NAMESPACE}:evalstop-operator"
_JOBS = "/apis/batch/v1/namespaces/default/jobs"


def run(say: Callable[[str], None]) -> Iterator[Row]:
    with contextlib.ExitStack() as stack:
        memory = Path("/dev/shm")
        where = memory if memory.is_dir() else Path("/var/tmp")
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="evalstop-bench-", dir=where)))
        sides = [_side(stack, folder / name, policies=name == "with") for name in ("with", "without")]
        say(f"two planes are up; warming up, then {ROUNDS} rounds of {SUSPENDS} suspends on each")
        for _ in range(50):  # connections, caches, compiled expressions
            for side in sides:
                side.suspend()
        rounds: list[tuple[list[float], list[float]]] = []
        began = [side.cpu() for side in sides]
        for number in range(1, ROUNDS + 1):
            taken: tuple[list[float], list[float]] = ([], [])
            for i in range(SUSPENDS):
                for side in (0, 1) if i % 2 else (1, 0):
                    taken[side].append(sides[side].suspend())
            rounds.append(taken)
            with_, without = (quantile(one, 0.99) for one in taken)
            say(f"round {number} of {ROUNDS}: p99 {with_:.2f} ms with the policies, {without:.2f} ms without")
        patches = 2 * ROUNDS * SUSPENDS
        used = [(side.cpu() - at) * 1000 / patches for side, at in zip(sides, began, strict=True)]
    later = [quantile(with_, 0.99) - quantile(without, 0.99) for with_, without in rounds]
    low, high = _interval(later)
    late = statistics.median(later)
    say(
        f"p99 of a suspend is {late:+.2f} ms later with the policies (median of {ROUNDS} rounds of "
        f"{SUSPENDS} suspends; 95 % interval {low:+.2f} to {high:+.2f}), at most {ALLOWED:g} are allowed"
    )
    for share in (0.5, 0.99):
        with_, without = (statistics.median(quantile(one[i], share) for one in rounds) for i in (0, 1))
        yield Row(f"policies: suspend, p{share * 100:g} (baseline: without policies)", with_, "ms", without)
    yield Row("policies: suspend, p99 later by", late, "ms")
    # What a busy machine does not change.
    yield Row("policies: API server's CPU for a patch (baseline: without policies)", used[0], "ms", used[1])


def _interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the interval that the median is in with 95 % confidence, by resampling the rounds."""
    draw = random.Random(1)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(_RESAMPLES))
    return medians[int(0.025 * _RESAMPLES)], medians[int(0.975 * _RESAMPLES)]


class _Side:
    """One plane's line and Job."""

    def __init__(self, client: LocalApi, uid: str, server: int) -> None:
        """``server``: process id of the API server."""
        self._server = server
        self._line = http.client.HTTPSConnection(
            client.host, client.port, timeout=30.0, context=client.context
        )
        self._uid = uid

    def suspend(self) -> float:
        """Start the Job, then suspend it: ms that the latter took."""
        self._patch(False)
        time.sleep(PAUSE_S)
        began = time.perf_counter()
        self._patch(True)
        return (time.perf_counter() - began) * 1000

    def cpu(self) -> float:
        """Seconds of CPU that the API server has used."""
        return cpu_seconds(self._server)

    def _patch(self, suspend: bool) -> None:
        body = json.dumps({"metadata": {"uid": self._uid}, "spec": {"suspend": suspend}})
        headers = {"Content-Type": "application/merge-patch+json"}
        self._line.request("PATCH", f"{_JOBS}/run", body, headers)
        answer = self._line.getresponse()
        said = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"patch refused: {said.decode()}")


def _side(stack: contextlib.ExitStack, folder: Path, policies: bool) -> _Side:
    plane = stack.enter_context(Plane(folder, Options(controllers=False, scheduler=False)))
    plane.kubectl("apply", "-f", str(_REPOSITORY / "crds"))
    plane.established()
    for file in ("namespace", "rbac", *(["admission"] if policies else [])):
        plane.kubectl("apply", "-f", str(_REPOSITORY / "deploy" / "manifests" / f"{file}.yaml"))
    admin = plane.client()
    made = admin.post(_JOBS, _child())
    admin.patch(f"{_JOBS}/run", workloads.start_patch(made, 1, {"gpu": "h200"}))
    groups = ["system:serviceaccounts", "system:authenticated"]
    operator = LocalApi(plane.url, plane.ca, plane.client_cert(_OPERATOR, groups))
    if policies:
        _in_force(operator)
    server = next(part.pid for part in plane.status().processes if part.name == APISERVER)
    assert server is not None
    return _Side(operator, str(made["metadata"]["uid"]), server)


def _in_force(operator: LocalApi) -> None:
    """The API server takes up policies within about a second."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            operator.patch(f"{_JOBS}/run?dryRun=All", {"spec": {"activeDeadlineSeconds": 9}})
        except ApiError:
            return
        time.sleep(0.1)
    raise RuntimeError("the policies are not in force after 30 s")


def _child() -> dict[str, Any]:
    """A workload as the operator makes it, of eight pods, with what a real one has."""
    variables = [{"name": f"V{i}", "value": "x" * 40} for i in range(40)]
    container = {
        "name": "trainer",
        "image": "evalstop/example-trainer:0.1.0",
        "env": variables,
        "ports": [{"name": "metrics", "containerPort": 9400}],
        "resources": {"limits": {names.GPU_RESOURCE: "8"}},
    }
    pod = {
        "restartPolicy": "Never",
        "containers": [container],
        "tolerations": [{"key": "dedicated", "operator": "Exists"}],
        "nodeSelector": {"gpu": "h200"},
    }
    spec = {"completions": 8, "parallelism": 8, "completionMode": "Indexed", "template": {"spec": pod}}
    job = {
        "metadata": {"name": "run", "namespace": "default", "uid": "0f2a1bb7-3c52-4d5e-9d61-8d7b5a1c0001"},
        "spec": {
            "gang": {"replicas": 8, "gpusPerReplica": 8},
            "workload": {"template": {"apiVersion": "batch/v1", "kind": "Job", "spec": spec}},
        },
    }
    return workloads.build_child(job)
