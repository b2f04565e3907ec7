"""User of an access Job's pod: the trainer's user, or the owner of the files that the trainer wrote.

The first of these that is set: ``runAsUser`` of the trainer's container, ``runAsUser`` of the trainer's pod,
``spec.checkpoints.runAs``, the owner of the newest checkpoint's files (`file_owner`, which the status
remembers). If none is, the pod runs as the user of its image, who is not root, and finds out the owner.

No fsGroup of our own: the kubelet would rewrite the groups of a whole volume under a running trainer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from controller.frozen import dataclass
from controller.policy.job import FileOwner

Object = Mapping[str, Any]

USER_REFUSED = "UserRefused"
ROOT = 0
SPEC_FIELD = "spec.checkpoints.runAs.user"
# Copied from the trainer's pod, so that the files it wrote can be read and linked.
POD_SECURITY = (
    "runAsUser",
    "runAsGroup",
    "runAsNonRoot",
    "fsGroup",
    "fsGroupChangePolicy",
    "supplementalGroups",
    "supplementalGroupsPolicy",
    "seLinuxOptions",
)
CONTAINER_SECURITY = ("runAsUser", "runAsGroup", "runAsNonRoot", "seLinuxOptions")


@dataclass(frozen=True, slots=True)
class RunAs:
    """User and group of an access Job's pod, and their source; ``user`` None: not known, the image's own."""

    user: int | None = None
    group: int | None = None  # None: as the template, or the image, says
    source: str = ""  # the field, or the owner of which files
    from_template: bool = False  # the trainer's template sets it, and is copied anyway

    def pod_security(self, trainer: Object) -> dict[str, Any]:
        """Return the securityContext of the pod: the trainer's, this user, and what is always asked for."""
        context = _picked(trainer.get("securityContext"), POD_SECURITY)
        if not self.from_template and self.user is not None:
            context["runAsUser"] = self.user
            context.setdefault("runAsGroup", self.group)
        if self.user == ROOT:
            context.pop("runAsNonRoot", None)
        else:
            context["runAsNonRoot"] = True
        context["seccompProfile"] = {"type": "RuntimeDefault"}
        return context

    def container_security(self, trainer: Object) -> dict[str, Any]:
        """Return what the trainer's container sets beyond its pod."""
        context = _picked(_first(trainer).get("securityContext"), CONTAINER_SECURITY)
        if self.user == ROOT:
            context.pop("runAsNonRoot", None)
        return context

    def problem(self, trainer: Object) -> str | None:
        """Return why the trainer's own template does not let this user in; None: it does."""
        contexts = (_first(trainer).get("securityContext"), trainer.get("securityContext"))
        root_refused = any((context or {}).get("runAsNonRoot") for context in contexts)
        if self.user != ROOT or not root_refused:
            return None
        return (
            f"checkpoints are to be reached as user {ROOT} (from {self.source}), and the template says "
            "runAsNonRoot: true; take that line away, or have the trainer write as another user "
            "(securityContext.runAsUser in the template)"
        )


def run_as(rlhfjob: Object, trainer: Object, file_owner: FileOwner | None = None) -> RunAs:
    """Return the user that access Jobs run as.

    Args:
        rlhfjob: the manifest; ``spec.checkpoints`` is read.
        trainer: the pod spec of its workload's template.
        file_owner: the owner of the newest checkpoint's files, as the status remembers it.
    """
    fields = (
        ("securityContext.runAsUser of the template's first container", _first(trainer)),
        ("spec.securityContext.runAsUser of the template", trainer),
    )
    for source, of in fields:
        user = (of.get("securityContext") or {}).get("runAsUser")
        if user is not None:
            return RunAs(int(user), None, source, from_template=True)
    named = ((rlhfjob.get("spec") or {}).get("checkpoints") or {}).get("runAs")
    if named:
        user = int(named["user"])
        return RunAs(user, int(named.get("group", user)), SPEC_FIELD)
    if file_owner is not None:
        return RunAs(file_owner.user, file_owner.group, f"the owner of {file_owner.by or 'the location'}")
    return RunAs()


def _first(trainer: Object) -> Object:
    containers: Sequence[Object] = trainer.get("containers") or ()
    return containers[0] if containers else {}


def _picked(source: object, fields: Sequence[str]) -> dict[str, Any]:
    return {f: source[f] for f in fields if f in source} if isinstance(source, Mapping) else {}
