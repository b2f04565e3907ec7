"""The command line of each control-plane component.

As near to what kubeadm would run as loopback allows; every difference says why.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from deploy.local.pki import Pair
from deploy.local.versions import APISERVER, CONTROLLERS, ETCD_NAME, SCHEDULER

HOST = "127.0.0.1"
SERVICE_RANGE = "10.96.0.0/16"
FIRST_SERVICE_IP = "10.96.0.1"
ISSUER = "https://kubernetes.default.svc.cluster.local"
ETCD_PEER = "etcd-peer"  # name of etcd's second port
PORTS = (ETCD_NAME, ETCD_PEER, APISERVER, CONTROLLERS, SCHEDULER)


@dataclasses.dataclass(frozen=True)
class Options:
    """Options in which local control planes differ.

    Attributes:
        controllers: run kube-controller-manager. Without it no namespace gets a service account, so
            pods are refused: for tests of the API alone.
        scheduler: run kube-scheduler.
        scheduler_config: a KubeSchedulerConfiguration file; its kubeconfig and leader election are
            set by the launcher, everything else is taken as it is.
        fsync: make etcd sync to disk. Off: nothing here outlives the machine, and tests are faster.
        node_grace_s: seconds without a heartbeat after which a node counts as not ready (Kubernetes: 50).
        feature_gates: for API server, controller manager and scheduler alike.
        flags: more flags per component, such as `{"kube-apiserver": ["--v=4"]}`; they come last, so
            they win over the launcher's own.
    """

    controllers: bool = True
    scheduler: bool = True
    scheduler_config: Path | None = None
    fsync: bool = False
    node_grace_s: int = 50
    feature_gates: Mapping[str, bool] = dataclasses.field(default_factory=dict)
    flags: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        known = (ETCD_NAME, APISERVER, CONTROLLERS, SCHEDULER)
        for name, flags in self.flags.items():
            if name not in known:
                raise ValueError(f"flags: no component is called {name!r}; there are {', '.join(known)}")
            if isinstance(flags, str):
                raise ValueError(f"flags: {name!r} needs a list of flags, not the text {flags!r}")
        if self.node_grace_s < 5:
            raise ValueError(f"node_grace_s: {self.node_grace_s} is too short for heartbeats; at least 5")
        if self.scheduler_config is not None and not self.scheduler:
            raise ValueError("scheduler_config is given, but scheduler is False")

    @property
    def components(self) -> tuple[str, ...]:
        """The components to run, in the order of their start."""
        chosen = {CONTROLLERS: self.controllers, SCHEDULER: self.scheduler}
        return (ETCD_NAME, APISERVER, *(name for name, wanted in chosen.items() if wanted))

    def described(self) -> dict[str, Any]:
        """Return the same as JSON can hold it; equal for equal planes."""
        config = self.scheduler_config
        return {
            "controllers": self.controllers,
            "scheduler": self.scheduler,
            "schedulerConfig": None if config is None else config.read_text(),
            "fsync": self.fsync,
            "nodeGraceSeconds": self.node_grace_s,
            "featureGates": dict(self.feature_gates),
            "flags": {name: list(flags) for name, flags in self.flags.items()},
        }


@dataclasses.dataclass(frozen=True)
class Files:
    """The files that command lines name: certificates, kubeconfigs, configuration, data."""

    data: Path
    certs: Path  # where a component may write certificates of its own
    ca: Pair
    etcd_ca: Path
    etcd_server: Pair
    etcd_client: Pair
    apiserver: Pair
    kubelet_client: Pair
    token_keys: Pair
    authentication: Path
    controllers: Path  # kubeconfig
    scheduler: Path  # kubeconfig
    scheduler_config: Path


def etcd(files: Files, options: Options, ports: Mapping[str, int]) -> list[str]:
    client, peer = (f"https://{HOST}:{ports[name]}" for name in (ETCD_NAME, ETCD_PEER))
    pair, ca = files.etcd_server, files.etcd_ca
    flags = [
        f"--data-dir={files.data}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        # Everybody on this machine can reach loopback, and etcd holds every Secret.
        "--client-cert-auth",
        f"--trusted-ca-file={ca}",
        f"--cert-file={pair.certificate}",
        f"--key-file={pair.key}",
        "--peer-client-cert-auth",
        f"--peer-trusted-ca-file={ca}",
        f"--peer-cert-file={pair.certificate}",
        f"--peer-key-file={pair.key}",
        "--socket-reuse-port",  # the port is reserved: ports.py
        "--log-level=warn",
    ]
    return [*flags, *([] if options.fsync else ["--unsafe-no-fsync"])]


def kube_apiserver(files: Files, options: Options, ports: Mapping[str, int]) -> list[str]:
    return [
        f"--etcd-servers=https://{HOST}:{ports[ETCD_NAME]}",
        f"--etcd-cafile={files.etcd_ca}",
        f"--etcd-certfile={files.etcd_client.certificate}",
        f"--etcd-keyfile={files.etcd_client.key}",
        f"--bind-address={HOST}",
        f"--advertise-address={HOST}",
        "--endpoint-reconciler-type=none",  # Endpoints refuse loopback addresses
        f"--secure-port={ports[APISERVER]}",
        "--permit-port-sharing",  # the port is reserved: ports.py
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        f"--tls-cert-file={files.apiserver.certificate}",
        f"--tls-private-key-file={files.apiserver.key}",
        f"--cert-dir={files.certs}",
        f"--client-ca-file={files.ca.certificate}",
        f"--authentication-config={files.authentication}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        f"--service-account-issuer={ISSUER}",
        f"--service-account-key-file={files.token_keys.certificate}",
        f"--service-account-signing-key-file={files.token_keys.key}",
        f"--kubelet-certificate-authority={files.ca.certificate}",
        f"--kubelet-client-certificate={files.kubelet_client.certificate}",
        f"--kubelet-client-key={files.kubelet_client.key}",
        "--kubelet-preferred-address-types=InternalIP",
        "--shutdown-watch-termination-grace-period=1s",  # else open watches hold up a stop for a minute
        "--allow-privileged",
        "--profiling=false",
        *_gates(options),
    ]


def kube_controller_manager(files: Files, options: Options, ports: Mapping[str, int]) -> list[str]:
    return [
        f"--kubeconfig={files.controllers}",
        f"--authentication-kubeconfig={files.controllers}",
        f"--authorization-kubeconfig={files.controllers}",
        "--use-service-account-credentials",
        f"--bind-address={HOST}",
        f"--secure-port={ports[CONTROLLERS]}",
        "--permit-port-sharing",
        f"--cert-dir={files.certs}",
        f"--client-ca-file={files.ca.certificate}",
        f"--root-ca-file={files.ca.certificate}",  # published as kube-root-ca.crt
        f"--cluster-signing-cert-file={files.ca.certificate}",
        f"--cluster-signing-key-file={files.ca.key}",
        f"--service-account-private-key-file={files.token_keys.key}",
        f"--node-monitor-grace-period={options.node_grace_s}s",
        f"--node-monitor-period={max(1, min(5, options.node_grace_s // 5))}s",
        # The usual 20 requests a second hold up the first start (36 service accounts) by four seconds.
        "--kube-api-qps=100",
        "--kube-api-burst=200",
        "--leader-elect=false",  # there is one of it; a lease would only delay a restart
        "--profiling=false",
        *_gates(options),
    ]


def kube_scheduler(files: Files, options: Options, ports: Mapping[str, int]) -> list[str]:
    return [
        f"--config={files.scheduler_config}",
        f"--authorization-kubeconfig={files.scheduler}",
        "--authentication-skip-lookup",
        f"--bind-address={HOST}",
        f"--secure-port={ports[SCHEDULER]}",
        "--permit-port-sharing",
        f"--cert-dir={files.certs}",
        f"--client-ca-file={files.ca.certificate}",
        *_gates(options),
    ]


COMMANDS = {
    ETCD_NAME: etcd,
    APISERVER: kube_apiserver,
    CONTROLLERS: kube_controller_manager,
    SCHEDULER: kube_scheduler,
}

# Seconds between SIGTERM and SIGKILL. The API server lets open requests finish; etcd closes its files.
GRACE = {ETCD_NAME: 10.0, APISERVER: 20.0, CONTROLLERS: 5.0, SCHEDULER: 5.0}

# Requests without credentials may ask whether the server is well, and nothing else.
AUTHENTICATION = """\
apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
anonymous:
  enabled: true
  conditions:
  - path: /livez
  - path: /readyz
  - path: /healthz
"""


def scheduler_config(given: Path | None, kubeconfig: Path) -> str:
    """Return the scheduler's configuration: `given` with our kubeconfig in it. Errors: ValueError."""
    config: Any = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    if given is not None:
        config = yaml.safe_load(given.read_text())
        kind = config.get("kind") if isinstance(config, dict) else type(config).__name__
        if kind != "KubeSchedulerConfiguration":
            raise ValueError(
                f"scheduler_config: {given} holds {kind}, it must hold a KubeSchedulerConfiguration"
            )
    connection = {**(config.get("clientConnection") or {}), "kubeconfig": str(kubeconfig)}
    return yaml.safe_dump(
        {**config, "clientConnection": connection, "leaderElection": {"leaderElect": False}}, sort_keys=False
    )


def _gates(options: Options) -> list[str]:
    gates = ",".join(f"{gate}={str(on).lower()}" for gate, on in sorted(options.feature_gates.items()))
    return [f"--feature-gates={gates}"] if gates else []
