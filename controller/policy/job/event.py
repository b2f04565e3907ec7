"""An Event of Kubernetes, as a plan has it. Apart from `types`: who only reads conditions loads no more."""

from __future__ import annotations

from controller.frozen import dataclass


@dataclass(frozen=True, slots=True)
class Event:
    """A Kubernetes Event to post on the RLHFJob after the status is written."""

    reason: str
    message: str
    warning: bool = False
