"""A real Kubernetes control plane as processes on loopback, all of it in one work folder.

    with Plane(Path("build/local")) as plane:
        plane.kubectl("get", "namespaces")

The folder holds `pki/`, `kubeconfigs/`, `config/`, `data/` (etcd), `logs/`, `bin/` (links to the
binaries), `run/` (the keeper's records) and `plane.json`, by which a later call knows it again.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from deploy.local import components, kubeconfig, pki, processes
from deploy.local.acquire import Found, obtain
from deploy.local.client import Client, Unreachable
from deploy.local.components import FIRST_SERVICE_IP, GRACE, HOST, Options
from deploy.local.control import Control, ControlError, Spec, State
from deploy.local.errors import PlaneError
from deploy.local.ports import Ports
from deploy.local.report import Report, silent
from deploy.local.versions import APISERVER, CONTROLLERS, ETCD_NAME, KUBECTL, KUBERNETES, SCHEDULER

DEFAULT_WORK = Path("build/local")
_LAYOUT = 1  # of the work folder; a folder of another layout is refused
_FOLDERS = ("bin", "config", "data", "kubeconfigs", "logs", "pki", "run", "volumes")
_READY_TIMEOUT_S = 90.0


@dataclasses.dataclass(frozen=True)
class ComponentStatus:
    """One process of the plane. `state`: running, exited or stopped."""

    name: str
    state: str
    pid: int | None
    exit_code: int | None
    memory_bytes: int | None


@dataclasses.dataclass(frozen=True)
class Status:
    """The plane as `status` found it."""

    up: bool  # every process runs and the API server says it is ready
    url: str | None
    problem: str | None  # why it is not up; None when it is, or when it simply was not started
    components: tuple[ComponentStatus, ...]


class Plane:
    """One control plane in one work folder.

    Args:
        work: the work folder (made if missing). Everything is below it.
        options: what to run and how.
        report: gets one line for each thing worth telling.

    Errors of all methods: PlaneError, with what is wrong and what to do about it.
    """

    def __init__(
        self, work: Path | str = DEFAULT_WORK, options: Options | None = None, report: Report = silent
    ) -> None:
        self.work = Path(work).absolute()
        self.options = options or Options()
        self.report = report
        self.logs = self.work / "logs"
        self.pki = self.work / "pki"
        self.kubeconfig = self.work / "kubeconfigs" / "admin.kubeconfig"
        self.ca = self.pki / "ca.crt"
        self.control = Control(self.work / "run")
        self._keeper: subprocess.Popen[bytes] | None = None  # while it is ours: closing its stdin ends it
        self._started = False

    # Up and down

    def up(self, keep: bool = False, fresh: bool = False) -> "Plane":
        """Bring the plane up; does nothing if this very plane runs already.

        Until `down`, or with `keep=False` until this process ends, however it ends. `fresh` empties
        the folder first, so that the cluster starts with nothing in it. Remains of a crash are
        cleaned up; a failed or interrupted `up` leaves nothing running.
        """
        with self._exclusive():
            if self._already_up(fresh):
                return self
            self._clear(fresh)
            try:
                self._start()
            except BaseException as error:
                self._abandon()
                if isinstance(error, ControlError | Unreachable):
                    raise PlaneError(str(error)) from error
                raise
            self._started = True
            if keep:
                self.detach()
        return self

    def detach(self) -> None:
        """Let the plane outlive this process; only `down` ends it then."""
        if self._keeper is None:
            return
        self.control.ask("detach")
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        self._keeper.returncode = 0  # it is nobody's child to wait for now: silences ResourceWarning
        self._keeper = None

    def down(self) -> bool:
        """End every process of this folder, the API server before etcd; False if none ran.

        The folder's files stay. Safe at any time, from any process, also after crashes.
        """
        if not self.work.is_dir():
            return False
        with self._exclusive():
            return self._down()

    def wipe(self) -> None:
        """`down`, then remove everything that the plane wrote into its folder."""
        if not self.work.is_dir():
            return
        with self._exclusive():
            self._down()
            self._empty()

    def __enter__(self) -> "Plane":
        return self.up()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._started:  # one that ran before we came is not ours to end
            self.down()

    # What runs

    @property
    def url(self) -> str:
        """The API server's address, such as `https://127.0.0.1:40123`."""
        return str(self._record()["url"])

    @property
    def port(self) -> int:
        """The API server's port on 127.0.0.1."""
        return int(self.url.rsplit(":", 1)[1])

    @property
    def binaries(self) -> dict[str, Path]:
        """Where each of the binaries is."""
        return {name: Path(path) for name, path in self._record()["binaries"].items()}

    def status(self) -> Status:
        """What runs now."""
        state = self._state()
        if state is None:
            return Status(False, None, None, ())
        found = []
        for name, kept in state.processes.items():
            running = kept.running
            memory = processes.resident_bytes(kept.process.pid) if running else None
            word = "running" if running else "stopped" if not state.kept_up else "exited"
            pid = kept.process.pid if running else None
            found.append(ComponentStatus(name, word, pid, kept.exit_code, memory))
        problem: str | None = None
        url: str | None = None
        if not state.kept_up:
            left = [part.name for part in found if part.state == "running"]
            if left:
                problem = f"the keeper was killed and left {', '.join(left)}; `down` ends them"
        else:
            gone = [part for part in found if part.state == "exited"]
            problem = (
                "; ".join(f"{p.name} has exited ({p.exit_code}): {self.log(p.name)}" for p in gone) or None
            )
            if problem is None:
                try:
                    url = self.url
                    self.client().get("/readyz", timeout_s=5)
                except (PlaneError, Unreachable) as error:
                    problem = str(error)
        return Status(state.kept_up and problem is None, url, problem, tuple(found))

    def log(self, name: str) -> Path:
        """The log file of a process."""
        return self.logs / f"{name}.log"

    def restart(self, name: str) -> None:
        """Stop one process, wait until it is gone, start it again as it was (same port, same data)."""
        self._ask("restart", name=name)

    def stop(self, name: str) -> None:
        """Stop one process and wait until it is gone; `restart` brings it back."""
        self._ask("stop", name=name)

    def start_process(
        self,
        name: str,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        cwd: Path | str | None = None,
        grace_s: float = 10.0,
    ) -> None:
        """Run one more program with the plane, such as node agents.

        It is ended before everything that was started before it, and never outlives the plane. Its output
        goes to `log(name)`; `env` is added to this process's environment.
        """
        if name in COMPONENT_NAMES or not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", name):
            raise PlaneError(f"a process cannot be called {name!r}: lower case letters, digits, '.' and '-'")
        environment = {**os.environ, **(env or {})}
        folder = str(cwd or self.work)
        spec = Spec(name, [str(part) for part in argv], environment, folder, str(self.log(name)), grace_s)
        self._ask("start", spec=dataclasses.asdict(spec))

    # Identities

    def client_cert(self, common_name: str, organizations: Iterable[str] = ()) -> pki.Pair:
        """A client certificate by which the API server knows user and groups."""
        groups = list(organizations)
        return self._authority().client(_slug(common_name, groups), common_name, groups)

    def server_cert(
        self, common_name: str, names: Sequence[str], organizations: Iterable[str] = ()
    ) -> pki.Pair:
        """A serving certificate that the API server accepts of kubelets and webhooks called `names`."""
        groups = list(organizations)
        return self._authority().server("serving-" + _slug(common_name, groups), common_name, names, groups)

    def kubeconfig_for(self, user: str, groups: Iterable[str] = ()) -> Path:
        """A kubeconfig for this user (node agents: `system:node:NAME` in group `system:nodes`)."""
        wanted = list(groups)
        path = self.work / "kubeconfigs" / f"{_slug(user, wanted)}.kubeconfig"
        return kubeconfig.write(path, self.url, self.ca, user, self.client_cert(user, wanted))

    def client(self) -> Client:
        """A plain JSON client with the administrator's rights."""
        return Client(self.url, self.ca, self._admin())

    def kubectl(
        self,
        *arguments: str,
        stdin: str | None = None,
        kubeconfig: Path | None = None,
        timeout_s: float = 60.0,
    ) -> str:
        """Run kubectl (as administrator unless another kubeconfig is given); its standard output.

        Errors: PlaneError with kubectl's own words if it fails.
        """
        command = [str(self.binaries[KUBECTL]), f"--kubeconfig={kubeconfig or self.kubeconfig}", *arguments]
        try:
            done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            raise PlaneError(f"kubectl {' '.join(arguments)}: no answer within {timeout_s:g} s") from error
        if done.returncode != 0:
            raise PlaneError(f"kubectl {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    # Inside

    def _start(self) -> None:
        found = obtain(self.report)
        began = time.monotonic()
        for folder in _FOLDERS:
            (self.work / folder).mkdir(exist_ok=True, mode=0o700)
        with Ports(components.PORTS) as ports:
            url = f"https://{HOST}:{ports[APISERVER]}"
            files = self._write_files(url)
            self._keep_old_logs()
            self._write_record(url, found)
            self._keeper = self.control.launch(pass_fds=ports.descriptors)
            numbers = {name: ports[name] for name in components.PORTS}
        for name in (ETCD_NAME, APISERVER):
            self._start_component(name, found[name].path, files, numbers)
        client = self.client()
        self._wait("the API server is ready", lambda: client.succeeds("/readyz"))
        for name in self.options.components[2:]:
            self._start_component(name, found[name].path, files, numbers)
        if self.options.controllers:
            default = "/api/v1/namespaces/default"
            self._wait(
                "the default service account", lambda: client.succeeds(f"{default}/serviceaccounts/default")
            )
            self._wait("the published CA", lambda: client.succeeds(f"{default}/configmaps/kube-root-ca.crt"))
        if self.options.scheduler:
            scheduler = Client(f"https://{HOST}:{numbers[SCHEDULER]}", None, None)
            self._wait("the scheduler is ready", lambda: scheduler.succeeds("/readyz"))
        self.report(f"control plane is up in {time.monotonic() - began:.1f} s: {url}")

    def _start_component(
        self, name: str, binary: Path, files: components.Files, ports: Mapping[str, int]
    ) -> None:
        argv = [str(binary), *components.COMMANDS[name](files, self.options, ports)]
        argv += self.options.flags.get(name, ())
        # A proxy variable of the user's must not come between processes on loopback.
        environment = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
        self.control.start(Spec(name, argv, environment, str(self.work), str(self.log(name)), GRACE[name]))

    def _write_files(self, url: str) -> components.Files:
        try:
            ca = self._authority()
            etcd_ca = pki.Authority(self.pki, "etcd-ca")
            keys = pki.token_keys(self.pki)
        except (ValueError, OSError) as error:
            raise self._corrupted(f"its certificates cannot be used ({error})") from error
        kubeconfig.write(self.kubeconfig, url, self.ca, ADMIN, ca.client("admin", ADMIN, ["system:masters"]))
        identities = {}
        for name in (CONTROLLERS, SCHEDULER):
            user = f"system:{name}"
            path = self.work / "kubeconfigs" / f"{name}.kubeconfig"
            identities[name] = kubeconfig.write(path, url, self.ca, user, ca.client(name, user))
        config = self.work / "config"
        authentication, scheduling = config / "authentication.yaml", config / "scheduler.yaml"
        authentication.write_text(components.AUTHENTICATION)
        try:
            given = self.options.scheduler_config
            scheduling.write_text(components.scheduler_config(given, identities[SCHEDULER]))
        except (ValueError, OSError) as error:
            raise PlaneError(str(error)) from error
        service = "kubernetes.default.svc"
        names = [HOST, FIRST_SERVICE_IP, "localhost", "kubernetes", "kubernetes.default", service]
        return components.Files(
            data=self.work / "data" / "etcd",
            certs=self.work / "config" / "certs",
            ca=ca.pair,
            etcd_ca=etcd_ca.pair.certificate,
            etcd_server=etcd_ca.peer("etcd-server", "etcd", [HOST, "localhost"]),
            etcd_client=etcd_ca.client("etcd-client", "kube-apiserver"),
            apiserver=ca.server("apiserver", "kube-apiserver", [*names, f"{service}.cluster.local"]),
            kubelet_client=ca.client("kubelet-client", KUBELET_CLIENT, ["system:masters"]),
            token_keys=keys,
            authentication=authentication,
            controllers=identities[CONTROLLERS],
            scheduler=identities[SCHEDULER],
            scheduler_config=scheduling,
        )

    def _wait(self, what: str, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _READY_TIMEOUT_S
        pause = 0.05
        while not done():
            state = self._state()
            for kept in state.processes.values() if state else ():
                if kept.exit_code is not None:
                    raise PlaneError(
                        f"{kept.name} exited ({kept.exit_code}) while waiting for: {what}. "
                        f"Last lines of {self.log(kept.name)}:\n{self._tail(kept.name)}{self._hint()}"
                    )
            if state is None or not state.keeper.alive:
                raise PlaneError(f"the plane was taken down while waiting for: {what}")
            if time.monotonic() > deadline:
                raise PlaneError(f"waited {_READY_TIMEOUT_S:g} s for: {what}; see {self.logs}")
            time.sleep(pause)

    def _already_up(self, fresh: bool) -> bool:
        state = self._state()
        if state is None or not state.kept_up:
            return False
        record = self._record()
        wanted = self.options.described()
        if not fresh and record["options"] == wanted and self.status().up:
            self.report(f"control plane is up already: {record['url']}")
            return True
        differing = [key for key in wanted if record["options"].get(key) != wanted[key]]
        if differing and not fresh:
            raise PlaneError(
                f"a control plane with other options ({', '.join(differing)}) runs in {self.work}: "
                f"take it down first (python -m deploy.local down --work {self.work}) or use another folder"
            )
        return False

    def _clear(self, fresh: bool) -> None:
        """Leave the folder with no process and in a shape to start in."""
        if self._down():
            self.report("ended what an earlier run had left")
        self._inspect()
        if fresh:
            self._empty()

    def _inspect(self) -> None:
        """Refuse a folder that is not ours or is of another version."""
        if not any((self.work / name).exists() for name in _FOLDERS if name != "run"):
            foreign = [entry.name for entry in self.work.iterdir() if entry.name not in ("run", LOCK)]
            if foreign and not (self.work / RECORD).exists():
                raise PlaneError(
                    f"{self.work} holds other things ({', '.join(sorted(foreign)[:3])}): "
                    "choose an empty or a new folder with --work"
                )
            return
        try:
            record = self._record()
        except PlaneError:
            if (self.work / RECORD).exists():
                raise
            return  # an `up` that was killed before it wrote it
        for key, ours in (("layout", _LAYOUT), ("kubernetes", KUBERNETES)):
            if record.get(key) != ours:
                raise self._corrupted(f"it was made for {key} {record.get(key)}, this is {ours}")

    def _empty(self) -> None:
        for name in _FOLDERS:
            shutil.rmtree(self.work / name, ignore_errors=True)
        (self.work / RECORD).unlink(missing_ok=True)

    def _down(self) -> bool:
        try:
            state = self._state()
        except PlaneError:
            # The records are unreadable: a keeper that still lives can at least be told.
            with contextlib.suppress(ControlError):
                self.control.ask("down")
            deadline = time.monotonic() + 60
            while self.control.kept_up() and time.monotonic() < deadline:
                time.sleep(0.05)
            shutil.rmtree(self.control.run, ignore_errors=True)
            return True
        ran = state is not None and (state.kept_up or any(kept.running for kept in state.processes.values()))
        if ran:
            self.control.down()
        self._release()
        return ran

    def _abandon(self) -> None:
        """After a failed `up`: end what has been started, whatever interrupts us."""
        if self._keeper is not None:
            self.report("stopping what was started")
            while True:
                try:
                    self._release()
                    return
                except KeyboardInterrupt:
                    continue

    def _release(self) -> None:
        keeper, self._keeper, self._started = self._keeper, self._keeper, False
        if keeper is not None:
            assert keeper.stdin is not None
            keeper.stdin.close()
            keeper.wait()
            self._keeper = None

    def _ask(self, do: str, **arguments: Any) -> None:
        try:
            self.control.ask(do, **arguments)
        except ControlError as error:
            raise PlaneError(str(error)) from error

    def _state(self) -> State | None:
        try:
            return self.control.state()
        except ControlError as error:
            raise self._corrupted(str(error)) from error

    def _record(self) -> dict[str, Any]:
        path = self.work / RECORD
        try:
            record = json.loads(path.read_text())
            if not isinstance(record["url"], str) or not isinstance(record["options"], dict):
                raise ValueError("fields of other types")
        except FileNotFoundError as error:
            raise PlaneError(f"no control plane was started in {self.work}") from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._corrupted(f"{path} cannot be read ({error})") from error
        return dict(record)

    def _write_record(self, url: str, found: Mapping[str, Found]) -> None:
        record = {
            "layout": _LAYOUT,
            "kubernetes": KUBERNETES,
            "url": url,
            "options": self.options.described(),
            "binaries": {name: str(one.path) for name, one in found.items()},
        }
        for name, one in found.items():
            link = self.work / "bin" / name
            link.unlink(missing_ok=True)
            link.symlink_to(one.path)
        temporary = self.work / f"{RECORD}.new"
        temporary.write_text(json.dumps(record, indent=1) + "\n")
        temporary.replace(self.work / RECORD)

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        """One `up` or `down` at a time in a folder."""
        try:
            self.work.mkdir(parents=True, exist_ok=True)
            lock = open(self.work / LOCK, "a")  # noqa: SIM115 - closed below
        except OSError as error:
            raise PlaneError(f"cannot use {self.work} as work folder: {error}") from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.report(f"waiting for another up or down in {self.work}")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _keep_old_logs(self) -> None:
        for log in self.logs.glob("*.log"):
            log.replace(log.with_suffix(".previous"))

    def _authority(self) -> pki.Authority:
        return pki.Authority(self.pki, "ca")

    def _admin(self) -> pki.Pair:
        return pki.Pair(self.pki / "admin.crt", self.pki / "admin.key")

    def _corrupted(self, what: str) -> PlaneError:
        return PlaneError(
            f"the work folder {self.work} cannot be used as it is: {what}. "
            f"To start anew there: python -m deploy.local up --fresh --work {self.work}"
        )

    def _hint(self) -> str:
        return f"\nIf its data is damaged: python -m deploy.local up --fresh --work {self.work}"

    def _tail(self, name: str, lines: int = 5) -> str:
        with contextlib.suppress(OSError):
            return "\n".join(
                "  " + line for line in self.log(name).read_text(errors="replace").splitlines()[-lines:]
            )
        return "  (no log)"


ADMIN = "kubernetes-admin"
KUBELET_CLIENT = "kube-apiserver-kubelet-client"
RECORD = "plane.json"
LOCK = "up.lock"
COMPONENT_NAMES = (ETCD_NAME, APISERVER, CONTROLLERS, SCHEDULER)


def _slug(user: str, groups: Sequence[str]) -> str:
    """A file name for an identity: readable, and different for different identities."""
    digest = hashlib.sha256("\0".join([user, *groups]).encode()).hexdigest()[:6]
    return f"{re.sub(r'[^A-Za-z0-9.-]+', '-', user)}-{digest}"
