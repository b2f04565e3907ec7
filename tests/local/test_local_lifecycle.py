"""Up, down, crashes and interruptions of a real control plane: etcd and the API server, in seconds.

Every test ends by looking for processes that name its work folder; there must be none.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from local_helpers import running_in, until

from deploy.local.acquire import Found
from deploy.local.components import Options
from deploy.local.errors import PlaneError
from deploy.local.plane import Plane
from deploy.local.versions import APISERVER, ETCD_NAME

API_ONLY = Options(controllers=False, scheduler=False)

LAUNCHER = """
import sys, time
from pathlib import Path
from deploy.local.components import Options
from deploy.local.plane import Plane
plane = Plane(Path(sys.argv[1]), Options(controllers=False, scheduler=False), print)
with plane:
    print("ready", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def work(tools: dict[str, Found], tmp_path: Path) -> Iterator[Path]:
    """A work folder in which nothing runs afterwards, whatever the test did."""
    folder = tmp_path / "plane"
    yield folder
    left = running_in(folder)
    if folder.is_dir():
        Plane(folder).down()
    assert left == []


def pid_of(plane: Plane, name: str) -> int:
    return next(part.pid for part in plane.status().processes if part.name == name and part.pid)


def launch(work: Path) -> subprocess.Popen[str]:
    """A process of its own that brings the plane up and holds it."""
    argv = [sys.executable, "-c", LAUNCHER, str(work)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_until_ready(launcher: subprocess.Popen[str]) -> None:
    assert launcher.stdout is not None
    lines = []
    for line in launcher.stdout:
        lines.append(line)
        if line == "ready\n":
            return
    raise AssertionError("".join(lines))


def close(launcher: subprocess.Popen[str]) -> None:
    assert launcher.stdout is not None
    launcher.stdout.close()
    launcher.wait(30)


# Sees the two ends in their order, by descriptors that become readable when a process ends.
OBSERVER = """
import os, select, sys
api, etcd = (os.pidfd_open(int(pid)) for pid in sys.argv[1:3])
print("watching", flush=True)
select.select([api, etcd], [], [])
print("etcd was first" if select.select([etcd], [], [], 0)[0] else "API server went, etcd runs", flush=True)
select.select([etcd], [], [])
print("etcd went", flush=True)
"""


def observe(plane: Plane) -> subprocess.Popen[bytes]:
    pids = [str(pid_of(plane, name)) for name in (APISERVER, ETCD_NAME)]
    observer = subprocess.Popen([sys.executable, "-S", "-c", OBSERVER, *pids], stdout=subprocess.PIPE)
    assert observer.stdout is not None
    assert observer.stdout.readline() == b"watching\n"
    return observer


def test_up_twice_down_twice_and_up_again_with_the_same_data(work: Path) -> None:
    lines: list[str] = []
    plane = Plane(work, API_ONLY, lambda line, progress=False: lines.append(line))
    plane.up()
    first, client = pid_of(plane, APISERVER), plane.client()
    client.post("/api/v1/namespaces", {"metadata": {"name": "kept"}})
    other = Plane(work, API_ONLY, lambda line, progress=False: lines.append(line))
    with other:  # finds it up, and leaves it up
        assert pid_of(other, APISERVER) == first
    assert lines[-1] == f"control plane is up already: {plane.url}"
    assert plane.status().up
    before = plane.url
    assert plane.down()
    assert running_in(work) == []
    assert not plane.down()
    status = plane.status()
    assert (status.up, status.problem) == (False, None)
    assert {part.state for part in status.processes} == {"stopped"}
    with plane:
        assert plane.url != before or plane.client().succeeds("/readyz")
        assert plane.client().succeeds("/api/v1/namespaces/kept")
        assert str(plane.port) in plane.kubeconfig.read_text()
        assert plane.client() is plane.client() is not client, "to make one costs more than it asks"
        with pytest.raises(PlaneError, match=r"other options \(controllers, scheduler\) runs in"):
            Plane(work).up()
    plane.up(fresh=True)
    assert not plane.client().succeeds("/api/v1/namespaces/kept")
    plane.wipe()
    assert [entry.name for entry in work.iterdir()] == ["up.lock"]


def test_api_server_is_gone_before_etcd_is_told(work: Path) -> None:
    with Plane(work, API_ONLY) as plane:
        watch = subprocess.Popen(  # an open watch, which an API server likes to wait for
            [plane.binaries["kubectl"], f"--kubeconfig={plane.kubeconfig}", "get", "ns", "-w"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(0.3)
        seen = observe(plane)
        began = time.monotonic()
    assert time.monotonic() - began < 30
    watch.kill()
    watch.wait()
    assert seen.communicate(timeout=10)[0] == b"API server went, etcd runs\netcd went\n"
    status = {part.name: part.exit_code for part in plane.status().processes}
    assert status == {APISERVER: 0, ETCD_NAME: -signal.SIGTERM}  # politely: nobody had to be killed


def test_a_launcher_that_is_killed_takes_the_plane_with_it_in_order(work: Path) -> None:
    launcher = launch(work)
    wait_until_ready(launcher)
    plane = Plane(work)
    seen = observe(plane)
    launcher.kill()
    assert seen.communicate(timeout=20)[0] == b"API server went, etcd runs\netcd went\n"
    until(lambda: running_in(work) == [launcher_line(work)] or running_in(work) == [])
    close(launcher)
    assert not plane.status().up


def launcher_line(work: Path) -> str:
    return f"{sys.executable} -c {LAUNCHER} {work} "


@pytest.mark.parametrize("moment", [0.0, 0.15, 0.5, 1.2])
def test_ctrl_c_during_up_leaves_nothing(work: Path, moment: float) -> None:
    argv = [sys.executable, "-m", "deploy.local", "up", "--work", str(work)]
    up = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, start_new_session=True)
    until(lambda: (work / "run" / "state.json").exists(), 30)
    time.sleep(moment)
    os.killpg(up.pid, signal.SIGINT)  # as a terminal does: the whole foreground group
    _, said = up.communicate(timeout=30)
    assert up.returncode == 130, said
    assert "interrupted; nothing was left running" in said
    assert running_in(work) == []


def test_crashes_of_component_and_supervisor_are_told_and_up_mends_them(work: Path) -> None:
    plane = Plane(work, API_ONLY)
    plane.up(keep=True)
    plane.client().post("/api/v1/namespaces", {"metadata": {"name": "kept"}})
    os.kill(pid_of(plane, APISERVER), signal.SIGKILL)
    until(lambda: plane.status().problem == f"kube-apiserver exited (-9), see {plane.log(APISERVER)}")
    assert not plane.status().up
    plane.up(keep=True)
    assert plane.status().up

    url, pid, client = plane.url, pid_of(plane, APISERVER), plane.client()
    plane.restart(APISERVER)
    assert (plane.url, pid_of(plane, APISERVER) != pid, plane.client()) == (url, True, client)
    client.patch("/api/v1/namespaces/kept", {"metadata": {"labels": {"restarted": "yes"}}})

    state = json.loads((work / "run" / "state.json").read_text())
    os.kill(state["supervisor"]["pid"], signal.SIGKILL)
    until(lambda: running_in(work) == [])
    assert not plane.status().up
    with plane:
        assert plane.client().succeeds("/api/v1/namespaces/kept")


def test_command_line_from_up_to_down(work: Path) -> None:
    def call(*arguments: str, status: int = 0) -> str:
        argv = [sys.executable, "-m", "deploy.local", *arguments, "--work", str(work)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
        assert done.returncode == status, done.stderr
        return done.stdout + done.stderr

    assert call("status", status=3) == f"no control plane runs in {work}\n"
    assert f"no control plane runs in {work}: " in call("env", status=1)
    said = call("up")
    assert re.search(r"etcd, kube-apiserver, .*: (cache|KUBEBUILDER_ASSETS|built|downloaded)", said)
    assert re.search(r"control plane is up after \d+\.\d s: https://127\.0\.0\.1:\d+", said)
    assert f"python -m deploy.local down --work {work}" in said
    assert "control plane is up already" in call("up")
    assert re.search(r"kube-scheduler +running +pid \d+ +\d+ MiB\nready at https://", call("status"))
    exports = call("env")
    shell = f"{exports}\nkubectl get serviceaccount default -o name"
    done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, timeout=60)
    assert done.stdout == "serviceaccount/default\n", done.stderr
    assert call("down") == "control plane is down\n"
    assert call("down") == f"no control plane runs in {work}\n"
    assert "stopped" in call("status", status=3)
    assert call("down", "--wipe") == f"no control plane runs in {work}\n"
    assert [entry.name for entry in work.iterdir()] == ["up.lock"]
