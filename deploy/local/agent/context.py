"""State that the parts of one node share, and the settings they were started with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

from controller.kube.client import Api
from deploy.local.agent.claims import Attachments
from deploy.local.agent.devices import Gpus
from deploy.local.agent.events import Recorder
from deploy.local.agent.images import Environment
from deploy.local.agent.labels import OwnLabels
from deploy.local.agent.sources import Objects


@dataclass(frozen=True)
class Node:
    """One node: its identity at the API server, its place on this machine, what it offers."""

    name: str
    ip: str  # 127.x.y.1; its pods get 127.x.y.2 to 127.x.y.254
    folder: Path  # pods, their volumes and logs
    api: Api
    server: str  # URL of the API server
    objects: Objects
    events: Recorder
    gpus: Gpus
    attachments: Attachments  # shared by all nodes of the agent
    mounting: str  # root, user or none, as `enter.py probe` says
    allocatable: Mapping[str, Fraction]
    labels: OwnLabels
    images: Mapping[str, Environment] = field(default_factory=dict)  # besides images.TABLE
    restart_backoff: float = 10.0  # s before the second restart; doubles to 300

    @property
    def changes_users(self) -> bool:
        """Return whether containers run as the users that they ask for: only root may give up being root, and
        only in a root of its own can what an image holds be opened to that user."""
        return self.mounting == "root"
