"""The KubeSchedulerConfiguration of the kube-scheduler process that asks the extender, made and read."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import yaml

from controller import names
from controller.frozen import dataclass

API_VERSION = "kubescheduler.config.k8s.io/v1"
KIND = "KubeSchedulerConfiguration"


class ConfigError(Exception):
    """A value is out of bounds, or a file is no such configuration; the message says which."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options that may differ between installations.

    Attributes:
        url: address of the extender, such as ``https://10.96.0.20:8443``.
        ca: PEM of the authority of its serving certificate. Needed: without one kube-scheduler does not
            verify the server at all, and says nothing of it.
        certificate, key: PEM of the client certificate that kube-scheduler shows.
        files: the three are paths in the scheduler's pod, and not contents to embed.
        ignorable: an extender that fails is passed over (open) instead of stopping the pod (closed).
        timeout: seconds for one request.
        weight: of the extender's scores: each point counts ten times this beside the plugins' hundreds.
        qps: requests per second to the API server; the usual 50 would cap pods per second at some 25.
        leader_elect: one of several replicas schedules. A lease of its own: with the default scheduler's name
            the two would shut each other out.
    """

    url: str
    ca: str
    certificate: str
    key: str
    files: bool = False
    scheduler_name: str = names.SCHEDULER_NAME
    ignorable: bool = False
    timeout: float = 1.0
    weight: int = 10
    qps: float = 1000.0
    leader_elect: bool = True
    kubeconfig: str = ""

    def __post_init__(self) -> None:
        if not self.url.startswith("https://"):
            raise ConfigError(f"url: {self.url!r}, expected one that begins with https://")
        for name in ("ca", "certificate", "key"):
            if not getattr(self, name):
                raise ConfigError(f"{name}: empty; kube-scheduler must know whom to trust, and be known")
        if not 0.05 <= self.timeout <= 60:
            raise ConfigError(f"timeout: {self.timeout:g} s, expected 0.05 to 60")
        if not 1 <= self.weight <= 1000:
            raise ConfigError(f"weight: {self.weight}, expected 1 to 1000")
        if not 1 <= self.qps <= 100_000:
            raise ConfigError(f"qps: {self.qps:g}, expected 1 to 100000")


def configuration(options: Options) -> dict[str, Any]:
    """Return the KubeSchedulerConfiguration, ready for YAML."""
    connection: dict[str, Any] = {"qps": options.qps, "burst": int(2 * options.qps)}
    if options.kubeconfig:
        connection["kubeconfig"] = options.kubeconfig
    election: dict[str, Any] = {"leaderElect": options.leader_elect}
    if options.leader_elect:
        election |= {"resourceName": options.scheduler_name, "resourceNamespace": names.NAMESPACE}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        # The planned node must be among the nodes that the extender is asked about: with sampling it is there
        # only by chance, and the pod would be refused everywhere.
        "percentageOfNodesToScore": 100,
        # A gang whose last member backs off for ten seconds is a gang that waits ten seconds.
        "podInitialBackoffSeconds": 1,
        "podMaxBackoffSeconds": 2,
        "clientConnection": connection,
        "leaderElection": election,
        "profiles": [{"schedulerName": options.scheduler_name}],
        "extenders": [_extender(options)],
    }


def _extender(options: Options) -> dict[str, Any]:
    if options.files:
        tls = {"caFile": options.ca, "certFile": options.certificate, "keyFile": options.key}
    else:
        tls = {
            "caData": _data(options.ca),
            "certData": _data(options.certificate),
            "keyData": _data(options.key),
        }
    return {
        "urlPrefix": options.url,
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "preemptVerb": "preempt",
        "weight": options.weight,
        "enableHTTPS": True,
        "tlsConfig": tls,
        "httpTimeout": f"{int(options.timeout * 1000)}ms",
        "nodeCacheCapable": True,
        "ignorable": options.ignorable,
    }


def write(options: Options) -> str:
    """Return the configuration as YAML."""
    return yaml.safe_dump(configuration(options), sort_keys=False)


def ignorable(path: str) -> bool:
    """Return whether the scheduler of this configuration passes its extenders over when they fail.

    Raises:
        ConfigError: the file is no KubeSchedulerConfiguration with an extender.
    """
    try:
        found = yaml.safe_load(Path(path).read_text())
        extenders = found["extenders"]
        return any(bool(extender.get("ignorable")) for extender in extenders)
    except (OSError, yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: expected a {KIND} with extenders ({error})") from None


def _data(pem: str) -> str:
    return base64.b64encode(pem.encode()).decode()
