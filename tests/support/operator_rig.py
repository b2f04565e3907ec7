"""An operator on the real control plane, in the test's own event loop, with scrapes the test decides on."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from controller import names
from controller.api import convert
from controller.kube.client import Api
from controller.kube.connect import connect
from controller.kube.connection import Connection
from controller.kube.resources import GPUPOOLS, JOBS, PODS, RLHFJOBS
from controller.metrics import Target
from controller.operator.engine import Engine
from controller.operator.process.settings import Settings
from controller.operator.state.cluster import ClusterState
from controller.operator.state.job_snapshot import JobSnapshot
from controller.policy import decision_log
from controller.policy.job.record import JobRecord
from controller.policy.job.types import Page, ScrapeOutcome, ScrapeView
from controller.policy.types import Attempt, EvalPoint
from deploy.local.plane import Plane

Object = dict[str, Any]

LIFE = "a1"  # every trainer has one process
OPERATOR = "system:serviceaccount:evalstop-system:evalstop-operator"
SETTINGS = Settings(
    host="127.0.0.1",
    port=0,
    metrics_port=0,
    metrics_access="open",
    queue_port=0,
    foreign_seconds=1.0,
    drain_seconds=2.0,
    instance="test",
)


Response = tuple[int, bytes, Mapping[str, str]]
Fault = Callable[[str, str, Callable[[], Awaitable[Response]]], Awaitable[Response]]


def failure(status: int, reason: str) -> Response:
    """An answer as the API server gives it when it refuses."""
    body = {"kind": "Status", "reason": reason, "message": f"made to fail: {reason}", "code": status}
    return status, json.dumps(body).encode(), {}


def install(plane: Plane) -> Path:
    """Apply CRDs and what the operator needs. Returns the kubeconfig of the operator's own identity, so that
    every test proves its rights, and what the policies leave of them."""
    root = Path(__file__).resolve().parents[2]
    plane.kubectl("apply", "-f", str(root / "crds"))
    for name in ("namespace.yaml", "rbac.yaml", "priorityclass.yaml", "admission.yaml"):
        plane.kubectl("apply", "-f", str(root / "deploy" / "manifests" / name))
    plane.established("rlhfjobs.evalstop.dev", "gpupools.evalstop.dev")
    return plane.kubeconfig_for(OPERATOR, ["system:serviceaccounts", "system:authenticated"])


def run_line(plane: Plane, line: str) -> None:
    """Run a line as it was printed."""
    path = f"{plane.binaries['kubectl'].parent}:{os.environ['PATH']}"
    environ = {**os.environ, "KUBECONFIG": str(plane.kubeconfig), "PATH": path, **plane.kubectl_environment}
    command = ["bash", "-o", "pipefail", "-c", line]
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"


def _looked_after(self: ClusterState, loaded: JobSnapshot, record: JobRecord) -> JobSnapshot | None:
    """`ClusterState.as_written`, compared with what is loaded: in every test that has a rig."""
    written = _as_written(self, loaded, record)
    assert written is None or written == self.load(loaded.key)
    return written


_as_written = ClusterState.as_written
ClusterState.as_written = _looked_after  # type: ignore[method-assign]


class Crash(BaseException):
    """The process ends here, as if killed: nothing catches it."""


class CountingApi(Api):
    """Counts writes; can crash before or after the n-th, or answer with a fault of the test's choice.

    Events and dry runs do not count: nothing depends on them. Nor do writes whose path has none of
    ``about`` (what a test's own objects are called): another test's namespace keeps its RLHFJobs until all
    of its pods are gone, and refuses whatever an operator would make there meanwhile.
    """

    def __init__(self, *args: Any, about: tuple[str, ...] = ("",), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.about = about
        self.writes: list[str] = []
        self.crash_at: int | None = None
        self.crash_after: bool | Callable[[str], bool] = False  # the same of a write, ``METHOD /path``
        self.crash_on: Callable[[str, str, Object], bool] | None = None  # of method, path, answer: after it
        self.crashed = asyncio.Event()
        self.fatal_write: str | None = None
        self.fault: Fault | None = None
        self._one_at_a_time = asyncio.Lock()

    async def _request(
        self, method: str, path: str, query: Mapping[str, str] | None, body: Object | None, content_type: str
    ) -> Response:
        if method == "GET" or self.crash_at is None:
            return await self._counted(method, path, query, body, content_type)
        # Else one write takes effect, unseen, while the operator dies of another.
        async with self._one_at_a_time:
            return await self._counted(method, path, query, body, content_type)

    async def _counted(
        self, method: str, path: str, query: Mapping[str, str] | None, body: Object | None, content_type: str
    ) -> Response:
        counted = (
            method != "GET"
            and "/events" not in path
            and "dryRun" not in (query or {})
            and any(name in path for name in self.about)
        )
        if self.crashed.is_set():
            raise Crash
        fatal = False
        if counted:
            self.writes.append(f"{method} {path}")
            fatal = self.crash_at == len(self.writes)
            after = (
                self.crash_after if isinstance(self.crash_after, bool) else self.crash_after(self.writes[-1])
            )
            if fatal and not after:
                self.fatal_write = f"{method} {path}"
                self.crashed.set()
                raise Crash
        send = partial(super()._request, method, path, query, body, content_type)
        if counted and self.fault is not None:
            return await self.fault(method, path, send)
        answer = await send()
        if counted and self.crash_on is not None and answer[0] < 300:
            fatal = self.crash_on(method, path, json.loads(answer[1]))
        if fatal:
            self.fatal_write = f"{method} {path}"
            self.crashed.set()
            raise Crash
        return answer


class Recorder:
    """The operator's patches and the server's answers, in the order of their resourceVersions: that is the
    order in which they took effect, of whatever kinds they are."""

    def __init__(self, engine: Engine) -> None:
        self.writes: list[tuple[int, str, Object]] = []
        assert isinstance(engine.api, CountingApi)
        engine.api.fault = self._record

    async def _record(self, method: str, path: str, send: Callable[[], Awaitable[Response]]) -> Response:
        answer = await send()
        if answer[0] < 300 and method == "PATCH":
            body = json.loads(answer[1])
            self.writes.append((int(body["metadata"]["resourceVersion"]), path, body))
        return answer

    def first(self, end: str, test: Callable[[Object], Any]) -> int:
        """The resourceVersion of the first write to a path with that end of whose answer ``test`` is true."""
        return min(version for version, path, body in self.writes if path.endswith(end) and test(body))


def decided_anew(log: Path) -> int:
    """Decide everything in a decision log again, and compare byte for byte; how many decisions there are."""
    lines = [line for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]
    entries = list(decision_log.replay(lines))
    assert entries, f"no decision in {log}"
    assert [e for e in entries if not e.same] == []
    return len(entries)


class Rig:
    """What a test needs: an administrator's client, objects to make, and operators to start and kill."""

    def __init__(self, kubeconfig: Path, operator_kubeconfig: Path, namespace: str, pool: str) -> None:
        self.namespace, self.pool_name = namespace, pool
        self._kubeconfigs = kubeconfig, operator_kubeconfig
        self.about = namespace, pool  # in the path of all that is this test's own
        self.scores: dict[str, list[float]] = {}  # job name -> score of each eval, at steps 10, 20, …
        self.outcome: dict[str, ScrapeView] = {}  # job name -> what a scrape gives instead
        self.total_steps: int | None = None
        self._names: list[str] = []
        self.api: Api
        self._connection: Connection
        self._folder = tempfile.TemporaryDirectory(prefix="evalstop-rig-")
        self.decision_log = Path(self._folder.name) / "decisions.jsonl"

    async def __aenter__(self) -> Rig:
        self.api = Api(await connect({"KUBECONFIG": str(self._kubeconfigs[0])}))
        self._connection = await connect({"KUBECONFIG": str(self._kubeconfigs[1])})
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.api.close()
        if kind is None and self.decision_log.exists():
            decided_anew(self.decision_log)

    # -- operators ---------------------------------------------------------------------------------------

    def engine(self, settings: Settings | None = None) -> Engine:
        """Whatever it decides is decided anew, from its log, when the rig ends, and must be the same."""
        chosen = settings or SETTINGS
        if not chosen.decision_log:
            chosen = replace(chosen, decision_log=str(self.decision_log))
        api = CountingApi(self._connection, about=self.about)
        return Engine(chosen, self._connection, api, scrape=self._scrape)

    @contextlib.asynccontextmanager
    async def operator(self, settings: Settings | None = None) -> AsyncIterator[Engine]:
        """An operator that works until the block ends, and must then end with code 0."""
        engine = self.engine(settings)
        stop = asyncio.Event()
        task = asyncio.create_task(engine.run(stop))
        hurry = asyncio.create_task(self._hurry(engine))
        test = asyncio.current_task()
        assert test is not None
        task.add_done_callback(lambda _: None if stop.is_set() else test.cancel("the operator ended"))
        try:
            yield engine
        finally:
            hurry.cancel()
            stop.set()
            code = await task
        assert code == 0

    async def live_until_crash(
        self,
        at: int | None,
        after: bool | Callable[[str], bool],
        done: Callable[[], Awaitable[bool]],
        on: Callable[[str, str, Object], bool] | None = None,
    ) -> str | None:
        """An operator that dies at its write number ``at``, before or after it took effect, or right after
        the first write of which ``on`` (method, path, answer) is true.

        Returns that write; None if all was done without it.
        """
        engine = self.engine()
        api = engine.api
        assert isinstance(api, CountingApi)
        api.crash_at, api.crash_after, api.crash_on = at, after, on
        stop = asyncio.Event()
        life = asyncio.create_task(engine.run(stop))
        hurry = asyncio.create_task(self._hurry(engine))
        # Seldom: nearly every life ends by its crash, and what is asked here it has to share its cores with.
        finished = asyncio.create_task(eventually(done, 60.0, "the operator to go on where it was", 0.5))
        crashed = asyncio.create_task(api.crashed.wait())
        await asyncio.wait([life, finished, crashed], return_when=asyncio.FIRST_COMPLETED)
        if not api.crashed.is_set():
            stop.set()
        waiters = (finished, crashed, hurry)
        failed = finished.exception() if finished.done() else None
        for waiter in waiters:
            waiter.cancel()
        ended, *_ = await asyncio.gather(life, *waiters, return_exceptions=True)
        if failed is not None:
            raise failed
        assert not isinstance(ended, Exception), ended
        return api.fatal_write

    def writes(self, engine: Engine) -> list[str]:
        """What this operator wrote about this test's own objects."""
        assert isinstance(engine.api, CountingApi)
        return list(engine.api.writes)

    async def _hurry(self, engine: Engine) -> None:
        """Five seconds between scrapes are the least the API allows: too many for a test."""
        while True:
            await asyncio.sleep(0.25)
            for name in self.ports:
                if engine.scrapes is not None:
                    engine.scrapes.hasten(f"{self.namespace}/{name}")

    async def _scrape(self, target: Target) -> ScrapeView:
        """Every pod has the same address; the port tells which job is meant. Of a gang the first speaks."""
        if target.member:
            return ScrapeView(ScrapeOutcome.UNREACHABLE, "a follower: nobody listens", at=time.time())
        name = next(job for job, port in self.ports.items() if port == target.port)
        if name in self.outcome:
            return await self._as_its_page(name, self.outcome[name])
        scores = self.scores.get(name, [])
        number, uid = await self._attempt(name)
        return ScrapeView(
            ScrapeOutcome.OK,
            at=time.time(),
            metrics_seen=("gold",) if scores else (),
            points=tuple(EvalPoint(10 * (i + 1), s, Attempt(number, LIFE)) for i, s in enumerate(scores)),
            page=Page(uid, Attempt(number, LIFE)),
            evals_total=len(scores),
            step=10 * len(scores),
            total_steps=self.total_steps,
        )

    async def _as_its_page(self, name: str, view: ScrapeView) -> ScrapeView:
        """A view that a test gave, scraped now, of the process that its newest eval names."""
        view = dataclasses.replace(view, at=time.time())
        if view.outcome is not ScrapeOutcome.OK or view.page is not None:
            return view
        number, uid = await self._attempt(name)
        life = view.points[-1].attempt if view.points else Attempt(number)
        return dataclasses.replace(view, page=Page(uid, life))

    async def _attempt(self, name: str) -> tuple[int, str]:
        obj = await self.job(name)
        return convert.record(obj.get("status")).attempt, str(obj["metadata"]["uid"])

    # -- objects -----------------------------------------------------------------------------------------

    @property
    def ports(self) -> dict[str, int]:
        return {name: 9400 + i for i, name in enumerate(self._names)}

    def names(self, jobs: list[str]) -> None:
        """Fix the ports of jobs that are made later."""
        self._names += [name for name in jobs if name not in self._names]

    async def make_pool(self, **spec: Any) -> Object:
        return await self.make_pool_named(self.pool_name, **spec)

    async def make_pool_named(self, name: str, **spec: Any) -> Object:
        body = {
            "apiVersion": names.API_VERSION,
            "kind": "GPUPool",
            "metadata": {"name": name},
            "spec": {
                "nodeSelector": [{"key": "pool", "value": name}],
                "allowedNamespaces": [{"name": self.namespace, "maxPriority": 10}],
                **spec,
            },
        }
        return await self.api.create(GPUPOOLS, body)

    async def delete_pool(self, name: str) -> None:
        found = await self.api.get(GPUPOOLS, name)
        await self.api.delete(GPUPOOLS, name, None, found["metadata"]["uid"])

    async def make_job(self, name: str, replicas: int = 1, gpus: int = 2, **spec: Any) -> Object:
        self.names([name])
        body = {
            "apiVersion": names.API_VERSION,
            "kind": "RLHFJob",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {
                "pool": self.pool_name,
                "gang": {"replicas": replicas, "gpusPerReplica": gpus},
                "workload": {"template": self.template(name, replicas, gpus)},
                "metrics": [{"name": "gold"}],
                "stopRule": {"kDeclines": {"k": 3}},
                "modifiers": [],
                "checkpoints": {
                    "location": {"objectStore": {"uri": f"s3://work/{name}"}},
                    "layout": "Plain",
                    "retention": {"objectStore": {"uri": "s3://kept"}},
                },
                **spec,
            },
        }
        return await self.api.create(RLHFJOBS, body)

    def template(self, name: str, replicas: int, gpus: int) -> Object:
        container = {
            "name": "trainer",
            "image": "evalstop/example-trainer",
            "ports": [{"name": "metrics", "containerPort": self.ports[name]}],
            "resources": {"limits": {names.GPU_RESOURCE: str(gpus)}},
        }
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "spec": {
                "completions": replicas,
                "parallelism": replicas,
                "completionMode": "Indexed",
                "backoffLimit": 2,
                "template": {
                    "spec": {
                        "restartPolicy": "Never",
                        "terminationGracePeriodSeconds": 1,
                        "containers": [container],
                    }
                },
            },
        }

    async def patch(self, name: str, patch: Object) -> Object:
        return await self.api.merge_patch(RLHFJOBS, name, patch, self.namespace)

    async def job(self, name: str) -> Object:
        return await self.api.get(RLHFJOBS, name, self.namespace)

    async def record(self, name: str) -> JobRecord:
        return convert.record((await self.job(name)).get("status"))

    async def condition(self, name: str, type_: str) -> tuple[bool, str, str] | None:
        found = (await self.record(name)).condition(type_)
        return None if found is None else (found.status, found.reason, found.message)

    async def is_true(self, name: str, type_: str) -> bool:
        found = await self.condition(name, type_)
        return found is not None and found[0]

    async def reason(self, name: str, type_: str) -> str | None:
        found = await self.condition(name, type_)
        return None if found is None else found[1]

    async def has_reason(self, name: str, type_: str, reason: str) -> bool:
        return await self.reason(name, type_) == reason

    async def handed_to(self, name: str) -> str | None:
        """Who got a stopped job's GPUs. The pool notes it after it has admitted that one, and once more if it
        was disturbed."""
        decision = (await self.record(name)).decision
        return None if decision is None else decision.handed_to

    async def workload(self, name: str) -> Object:
        return await self.api.get(JOBS, name, self.namespace)

    async def pods(self, name: str) -> list[Object]:
        selector = f"{names.LABEL_JOB}={name},{names.LABEL_COMPONENT}=workload"
        return (await self.api.list(PODS, self.namespace, labels=selector))[0]


async def eventually(
    check: Callable[[], Awaitable[Any]],
    seconds: float = 60.0,
    what: str = "it to come true",
    every: float = 0.1,
) -> Any:
    """Ask ``every`` so many seconds until the answer is true."""
    deadline = time.monotonic() + seconds
    while True:
        answer = await check()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s for {what}")
        await asyncio.sleep(every)


def trainer(step: int, checkpoint: int, served: int | None = None, resumed: int = 0) -> ScrapeView:
    """What a trainer shows that can be asked for checkpoints (``served``: the last request)."""
    return ScrapeView(
        ScrapeOutcome.OK,
        at=time.time(),
        step=step,
        total_steps=100,
        checkpoint_step=checkpoint,
        resumed_step=resumed,
        request_served=served,
    )
