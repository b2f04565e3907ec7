"""Kueue's manager as a process of a local control plane.

    with Plane(work) as plane, Kueue(plane):
        ...

Installed as its release installs it: the same resources, roles and webhooks, the manager under its own
service account's name. What differs: webhooks are called by address (there are no Services here), only
batch/v1 Jobs are managed, and the visibility API is off.
"""

import json
import os
import random
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from controller.kube.errors import ApiError
from controller.names import QUEUE_LABEL
from deploy.local.acquire import Found, obtain
from deploy.local.control import REPOSITORY
from deploy.local.errors import PlaneError
from deploy.local.kueue import manifests
from deploy.local.kueue.recipe import KUEUE, MANIFESTS, PROGRAM
from deploy.local.plane import Plane

PROCESS = "kueue"  # what the plane calls it: plane.log(PROCESS), plane.restart(PROCESS)
WEBHOOK_PORT, METRICS_PORT, HEALTH_PORT = 9443, 8443, 8081
_GRACE_S = 5.0
_READY_TIMEOUT_S = 60.0
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_MIN_PARALLELISM = "kueue.x-k8s.io/job-min-parallelism"


class Kueue:
    """Kueue on a running plane, from `start` until `stop` or the plane's end.

    Args:
        plane: a plane that is up, with controllers.
        config: fields of Kueue's Configuration over the launcher's own, merged into nested ones:
            `{"integrations": {"externalFrameworks": ["Kind.v1.example.com"]}}`.
        tools: what `obtain(recipe=KUEUE)` found; None: obtain it now.

    Errors of all methods: PlaneError, with what is wrong.
    """

    def __init__(
        self,
        plane: Plane,
        config: Mapping[str, Any] | None = None,
        tools: Mapping[str, Found] | None = None,
    ) -> None:
        self.plane = plane
        self.folder = plane.folder.config / PROCESS
        self._config = dict(config or {})
        self._tools = tools

    def start(self) -> "Kueue":
        """Install Kueue and start its manager; returns when its webhooks are in effect.

        It may answer them for a moment before it has read the queues that are there.
        Nothing to do if it runs with the same configuration.
        """
        if self._running():
            if self._written() != self._configuration(self._address()):
                raise PlaneError(f"Kueue runs in {self.plane.work} with another configuration: stop it first")
            return self
        began = time.monotonic()
        tools = self._tools or obtain(self.plane.report, recipe=KUEUE)
        program, source = tools[PROGRAM].path, tools[MANIFESTS].path
        self.folder.mkdir(exist_ok=True, mode=0o700)
        address = self._address()
        rendered = manifests.parse(self.plane.kubectl("kustomize", str(source / "default")))
        url, ca = f"https://{address}:{WEBHOOK_PORT}", self.plane.ca.read_bytes()
        before, webhooks = manifests.fitted(rendered, url, ca)
        self._apply(before)
        self._wait("its resources to be served", self._served)
        self._write(address)
        self._begin(program, address)
        self._wait("its webhook server", lambda: _ready(address))
        self._apply(webhooks)
        self._wait("its webhooks to take effect", self._in_effect)
        self.plane.report(f"Kueue is up after {time.monotonic() - began:.1f} s")
        return self

    def stop(self) -> None:
        """Take its webhooks away, so that Jobs can be made without it, and end it. Its objects stay."""
        remove_webhooks(self.plane)
        if self._running():
            self.plane.stop(PROCESS)

    def reconfigure(self, config: Mapping[str, Any]) -> None:
        """Restart the manager with other fields over the launcher's own (`config` of the constructor).

        It may have left by itself since it was started, but must not have been stopped.
        """
        self._config = dict(config)
        address = self._address()
        self._write(address)
        self.plane.restart(PROCESS)
        self._wait("its webhook server", lambda: _ready(address))
        self._wait("its webhooks to take effect", self._in_effect)

    @staticmethod
    def installed(plane: Plane) -> bool:
        """Return whether the plane's cluster knows Kueue: its resources cannot be read without it from then
        on."""
        return (plane.folder.config / PROCESS).is_dir()

    def __enter__(self) -> "Kueue":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # Settings

    def _configuration(self, address: str) -> dict[str, Any]:
        own = {
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "namespace": manifests.NAMESPACE,
            "health": {"healthProbeBindAddress": f"{address}:{HEALTH_PORT}"},
            "metrics": {"bindAddress": f"{address}:{METRICS_PORT}"},
            "webhook": {"host": address, "port": WEBHOOK_PORT, "certDir": str(self.folder / "certs")},
            "leaderElection": {"leaderElect": False},  # there is one of it
            "internalCertManagement": {"enable": False},  # it would put Services into the webhooks
            "featureGates": {"VisibilityOnDemand": False},  # an aggregated API needs a Service
            "clientConnection": {"qps": 100, "burst": 200},
            "integrations": {"frameworks": ["batch/job"]},
        }
        return _merged(own, self._config)

    def _write(self, address: str) -> None:
        """Write settings and certificates as files for the manager."""
        certs = self.folder / "certs"
        certs.mkdir(exist_ok=True, mode=0o700)
        pair = self.plane.server_cert("kueue-webhook", [address])
        for name, path in (("tls.crt", pair.certificate), ("tls.key", pair.key)):
            (certs / name).unlink(missing_ok=True)
            os.link(path, certs / name)
        (self.folder / "root").mkdir(exist_ok=True)
        self._file.write_text(yaml.safe_dump(self._configuration(address), sort_keys=False))

    @property
    def _file(self) -> Path:
        return self.folder / "manager.yaml"

    def _written(self) -> Any:
        return yaml.safe_load(self._file.read_text())

    def _address(self) -> str:
        """Return the loopback address of its own: the one that it had, if nobody else has taken it."""
        record = self.folder / "address"
        if record.exists() and (self._running() or _free(record.read_text())):
            return record.read_text()
        for _ in range(50):
            # Nodes and their pods have 127.16 to 127.250. With a fixed port on an address that nobody
            # connects *from*, no outgoing connection can take the port while the manager restarts.
            address = f"127.{random.randint(251, 254)}.{random.randint(1, 254)}.{random.randint(1, 254)}"
            if _free(address):
                record.write_text(address)
                return address
        raise PlaneError(f"no free loopback address for Kueue (port {WEBHOOK_PORT} on 127.251 to 127.254)")

    # The cluster

    def _apply(self, objects: list[dict[str, Any]]) -> None:
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        # Server-side: a client-side apply would put the Workload CRD (1.4 MB) into an annotation.
        self.plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=text)

    def _served(self) -> bool:
        found = self.plane.client().get(_CRDS)["items"]
        kueues = [crd for crd in found if crd["spec"]["group"] == "kueue.x-k8s.io"]
        return all(
            any(
                c["type"] == "Established" and c["status"] == "True"
                for c in crd["status"].get("conditions") or ()
            )
            for crd in kueues
        )

    def _in_effect(self) -> bool:
        """Return whether the API server has taken up both webhooks for Jobs: one changes, the other
        refuses."""
        jobs = "/apis/batch/v1/namespaces/default/jobs?dryRun=All"
        client = self.plane.client()
        try:
            if client.post(jobs, _probe(labels={QUEUE_LABEL: "none"}))["spec"].get("suspend") is not True:
                return False
            client.post(jobs, _probe(annotations={_MIN_PARALLELISM: "none"}))
        except ApiError as error:
            return error.status != 0 and _MIN_PARALLELISM in str(error)
        return False

    # The process

    def _begin(self, program: Path, address: str) -> None:
        argv = [sys.executable, "-S", "-m", "deploy.local.kueue.launch"]
        argv += [str(self.folder / "root"), str(self.folder / "certs")]
        argv += [str(program), f"--config={self._file}", "--zap-log-level=2"]
        environment = {
            "KUBECONFIG": str(self.plane.kubeconfig_for(manifests.USER, manifests.GROUPS)),
            "POD_NAMESPACE": manifests.NAMESPACE,
            "PYTHONPATH": str(REPOSITORY),
        }
        self.plane.start_process(PROCESS, argv, environment, grace_s=_GRACE_S)

    def _running(self) -> bool:
        found = self.plane.status().processes
        return any(part.name == PROCESS and part.state == "running" for part in found)

    def _wait(self, what: str, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _READY_TIMEOUT_S
        while not done():
            log = self.plane.log(PROCESS)
            part = next((p for p in self.plane.status().processes if p.name == PROCESS), None)
            # The code is known a moment after the end is seen.
            if part is not None and part.state == "exited" and part.exit_code is not None:
                tail = self.plane.folder.tail(PROCESS)
                raise PlaneError(
                    f"Kueue exited ({part.exit_code}) while waiting for {what}; {log} ends:\n{tail}"
                )
            if time.monotonic() > deadline:
                raise PlaneError(f"waited {_READY_TIMEOUT_S:g} s for Kueue, {what}; see {log}")
            time.sleep(0.1)


def remove_webhooks(plane: Plane) -> None:
    """Delete Kueue's webhook configurations, if it ever ran here: without it they refuse every Job."""
    if not Kueue.installed(plane):
        return
    client = plane.client()
    for kind in ("mutating", "validating"):
        path = f"{_ADMISSION}/{kind}webhookconfigurations/kueue-{kind}-webhook-configuration"
        try:
            client.delete(path)
        except ApiError as error:
            if error.status != 404:
                raise PlaneError(f"Kueue's webhooks cannot be removed: {error}") from error


def _free(address: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as claim:
        claim.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            claim.bind((address, WEBHOOK_PORT))
        except OSError:
            return False
    return True


def _ready(address: str) -> bool:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"http://{address}:{HEALTH_PORT}/readyz", timeout=2.0) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _probe(**metadata: Any) -> dict[str, Any]:
    """Return a Job that is never made: for dry runs."""
    pod = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "none"}]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "kueue-probe", **metadata},
        "spec": {"template": {"spec": pod}},
    }


def _merged(own: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(own)
    for key, value in given.items():
        before = merged.get(key)
        both = isinstance(before, Mapping) and isinstance(value, Mapping)
        merged[key] = _merged(before, value) if both else value  # type: ignore[arg-type]
    return merged
