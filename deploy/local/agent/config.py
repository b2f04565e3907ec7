"""The agent's settings: one JSON file, checked as it is read."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deploy.local.agent import quantity
from deploy.local.agent.images import Environment

MOUNTING = ("auto", "root", "user", "none")


@dataclass(frozen=True)
class NodeConfig:
    """One node. ``ip`` is 127.x.y.1; ``certificate`` and ``key`` serve its kubelet port."""

    name: str
    ip: str
    kubeconfig: Path
    certificate: Path
    key: Path
    gpus: int = 0
    cpu: str = "16"
    memory: str = "64Gi"
    pods: int = 110
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class AgentConfig:
    """Everything one agent process is told."""

    work: Path  # the nodes' folders: pods, logs
    nodes: tuple[NodeConfig, ...]
    client_ca: Path  # signs those who may read logs …
    client_names: tuple[str, ...] = ("kube-apiserver-kubelet-client",)  # … and these are their common names
    port: int = 10250  # of every node's kubelet server, each on its own address
    mounting: str = "auto"
    restart_backoff: float = 10.0  # s
    lease_seconds: int = 40
    provisioner: Path | None = None  # kubeconfig of its identity; None: none runs in this process
    volumes: Path | None = None  # where the provisioner makes folders
    images: dict[str, Environment] = field(default_factory=dict)


class ConfigProblem(ValueError):
    """The settings file is not one; the message names the field and what would be right."""


def load(path: Path) -> AgentConfig:
    """Read and check a settings file. Raises ConfigProblem."""
    try:
        raw = json.loads(path.read_text())
        nodes = tuple(_node(entry) for entry in raw.pop("nodes"))
        images = {name: _environment(entry) for name, entry in raw.pop("images", {}).items()}
        for key in ("work", "client_ca", "provisioner", "volumes"):
            if raw.get(key) is not None:
                raw[key] = Path(raw[key])
        if "client_names" in raw:
            raw["client_names"] = tuple(raw["client_names"])
        config = AgentConfig(nodes=nodes, images=images, **raw)
    except (OSError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise ConfigProblem(f"{path}: {type(error).__name__}: {error}") from error
    _check(path, config)
    return config


def _node(raw: dict[str, Any]) -> NodeConfig:
    paths: dict[str, Any] = {key: Path(raw.pop(key)) for key in ("kubeconfig", "certificate", "key")}
    return NodeConfig(**raw, **paths)


def _environment(raw: dict[str, Any]) -> Environment:
    lists: dict[str, Any] = {key: tuple(raw.pop(key)) for key in ("entrypoint", "cmd") if key in raw}
    return Environment(**raw, **lists)


def _check(path: Path, config: AgentConfig) -> None:
    if not config.nodes:
        raise ConfigProblem(f"{path}: nodes is empty: at least one node is needed")
    if config.mounting not in MOUNTING:
        raise ConfigProblem(f"{path}: mounting {config.mounting!r}: expected one of {', '.join(MOUNTING)}")
    if (config.provisioner is None) != (config.volumes is None):
        raise ConfigProblem(f"{path}: provisioner and volumes go together: give both or neither")
    for attribute in ("name", "ip"):
        values = [getattr(node, attribute) for node in config.nodes]
        if len(set(values)) != len(values):
            raise ConfigProblem(f"{path}: nodes: {attribute} {values} must differ")
    for node in config.nodes:
        if node.gpus < 0:
            raise ConfigProblem(f"{path}: node {node.name}: gpus {node.gpus}: at least 0")
        parts = node.ip.split(".")
        if len(parts) != 4 or parts[0] != "127" or parts[3] != "1" or parts[1:3] == ["0", "0"]:
            raise ConfigProblem(
                f"{path}: node {node.name}: ip {node.ip!r}: expected 127.x.y.1, not in 127.0.0"
            )
        for amount in (node.cpu, node.memory):
            quantity.parse(amount)
