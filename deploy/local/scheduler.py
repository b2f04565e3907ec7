"""A second kube-scheduler on a local plane, and the scheduler extender that it asks.

with Plane(work) as plane:
    extender, scheduler = start_pair(plane)
"""

import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from controller import names
from controller.extender import scheduler_config
from deploy.local import pki
from deploy.local.api import LocalApi
from deploy.local.components import HOST
from deploy.local.errors import PlaneError
from deploy.local.plane import Plane
from deploy.local.ports import Ports, free_port
from deploy.local.versions import SCHEDULER

REPOSITORY = Path(__file__).resolve().parents[2]
EXTENDER_USER = f"system:serviceaccount:{names.NAMESPACE}:evalstop-extender"
_READY_TIMEOUT_S = 60.0


class Certificates:
    """An authority of the extender's own, so that no other client of the cluster can speak to it."""

    def __init__(self, folder: Path) -> None:
        self._authority = pki.Authority(folder, "extender-ca")
        self.ca = self._authority.pair.certificate
        self.server = self._authority.server("extender", "evalstop-extender", [HOST, "localhost"])
        self.client = self._authority.client("scheduler", names.SCHEDULER_NAME)

    def client_named(self, name: str) -> pki.Pair:
        """Files of a client of the same authority that bears another name."""
        return self._authority.client(f"client-{name}", name)

    def options(self, url: str, **more: Any) -> scheduler_config.Options:
        """Return how kube-scheduler reaches the extender at ``url``; ``more``: fields of the options."""
        found = self.client
        return scheduler_config.Options(
            url,
            self.ca.read_text(),
            found.certificate.read_text(),
            found.key.read_text(),
            leader_elect=False,
            **more,
        )


class Scheduler:
    """One more kube-scheduler of the plane, with the rights of the first.

    Args:
        config: a KubeSchedulerConfiguration; its kubeconfig is set here, and leader election off.
        process: its name among the plane's processes.
    """

    def __init__(
        self, plane: Plane, config: Mapping[str, Any], process: str = names.SCHEDULER_NAME, verbosity: int = 2
    ) -> None:
        self._plane, self._config = plane, config
        self.process, self._verbosity = process, verbosity

    def start(self) -> "Scheduler":
        """Start it and wait until it is ready. Errors: PlaneError."""
        plane, path = self._plane, self._plane.folder.config / f"{self.process}.yaml"
        kubeconfig = str(plane.kubeconfig_for(f"system:{SCHEDULER}"))
        connection = {**self._config.get("clientConnection", {}), "kubeconfig": kubeconfig}
        config = {
            **self._config,
            "clientConnection": connection,
            "leaderElection": {"leaderElect": False},
        }
        pki.write_private(path, yaml.safe_dump(config, sort_keys=False).encode())  # it holds a client's key
        with Ports([self.process]) as reserved:
            port = reserved[self.process]
            argv = [
                str(plane.binaries[SCHEDULER]),
                f"--config={path}",
                f"--authorization-kubeconfig={kubeconfig}",
                "--authentication-skip-lookup",
                f"--bind-address={HOST}",
                f"--secure-port={port}",
                "--permit-port-sharing",
                f"--cert-dir={plane.folder.config / 'certs' / self.process}",
                f"--client-ca-file={plane.ca}",
                f"-v={self._verbosity}",
            ]
            plane.start_process(self.process, argv, grace_s=5.0)
            # An administrator's identity: its metrics are not for everybody.
            self.client = LocalApi(f"https://{HOST}:{port}", None, plane.credentials.admin)
            _wait(plane, self.process, lambda: self.client.succeeds("/readyz"))
        return self

    def stop(self) -> None:
        self._plane.stop(self.process)

    def pending(self) -> dict[str, int]:
        """Return pods per queue: active, backoff, gated, unschedulable. Errors: ApiError."""
        found = {}
        for line in str(self.client.get("/metrics")).splitlines():
            if line.startswith('scheduler_pending_pods{queue="'):
                found[line.split('"')[1]] = int(float(line.rpartition(" ")[2]))
        return found


class Extender:
    """The scheduler extender as a process of the plane. Needs the roles of deploy/extender/rbac.yaml.

    Attributes: `url` (of the verbs), `status` (URL of health), `metrics` (their URL, open to this machine),
    `certificates`.
    """

    def __init__(self, plane: Plane, process: str = "evalstop-extender", config: Path | None = None) -> None:
        self._plane, self.process, self._config = plane, process, config
        self.certificates = Certificates(plane.folder.config / "extender-pki")
        port, status_port, metrics_port = free_port(HOST), free_port(HOST), free_port(HOST)
        self.url = f"https://{HOST}:{port}"
        self.status = f"http://{HOST}:{status_port}"
        self.metrics = f"http://{HOST}:{metrics_port}/metrics"
        pair = self.certificates.server
        self.environment = {
            "EVALSTOP_EXTENDER_HOST": HOST,
            "EVALSTOP_EXTENDER_PORT": str(port),
            "EVALSTOP_EXTENDER_CERTIFICATE": str(pair.certificate),
            "EVALSTOP_EXTENDER_KEY": str(pair.key),
            "EVALSTOP_EXTENDER_CLIENT_CA": str(self.certificates.ca),
            "EVALSTOP_EXTENDER_STATUS_HOST": HOST,
            "EVALSTOP_EXTENDER_STATUS_PORT": str(status_port),
            "EVALSTOP_EXTENDER_METRICS_PORT": str(metrics_port),
            "EVALSTOP_EXTENDER_METRICS_ACCESS": "open",
            **({} if config is None else {"EVALSTOP_EXTENDER_SCHEDULER_CONFIG": str(config)}),
        }

    def start(self) -> "Extender":
        """Start it and wait until it is ready. Errors: PlaneError."""
        groups = ["system:serviceaccounts", "system:authenticated"]
        kubeconfig = self._plane.kubeconfig_for(EXTENDER_USER, groups)
        environment = {
            **self.environment,
            "KUBECONFIG": str(kubeconfig),
            "PYTHONPATH": str(REPOSITORY),
            "PYTHONUNBUFFERED": "1",
        }
        argv = [sys.executable, "-m", "controller.extender"]
        self._plane.start_process(self.process, argv, environment, grace_s=10.0)
        _wait(self._plane, self.process, lambda: _succeeds(f"{self.status}/readyz"))
        return self

    def stop(self) -> None:
        self._plane.stop(self.process)


def start_pair(plane: Plane) -> tuple[Extender, Scheduler]:
    """Return the extender under its own roles, and a kube-scheduler that asks it. Errors: PlaneError."""
    plane.kubectl("apply", "-f", str(REPOSITORY / "deploy" / "extender" / "rbac.yaml"))
    extender = Extender(plane).start()
    options = extender.certificates.options(extender.url)
    return extender, Scheduler(plane, scheduler_config.configuration(options)).start()


def _succeeds(url: str) -> bool:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(url, timeout=2.0):
            return True
    except OSError:
        return False


def _wait(plane: Plane, process: str, ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _READY_TIMEOUT_S
    while not ready():
        found = next((part for part in plane.status().processes if part.name == process), None)
        if found is None or found.state != "running":
            raise PlaneError(
                f"{process} has exited; {plane.log(process)} ends:\n{plane.folder.tail(process)}"
            )
        if time.monotonic() > deadline:
            raise PlaneError(f"{process} is not ready after {_READY_TIMEOUT_S:g} s; see {plane.log(process)}")
        time.sleep(0.05)
