"""Restart policy: is a container that ended started again, and when."""

from __future__ import annotations

from controller.kube.client import Object
from deploy.local.agent.record import INIT, SIDECAR

_LONGEST = 300.0  # s
_FORGIVEN_AFTER = 600.0  # s of running


def wants_restart(pod: Object, container: Object, kind: str, exit_code: int) -> bool:
    """By the pod's restart policy, or the container's own policy and rules where it has them."""
    if kind == SIDECAR:
        return True
    for rule in container.get("restartPolicyRules") or []:
        codes = rule.get("exitCodes") or {}
        listed = exit_code in (codes.get("values") or [])
        if listed == (codes.get("operator") == "In"):
            return bool(rule.get("action") == "Restart")
    policy = container.get("restartPolicy") or pod["spec"].get("restartPolicy") or "Always"
    if kind == INIT:
        return exit_code != 0 and policy != "Never"
    return bool(policy == "Always" or (policy == "OnFailure" and exit_code != 0))


class Backoff:
    """The pause before a restart: none before the first, then `first` seconds, doubling to five minutes.

    A container that ran for ten minutes starts over.
    """

    def __init__(self, first: float) -> None:
        self._first = first
        self._next = 0.0

    def after(self, ran: float) -> float:
        """Return the pause (s) after a run of `ran` seconds."""
        if ran >= _FORGIVEN_AFTER:
            self._next = 0.0
        pause = self._next
        self._next = min(max(self._next * 2, self._first), _LONGEST)
        return pause
