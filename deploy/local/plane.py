"""A real Kubernetes control plane as processes on loopback, all of it in one work folder.

with Plane(Path("build/local")) as plane:
    print(plane.kubectl("get", "namespaces"))
"""

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from controller.kube.errors import ApiError
from deploy.local import components, pki
from deploy.local.acquire import obtain
from deploy.local.api import LocalApi
from deploy.local.components import GRACE, HOST, Files, Options
from deploy.local.control import Control, ControlError, Spec, State
from deploy.local.credentials import Credentials
from deploy.local.errors import PlaneError
from deploy.local.ports import Ports
from deploy.local.report import Report, silent
from deploy.local.status import Status, of_process
from deploy.local.versions import APISERVER, CONTROLLERS, ETCD_NAME, KUBECTL, SCHEDULER
from deploy.local.workfolder import WorkFolder

DEFAULT_WORK = Path("build/local")
_READY_TIMEOUT_S = 90.0
_STOP_TIMEOUT_S = 60.0


class Plane:
    """One control plane in one work folder.

    Args:
        work: the work folder, made if missing. Everything is below it.
        options: what to run and how.
        report: gets a line for each thing worth telling.

    Attributes: `work`, `logs` (folders), `kubeconfig` (the administrator's), `ca` (certificate).

    Errors of all methods: PlaneError, with what is wrong and what to do about it.
    """

    def __init__(
        self, work: Path | str = DEFAULT_WORK, options: Options | None = None, report: Report = silent
    ) -> None:
        self.work = Path(work).absolute()
        self.options = options or Options()
        self.report = report
        self.folder = WorkFolder(self.work)
        self.credentials = Credentials(self.folder)
        self.logs = self.folder.logs
        self.kubeconfig = self.credentials.admin_kubeconfig
        self.ca = self.credentials.ca
        self._control = Control(self.folder.run)
        self._supervisor: subprocess.Popen[bytes] | None = None  # while it is ours: closing its stdin ends it
        self._started = False
        self._client: tuple[tuple[int, str, bytes], LocalApi] | None = None

    # Up and down

    def up(self, keep: bool = False, fresh: bool = False) -> "Plane":
        """Bring the plane up; does nothing if this very plane runs already.

        It runs until `down`, or, unless `keep` is set, until this process ends, however that happens.
        `fresh` starts with an empty cluster. Remains of a crash are cleaned up first; an `up` that
        fails or is interrupted leaves nothing running.
        """
        with self.folder.exclusive(self.report):
            if not fresh and self._already_up():
                if keep:
                    self._ask("detach")
                return self
            if self._down():
                self.report("ended what ran in the folder before")
            self.folder.claim()
            if fresh:
                self.folder.empty()
            self.folder.check_version()
            self.folder.check_space()
            try:
                self._start()
            except BaseException as error:
                self._abandon()
                if isinstance(error, ControlError):
                    raise PlaneError(str(error)) from error
                raise
            self._started = True
        if keep:
            self.detach()
        return self

    def detach(self) -> None:
        """Let the plane outlive this process; only `down` ends it then."""
        self._ask("detach")
        if self._supervisor is not None:
            assert self._supervisor.stdin is not None
            self._supervisor.stdin.close()
            self._supervisor.returncode = (
                0  # not ours to wait for: without this Popen warns that it still runs
            )
        self._supervisor, self._started = None, False

    def down(self) -> bool:
        """End every process of this folder, the API server before etcd; False if none ran.

        The folder's files stay. Safe at any time, from any process, also after crashes.
        """
        if not self.work.is_dir():
            return False
        with self.folder.exclusive(self.report):
            return self._down()

    def wipe(self) -> None:
        """`down`, then remove everything that the plane wrote into its folder."""
        if not self.work.is_dir():
            return
        with self.folder.exclusive(self.report):
            self._down()
            self.folder.empty()

    def __enter__(self) -> "Plane":
        return self.up()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._started:  # one that ran before we came, or was detached, is not ours to end
            self.down()

    # What runs

    @property
    def url(self) -> str:
        """The API server's address, such as `https://127.0.0.1:40123`."""
        return str(self.folder.record()["url"])

    @property
    def port(self) -> int:
        """The API server's port on 127.0.0.1."""
        return int(self.url.rsplit(":", 1)[1])

    @property
    def binaries(self) -> dict[str, Path]:
        """Return where each of the binaries is."""
        return {name: Path(path) for name, path in self.folder.record()["binaries"].items()}

    @property
    def kubectl_environment(self) -> dict[str, str]:
        """Variables that keep kubectl out of the user's own ~/.kube: cache and preferences."""
        return {"KUBECACHEDIR": str(self.folder.config / "kubectl"), "KUBERC": "off"}

    def log(self, name: str) -> Path:
        """Return the log file of a process."""
        return self.folder.log(name)

    def status(self) -> Status:
        """Return what runs now."""
        state = self._state()
        if state is None:
            return Status(False, None, None, ())
        found = tuple(of_process(kept, state) for kept in state.processes.values())
        if not state.kept_up:
            left = ", ".join(part.name for part in found if part.state == "running")
            problem = f"a crash left {left} running; `down` ends them" if left else None
            return Status(False, None, problem, found)
        gone = [part for part in found if part.state == "exited"]
        problem = "; ".join(
            f"{part.name} exited ({part.exit_code}), see {self.log(part.name)}" for part in gone
        )
        problem = problem or self._api_problem()
        return Status(problem is None, self.url, problem, found)

    def start_process(
        self,
        name: str,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        cwd: Path | str | None = None,
        grace_s: float = 10.0,
    ) -> None:
        """Run one more program with the plane, such as node agents.

        It is ended before everything that was started before it, and never outlives the plane. Its
        output goes to `log(name)`; `env` is added to this process's environment; `grace_s` is the time
        between SIGTERM and SIGKILL.
        """
        if name in components.COMMANDS or not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", name):
            raise PlaneError(
                f"a process cannot be called {name!r}: it needs lower case letters, digits, '.' and '-', "
                "and no component's name"
            )
        environment = {**os.environ, **(env or {})}
        folder = str(cwd or self.work)
        self._begin(
            Spec(name, [str(part) for part in argv], environment, folder, str(self.log(name)), grace_s)
        )

    def stop(self, name: str) -> None:
        """Stop one process and wait until it is gone; `restart` brings it back."""
        self._ask("stop", name=name)

    def restart(self, name: str) -> None:
        """Stop one process, start it again as it was (same port, same data); the API server is waited for."""
        self._ask("restart", name=name)
        if name == APISERVER:
            self._wait_for_api()

    # Identities

    def client_cert(self, user: str, groups: Iterable[str] = ()) -> pki.Pair:
        """Return a client certificate by which the API server knows `user` as a member of `groups`."""
        return self.credentials.client(user, groups)

    def server_cert(self, name: str, addresses: Sequence[str], groups: Iterable[str] = ()) -> pki.Pair:
        """Return a serving certificate for a kubelet or webhook at `addresses` that the API server trusts."""
        return self.credentials.server(name, addresses, groups)

    def kubeconfig_for(self, user: str, groups: Iterable[str] = ()) -> Path:
        """Return a kubeconfig for this user (node agents: `system:node:NAME` in group `system:nodes`)."""
        return self.credentials.kubeconfig(self.url, user, groups)

    def client(self) -> LocalApi:
        """Return a plain JSON client with the administrator's rights.

        It is made once for an address and a certificate: to make one, and its connection, takes both sides
        ten times as long as a request.
        """
        # A fork has no thread that requests of its parent run in, and must not write to its connections.
        made_for = os.getpid(), self.url, self.credentials.admin.certificate.read_bytes()
        if self._client is None or self._client[0] != made_for:
            self._client = made_for, LocalApi(self.url, self.ca, self.credentials.admin)
        return self._client[1]

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
            done = subprocess.run(
                command,
                input=stdin,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                env={**os.environ, **self.kubectl_environment},
            )
        except subprocess.TimeoutExpired as error:
            raise PlaneError(f"kubectl {' '.join(arguments)}: no answer within {timeout_s:g} s") from error
        if done.returncode != 0:
            raise PlaneError(f"kubectl {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def established(self, *crds: str, timeout_s: float = 60.0) -> None:
        """Wait until these CustomResourceDefinitions are served; none named: all there are.

        ``kubectl wait`` fails on one that is so new that it has no condition yet, so it is asked again.

        Errors: PlaneError with kubectl's own words if they are not within ``timeout_s``.
        """
        until = time.monotonic() + timeout_s
        while True:
            try:
                self.kubectl(
                    "wait", "--for=condition=Established", "--timeout=10s", "crd", *(crds or ("--all",))
                )
            except PlaneError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)
            else:
                return

    # Inside

    def _start(self) -> None:
        binaries = {name: found.path for name, found in obtain(self.report).items()}
        began = time.monotonic()
        self.folder.prepare()
        with Ports(components.PORTS) as reserved:
            ports = {name: reserved[name] for name in components.PORTS}
            url = f"https://{HOST}:{ports[APISERVER]}"
            files = self.credentials.write(url, self.options)
            self.folder.write_record(url, self.options.described(), binaries)
            self._supervisor = self._control.launch(pass_fds=reserved.descriptors)
        for name in (ETCD_NAME, APISERVER):
            self._start_component(name, binaries[name], files, ports)
        self._wait_for_api()
        for name in self.options.components[2:]:
            self._start_component(name, binaries[name], files, ports)
        client = self.client()
        if self.options.controllers:
            # Its health lists the controllers once they run; until then it ends if the API is away.
            manager = LocalApi(f"https://{HOST}:{ports[CONTROLLERS]}", None, self.credentials.admin)
            health = "/healthz?verbose"
            self._wait("the controllers to run", lambda: manager.contains(health, "-controller ok"))
            account = "/api/v1/namespaces/default/serviceaccounts/default"
            self._wait("the default service account", lambda: client.succeeds(account))
            published = "/api/v1/namespaces/default/configmaps/kube-root-ca.crt"
            self._wait("the published CA", lambda: client.succeeds(published))
        if self.options.scheduler:
            scheduler = LocalApi(f"https://{HOST}:{ports[SCHEDULER]}", None, None)
            self._wait("the scheduler to be ready", lambda: scheduler.succeeds("/readyz"))
        self.report(f"control plane is up after {time.monotonic() - began:.1f} s: {url}")

    def _start_component(self, name: str, binary: Path, files: Files, ports: Mapping[str, int]) -> None:
        argv = [str(binary), *components.COMMANDS[name](files, self.options, ports)]
        argv += self.options.flags.get(name, ())
        # A proxy variable of the user's must not come between processes on loopback.
        environment = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
        needs = {APISERVER: ETCD_NAME}.get(name)
        self._begin(Spec(name, argv, environment, str(self.work), str(self.log(name)), GRACE[name], needs))

    def _wait_for_api(self) -> None:
        client = self.client()
        self._wait("the API server to be ready", lambda: client.succeeds("/readyz"))

    def _wait(self, what: str, done: Callable[[], bool]) -> None:
        """Until `done`; an error as soon as it cannot come about any more."""
        deadline = time.monotonic() + _READY_TIMEOUT_S
        while not done():
            state = self._state()
            if state is None or not state.kept_up:
                raise PlaneError(f"the plane was taken down while waiting for {what}")
            for kept in state.processes.values():
                if kept.exit_code is not None and not kept.stopped:
                    raise PlaneError(
                        f"{kept.name} exited ({kept.exit_code}) while waiting for {what}; the end of "
                        f"{self.log(kept.name)}:\n{self.folder.tail(kept.name)}\n"
                        f"If its data is damaged: {self.folder.start_anew()}"
                    )
            if time.monotonic() > deadline:
                raise PlaneError(f"waited {_READY_TIMEOUT_S:g} s for {what}; the logs are in {self.logs}")
            time.sleep(0.05)

    def _already_up(self) -> bool:
        state = self._state()
        if state is None or not state.kept_up:
            return False
        running, wanted = self.folder.record()["options"], json.loads(json.dumps(self.options.described()))
        differing = [key for key in wanted if running.get(key) != wanted[key]]
        if differing:
            raise PlaneError(
                f"a control plane with other options ({', '.join(differing)}) runs in {self.work}: "
                f"take it down first (python -m deploy.local down --work {self.work}) or use another folder"
            )
        if not self.status().up:
            return False
        self.report(f"control plane is up already: {self.url}")
        return True

    def _api_problem(self) -> str | None:
        try:
            self.client().get("/readyz", timeout_s=5)
        except (PlaneError, ApiError, OSError) as error:
            return str(error)
        return None

    def _down(self) -> bool:
        """With the folder held: end everything in it; whether anything ran."""
        try:
            state = self._control.state()
        except ControlError:  # unreadable records: a supervisor that lives can still be told
            return self._down_without_records()
        ran = state is not None and (state.kept_up or any(kept.running for kept in state.processes.values()))
        if ran:
            self._control.down()
        self._release()
        return ran

    def _down_without_records(self) -> bool:
        if not self._control.kept_up():
            return False
        self._ask("down")
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        while self._control.kept_up():
            if time.monotonic() > deadline:
                raise PlaneError(
                    f"the supervisor in {self.folder.run} does not leave within {_STOP_TIMEOUT_S:g} s"
                )
            time.sleep(0.02)
        self._release()
        return True

    def _abandon(self) -> None:
        """After a failed `up`: end what has been started, however often we are interrupted."""
        while True:
            try:
                self._release()
                return
            except KeyboardInterrupt:
                self.report("stopping what was started; one moment")

    def _release(self) -> None:
        """Close the lifeline of a supervisor of ours and wait until it has ended everything."""
        self._started = False
        if self._supervisor is not None:
            assert self._supervisor.stdin is not None
            self._supervisor.stdin.close()
            self._supervisor.wait()
            self._supervisor = None

    def _begin(self, spec: Spec) -> None:
        try:
            self._control.start(spec)
        except ControlError as error:
            raise PlaneError(str(error)) from error

    def _ask(self, do: str, **arguments: Any) -> None:
        try:
            self._control.ask(do, **arguments)
        except ControlError as error:
            raise PlaneError(str(error)) from error

    def _state(self) -> State | None:
        try:
            return self._control.state()
        except ControlError as error:
            raise self.folder.unusable(str(error)) from error
