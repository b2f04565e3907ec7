"""The operator with 100 worker groups that take turns, on a real control plane with simulated nodes.

Their members are stand-ins (`scale_members`): they register and answer as real ones do, and have no workers.
All jobs run, and their scores stand still, so nothing may be written however many turns are taken. Compared
is the operator before there is any job: what 200 scraped jobs cost counts to the groups, too. Baseline of
CPU: the goal of .05 cores; a write is always one too many.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from controller import names
from controller.policy.group_types import GROUPS_NAMESPACE
from controller.web.certificates import issue_server, make_authority
from deploy.local.agent.images import REPOSITORY
from deploy.local.errors import PlaneError
from tests.bench.rows import Row
from tests.bench.scale_members import GPUS
from tests.bench.scale_stage import NAMESPACE, OPERATOR, POOL, Json, Scale, rlhfjob, scale

GROUPS, MEMBERS, RESIDENTS = 100, 2, 2
NODE_GPUS = 8  # of each of as many nodes as there are groups: all GPUs are theirs
JOBS = GROUPS * RESIDENTS
FAMILY, MB = "stand-in", 1 << 20
WINDOW = 60.0  # s measured
_PATIENCE_S = 1800.0
_STEP, _QUIET = 15.0, 2  # s, and how often in a row nothing was written for so long
_QUIET_S = 300.0  # s: on a machine with much other work scrapes end late, which is written


def run(say: Callable[[str], None]) -> Iterator[Row]:
    sharing = {"families": [_family()], "placement": "Pack", "maxResidents": RESIDENTS}
    with (
        tempfile.TemporaryDirectory(prefix="evalstop-steps-") as folder,
        scale(GROUPS, NODE_GPUS, say, sharing=sharing, gangTimeoutSeconds=3600) as built,
    ):
        url, ca = _start(built, Path(folder))
        with _Members(url, ca) as members:
            _quiet(built, say)
            without = _measured(built, "without jobs", say)[0]
            _bring_up(built, members, say)
            built.stop_others()
            _quiet(built, say)
            members.ask(turns=False)
            still, _ = _measured(built, "no turns", say)
            members.ask(turns=True)
            before = members.count()
            taken, writes = _measured(built, "turns", say)
            turns = members.count() - before
    name = f"scale: {GROUPS} groups of {MEMBERS} members and {RESIDENTS} residents"
    say(f"CPU: {without:.4f} cores without jobs, {still:.4f} with groups, {taken:.4f} while they take turns")
    yield Row(f"{name}: operator's CPU more than without", taken - without, "cores", 0.05)
    yield Row(f"{name}: of it, because turns are taken", taken - still, "cores")
    yield Row(f"{name}: API writes of {turns} turns in {WINDOW:g} s", writes, "writes")


def _start(built: Scale, folder: Path) -> tuple[str, str]:
    """Start the operator with its step API; return that one's address, and the file of its authority."""
    now = datetime.now(UTC)
    authority = make_authority(now)
    pair = issue_server(authority, ["127.0.0.1"], now)
    texts = {"tls.crt": pair.certificate, "tls.key": pair.key, "ca.crt": authority.certificate}
    for name, text in texts.items():
        (folder / name).write_text(text)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url, ca = f"https://127.0.0.1:{port}", str(folder / "ca.crt")
    built.start_operator(
        STEPS_HOST="127.0.0.1", STEPS_PORT=str(port), STEPS_URLS=url, STEPS_CA=ca,
        STEPS_CERTIFICATE=str(folder / "tls.crt"), STEPS_KEY=str(folder / "tls.key"),
        SCRAPE_TIMEOUT="60",  # a page that comes late is told in a status, and has nothing to do with turns
    )  # fmt: skip
    return url, ca


class _Members(contextlib.AbstractContextManager["_Members"]):
    """The process of stand-ins.

    Args:
        url, ca: of the operator's step API.
    """

    def __init__(self, url: str, ca: str) -> None:
        argv = [sys.executable, "-m", "tests.bench.scale_members", url, ca]
        self._process = subprocess.Popen(
            argv, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._known: set[str] = set()
        self._answer()  # its port: it listens

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)

    def ask(self, **given: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(given) + "\n")
        self._process.stdin.flush()

    def count(self) -> int:
        """Return how many turns there were."""
        self.ask(count=True)
        return self._answer()

    def follow(self, built: Scale) -> int:
        """Have the stand-ins speak for groups' pods that have an address by now; return how many."""
        client = built.plane.client()
        for pod in client.get(f"/api/v1/namespaces/{GROUPS_NAMESPACE}/pods", timeout_s=60.0)["items"]:
            uid, ip = pod["metadata"]["uid"], (pod.get("status") or {}).get("podIP")
            if ip and uid not in self._known:
                self._known.add(uid)
                self.ask(pod=uid, ip=ip, token=_token(built, pod["metadata"]["name"], uid))
        return len(self._known)

    def _answer(self) -> int:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise PlaneError("the stand-ins of worker groups have ended")
        return int(line)


