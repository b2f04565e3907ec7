"""A worker group of real processes on loopback: `python -m controller.group` as often as it has members.

The operator's part is what its tickets say: they are signed here, by the product's signer, and lie where a
restarted member finds what it was told before.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from controller.group import certificate
from controller.web.group_tickets import JOB, MEMBER, OPERATOR, GroupTicket
from controller.web.tickets import Signer
from evalstop_client.group import Group
from evalstop_client.rollouts import _Pinned
from tests.group import small_volume
from tests.group.proxy import Proxy

ROOT = Path(__file__).parents[2]
GROUP, ADMISSION = "wg-test", 1
MB = 1 << 20


class Failed(AssertionError):
    """A condition did not come."""


def until(condition: Callable[[], Any], seconds: float = 120.0, what: str = "") -> Any:
    """Return what a condition returns once it is true."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > end:
            raise Failed(f"not within {seconds:g} s: {what or condition}")
        time.sleep(0.01)
    return found


class MemberPod:
    """One member's pod: its folders outlive its processes."""

    def __init__(self, plane: GroupPlane, index: int) -> None:
        self.plane, self.index, self.uid = plane, index, f"pod-{index}-{secrets.token_hex(3)}"
        self.volume, self.disk = plane.volume / str(index), plane.disk / str(index)
        self.device = self.volume / "device"
        self.memory = self.volume / "memory"
        for folder in (self.volume, self.disk):
            folder.mkdir(parents=True)
        _, self.fingerprint = certificate.kept(self.disk, ["127.0.0.1"])
        self.port = _free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        settings = {
            "FAMILY": self.plane.family, "OPERATOR": "https://127.0.0.1:9", "LISTEN": "127.0.0.1",
            "PORT": self.port, "ADDRESS": "127.0.0.1", "POD": self.uid, "MEMORY": self.memory,
            "DISK": self.disk, "DEVICE": self.device, "REGISTER_SECONDS": 3600, "LOG_FORMAT": "console",
            **self.plane.settings,
        }  # fmt: skip
        environ = {
            **os.environ,
            **{f"EVALSTOP_GROUP_{name}": str(value) for name, value in settings.items()},
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "clients/python")]),
            **self.plane.environ,
        }
        with (self.disk / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "controller.group"], env=environ, cwd=ROOT, stderr=log, stdout=log
            )

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kill the supervisor, as the kernel would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def workers(self) -> dict[str, int]:
        """Return the pid of each resident's worker."""
        return {
            str(place["resident"]): pid
            for pid, place in _workers()
            if place.get("device", "").startswith(f"{self.device}/")
        }

    def log(self) -> str:
        return (self.disk / "log").read_text(errors="replace")


class GroupPlane:
    """A group.

    Args:
        members: pods.
        state: bytes of the family's weights.
        family: as `EVALSTOP_GROUP_FAMILY`.
        environ: of its processes besides.
        through_proxy: jobs and members reach member 0 over a cable that a test can cut.
        bounded: members whose memory volume is a small file system of its own.
        settings: of its pods besides, in capitals.
    """

    def __init__(
        self,
        members: int = 2,
        state: int = 4096,
        family: str = "tests.group.families:Counted",
        environ: dict[str, str] | None = None,
        through_proxy: bool = False,
        bounded: Sequence[int] = (),
        **settings: Any,
    ) -> None:
        self.volume = Path(tempfile.mkdtemp(prefix="evalstop-group-", dir="/dev/shm"))
        self.disk = Path(tempfile.mkdtemp(prefix="evalstop-group-"))
        self.family = family
        self.environ = {"EVALSTOP_TEST_STATE": str(state), **(environ or {})}
        whole = state + 2 * MB
        self.settings = {
            "DEVICE_BYTES": whole, "HOST_BYTES": 4 * whole, "TURN_SECONDS": 30, "IDLE_SECONDS": 10,
            **settings,
        }  # fmt: skip
        self.state_bytes = state + 8192
        self.signer = Signer()
        self.pods = [MemberPod(self, index) for index in range(members)]
        self.proxy = Proxy(self.pods[0].port) if through_proxy else None
        self.front = f"127.0.0.1:{self.proxy.port}" if self.proxy else self.pods[0].address
        for pod in self.pods:
            self._admit(pod)
        for index in bounded:
            small_volume.mount(self.pods[index].memory)

    def __enter__(self) -> GroupPlane:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        for pod in self.pods:
            pod.start()
        self.ready()

    def ready(self) -> None:
        """Wait until all members are connected."""
        until(lambda: (self.report() or {}).get("ready"), 180.0, f"the group is ready; {self.logs()}")

    def close(self) -> None:
        for pod in self.pods:
            if pod.process is not None and pod.process.poll() is None:
                pod.signal(signal.SIGCONT)
                pod.kill()
        if self.proxy is not None:
            self.proxy.close()
        # Workers die with their supervisors, by the kernel's hand.
        until(lambda: not any(pod.workers() for pod in self.pods), 20.0, "workers are gone")
        for pod in self.pods:
            small_volume.unmount(pod.memory)
        shutil.rmtree(self.volume, ignore_errors=True)
        shutil.rmtree(self.disk, ignore_errors=True)

    def logs(self) -> str:
        return "\n".join(pod.log()[-3000:] for pod in self.pods if (pod.disk / "log").exists())

    # -- tickets ---------------------------------------------------------------------------------------------

    def ticket(self, kind: str, pod: str = "", **more: Any) -> str:
        given = {"group": GROUP, "admission": ADMISSION, "ends": time.time() + 86_400.0, **more}
        return self.signer.sign(GroupTicket(kind=kind, pod=pod, **given))

    def _admit(self, pod: MemberPod) -> None:
        head = self.pods[0] if pod.index else None
        ticket = self.ticket(
            MEMBER, pod.uid, pods=tuple(one.uid for one in self.pods),
            address=self.front if head else "", fingerprint=head.fingerprint if head else "",
        )  # fmt: skip
        answer = {"ticket": ticket, "keys": [self.signer.public], "index": pod.index}
        (pod.disk / "ticket.json").write_text(json.dumps(answer))

    # -- the operator's part ---------------------------------------------------------------------------------

    def ask(
        self, method: str, path: str, body: Any = None, ticket: str | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Ask member 0, as the operator unless another ticket is given."""
        head = self.pods[0]
        with contextlib.closing(_Pinned(head.address, head.fingerprint, 30.0)) as connection:
            headers = {"Authorization": f"Bearer {ticket or self.ticket(OPERATOR)}"}
            given = body if isinstance(body, bytes) else None if body is None else json.dumps(body)
            connection.request(method, path, given, headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or b"{}")

    def report(self) -> dict[str, Any] | None:
        try:
            status, found = self.ask("GET", "/v1/report")
        except OSError:
            return None
        return found if status == 200 else None

    def join(self, *names: str) -> None:
        for name in names:
            status, found = self.ask(
                "POST", "/v1/residents", {"name": name, "job": f"uid-{name}", "stateBytes": self.state_bytes}
            )
            assert status == 200, found

    def job_ticket(self, name: str, **more: Any) -> str:
        return self.ticket(JOB, f"pod-of-{name}", resident=name, **more)

    def client(self, name: str, **options: Any) -> Group:
        """Return a job's side, as a trainer has it."""
        path = self.disk / f"{name}.json"
        head = self.pods[0]
        document = {
            "ticket": self.job_ticket(name), "resident": name, "address": self.front,
            "fingerprint": head.fingerprint,
        }  # fmt: skip
        path.write_text(json.dumps(document))
        return Group.of_file(path, **{"patience": 60.0, **options})


def _workers() -> Iterator[tuple[int, dict[str, Any]]]:
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            environ = Path(f"/proc/{entry}/environ").read_bytes()
            state = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        found = [one for one in environ.split(b"\0") if one.startswith(b"EVALSTOP_WORKER_PLACE=")]
        if found and state != "Z":
            yield int(entry), json.loads(found[0].partition(b"=")[2])


def private_bytes(pid: int) -> int:
    """Return the private memory of a process."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) * 1024


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