def _token(built: Scale, pod: str, uid: str) -> str:
    """Return a token as the kubelet would project it into a pod."""
    bound = {"kind": "Pod", "apiVersion": "v1", "name": pod, "uid": uid}
    spec = {"audiences": [names.STEPS_AUDIENCE], "expirationSeconds": 86_400, "boundObjectRef": bound}
    path = f"/api/v1/namespaces/{GROUPS_NAMESPACE}/serviceaccounts/default/token"
    made = built.plane.client().post(path, {"spec": spec}, timeout_s=60.0)
    return str(made["status"]["token"])


def _bring_up(built: Scale, members: _Members, say: Callable[[str], None]) -> None:
    """Until every job is a resident and runs: the first one alone, for all are of its kind."""

    def running() -> int:
        members.follow(built)
        return sum((job.get("status") or {}).get("summary") == "Running" for job in built.jobs())

    def measured() -> int:
        running()
        pool = built.plane.client().get(f"/apis/{names.API_VERSION}/gpupools/{POOL}")
        return len((pool.get("status") or {}).get("profiles") or ())

    jobs = [_job(built, number) for number in range(JOBS)]
    built.create(jobs[:1], say)
    built.wait("kinds measured", measured, 1, say, _PATIENCE_S)
    built.create(jobs[1:], say)
    built.wait("jobs running", running, JOBS, say, _PATIENCE_S)
    path = f"/apis/{names.API_VERSION}/namespaces/{GROUPS_NAMESPACE}/workergroups"
    found = len(built.plane.client().get(path, timeout_s=60.0)["items"])
    if found != GROUPS:
        raise PlaneError(f"{JOBS} jobs are residents of {found} groups, expected {GROUPS}")


def _quiet(built: Scale, say: Callable[[str], None]) -> None:
    """Until nothing was written for a while."""
    deadline, writes, quiet = time.monotonic() + _QUIET_S, built.writes(), 0
    while quiet < _QUIET and time.monotonic() < deadline:
        time.sleep(_STEP)
        later = built.writes()
        quiet = quiet + 1 if later == writes else 0
        say("no writes" if later == writes else "writes")
        writes = later


def _measured(built: Scale, what: str, say: Callable[[str], None]) -> tuple[float, float]:
    """Return the operator's CPU (cores) and how much was written to the API in `WINDOW`."""
    before, writes, began = built.usage(OPERATOR).cpu, built.writes(), time.monotonic()
    time.sleep(WINDOW)
    used, later = built.usage(OPERATOR).cpu - before, built.writes()
    passed = time.monotonic() - began
    changed = {name: n - writes.get(name, 0.0) for name, n in later.items() if n != writes.get(name, 0.0)}
    say(f"{what}: {used / passed:.4f} cores in {passed:.0f} s; writes: {changed or 'none'}")
    if changed:
        say(f"newest Events: {_newest_events(built)}")
    return used / passed, sum(changed.values())


def _newest_events(built: Scale) -> str:
    """Return the reasons of the newest Events of jobs: why something was written."""
    found = built.plane.client().get(f"/api/v1/namespaces/{NAMESPACE}/events", timeout_s=60.0)["items"]
    found.sort(key=lambda event: event.get("lastTimestamp") or "", reverse=True)
    return "; ".join(f"{event['reason']}: {event['message'][:80]}" for event in found[:5])


def _family() -> Json:
    container = {
        "name": "workers",
        "image": "none",
        "resources": {"limits": {names.GPU_RESOURCE: str(GPUS // MEMBERS), "memory": "1Gi"}},
    }
    return {
        "name": FAMILY,
        "replicas": MEMBERS,
        "gpusPerReplica": GPUS // MEMBERS,
        "deviceBytes": 4 * MB,
        "hostBytes": 32 * MB,
        "template": {"spec": {"containers": [container]}},
    }


def _job(built: Scale, number: int) -> Json:
    asked = {"family": FAMILY, "stateBytes": 2 * MB, "maxSlowdownPercent": 50}
    name = f"share-{number:03d}"
    return rlhfjob(name, built.stub, members=1, gpus=0, mode="Shadow", sharing=asked)
