"""Results of access Jobs, read from the Job and its pod."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeGuard

from controller import bounded, names
from controller.checkpoints.digest import DIGEST_PATTERN
from controller.checkpoints.errors import Reason
from controller.checkpoints.layouts import LAYOUTS
from controller.checkpoints.pins import ATTEMPT_PATTERN
from controller.checkpoints.request import CHANGED_LIMIT, LAYOUT_BY_MAX, MESSAGE_LIMIT
from controller.policy.job import AccessView, FileOwner, FoundLayout, Hindrance, Operation
from controller.policy.wording import some
from controller.untrusted_text import one_line, printable

Object = Mapping[str, Any]

_MISSING = re.compile(r"Insufficient [\w./-]*\w|Too many pods|untolerated taint [^}]*}")
_WORD = re.compile(r"[A-Za-z]{1,32}\Z")
_METHOD = re.compile(r"(clone|link|copy)(\+(clone|link|copy))*\Z")
TEXT_LIMIT = 1024  # characters of a message that is passed on


def read_result(job: Object, pods: Iterable[Object], request_id: str) -> AccessView:
    """Return an access Job in the brain's words.

    Args:
        job: the Job.
        pods: its own pods (by owner uid, not by label).
        request_id: whose it is.

    Anybody who may create pods in the namespace can give one this Job as its owner. A Job has one pod at a
    time that is not being deleted, so where there are more, none is heard: which is the Job controller's
    cannot be told by anything that such a person could not write as well.

    The pod's termination message counts as soon as the pod has ended, which is before the Job says so. A
    Job that ended without a readable one (deadline, eviction, no image) is a failure with reason
    ``AccessFailed`` that tells why. The message is a tenant's word: it is checked, never trusted further
    than that tenant's own checkpoint.
    """
    labels = job["metadata"].get("labels") or {}
    operation = Operation(labels.get(names.LABEL_OPERATION, Operation.SECURE))
    waiting, pods = "", list(pods)
    metadata = [pod["metadata"] for pod in pods]
    live = sorted(str(one.get("name")) for one in metadata if not one.get("deletionTimestamp"))
    if len(live) > 1:
        return _failed(
            request_id,
            operation,
            f"{len(live)} pods say that they are its access Job's, which has one: {some(live, 4)}; "
            "whose the others are nobody knows: none is heard; delete them, and see who can make pods here",
        )
    for pod in sorted(pods, key=lambda p: str(p["metadata"].get("name"))):
        message = _termination_message(pod)
        if message is not None:
            return _read(request_id, operation, message)
        waiting = waiting or _waiting(pod)
    ended = _ended(job)
    if ended is None and (why := _unschedulable(pods)) is not None:
        message = _no_node(job, why)
        return AccessView(
            request_id, operation, finished=False, message=message, hindered=Hindrance.UNSCHEDULABLE
        )
    if ended is None:
        return AccessView(request_id, operation, finished=False, message=waiting)
    text = "; ".join(part for part in (ended, waiting) if part)
    return _failed(request_id, operation, f"the access Job ended without an answer: {text}")


def _read(request_id: str, operation: Operation, message: str) -> AccessView:
    if len(message.encode()) > MESSAGE_LIMIT:
        return _failed(request_id, operation, "the answer is longer than a termination message can be")
    try:
        answer = bounded.load(message, "the answer")
    except ValueError:
        return _failed(request_id, operation, f"the answer is not JSON: {message[-300:]!r}")
    if not isinstance(answer, dict) or not isinstance(answer.get("ok"), bool):
        return _failed(request_id, operation, f"the answer is not of the agreed form: {message[:300]!r}")
    view = AccessView(
        request_id,
        operation,
        finished=True,
        ok=answer["ok"],
        changed=_paths(answer.get("changed")),
        file_owner=_file_owner(answer.get("fileOwner")),
        folder_gone=answer.get("gone") is True,
    )
    if not view.ok:
        reason = answer.get("reason")
        known = reason if reason in set(Reason) else Reason.FAILED
        text = _cut(str(answer.get("message") or reason))
        lowest = answer.get("lowest")
        return replace(
            view,
            reason=str(known),
            message=text,
            holder=_holder(answer.get("holder")),
            lowest=lowest if _whole(lowest) else None,
        )
    view = replace(view, message=_cut(str(answer.get("note") or "")))
    step = answer.get("step")
    if operation is Operation.CLAIM:
        newest = min(step, names.STEP_MAX) if _whole(step) else 0
        deferred, other = answer.get("deferred") is True, answer.get("otherBranch") is True
        return replace(view, deferred=deferred, other_branch=other, step=newest)
    path, digest = answer.get("path"), answer.get("digest")
    source_digest, size = answer.get("sourceDigest"), answer.get("bytes")
    if (
        not _whole(step)
        or not _whole(size)
        or not _is_path(path)
        or not all(isinstance(d, str) and DIGEST_PATTERN.match(d) for d in (digest, source_digest))
    ):
        return _failed(
            request_id, operation, f"the answer lacks step, path, digest or bytes: {message[:300]!r}"
        )
    return replace(
        view,
        step=step,
        path=str(path),
        digest=str(digest),
        source_digest=str(source_digest),
        bytes=int(size or 0),
        attempt=_matching(answer.get("attempt"), ATTEMPT_PATTERN),
        evidence=_matching(answer.get("evidence"), _WORD),
        method=_matching(answer.get("method"), _METHOD),
        layout=_layout(answer.get("layout")),
    )


def _layout(raw: object) -> FoundLayout | None:
    name = raw.get("name") if isinstance(raw, Mapping) else None
    if not isinstance(raw, Mapping) or not isinstance(name, str) or name not in LAYOUTS:
        return None
    return FoundLayout(name, printable(str(raw.get("by") or ""), LAYOUT_BY_MAX))


def _file_owner(raw: object) -> FileOwner | None:
    if not isinstance(raw, Mapping):
        return None
    user, group = raw.get("user"), raw.get("group")
    if not (_whole(user) and _whole(group)) or max(user, group) > names.UID_MAX:
        return None
    return FileOwner(user, group, printable(str(raw.get("by") or ""), LAYOUT_BY_MAX))


def _matching(value: object, pattern: re.Pattern[str]) -> str:
    return value if isinstance(value, str) and pattern.match(value) else ""


def _is_path(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 1024 and value.isprintable()


def _paths(raw: object) -> tuple[str, ...]:
    return tuple(filter(_is_path, raw[:CHANGED_LIMIT])) if isinstance(raw, list) else ()


def _holder(raw: object) -> tuple[str, str] | None:
    if not isinstance(raw, Mapping):
        return None
    uid, job = raw.get("uid"), raw.get("job")
    if not isinstance(uid, str) or not isinstance(job, str):
        return None
    return printable(uid, 64), printable(job, 320)


def _failed(request_id: str, operation: Operation, message: str) -> AccessView:
    return AccessView(
        request_id, operation, finished=True, ok=False, reason=str(Reason.FAILED), message=_cut(message)
    )


def _termination_message(pod: Object) -> str | None:
    """Return the message of the pod's container once it ended; None while it runs, or if it said nothing."""
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        ended = (status.get("state") or {}).get("terminated")
        if ended and ended.get("message"):
            # With FallbackToLogsOnError a crash leaves its log here, which is no JSON.
            return str(ended["message"]).strip()
    return None


def _waiting(pod: Object) -> str:
    """Return why the pod does not run, in the cluster's words."""
    status = pod.get("status") or {}
    for container in status.get("containerStatuses") or ():
        state = container.get("state") or {}
        for what in ("waiting", "terminated"):
            found = state.get(what) or {}
            if found.get("reason") and found["reason"] not in ("ContainerCreating", "PodInitializing"):
                code = f", exit code {found['exitCode']}" if "exitCode" in found else ""
                return _cut(f"{found['reason']}{code} {found.get('message') or ''}".strip())
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return _cut(f"{condition.get('reason')}: {condition.get('message') or ''}")
    parts = [str(status[key]) for key in ("reason", "message") if status.get(key)]
    return _cut(": ".join(parts))


def _unschedulable(pods: Iterable[Object]) -> str | None:
    """kube-scheduler's words about a pod that it finds no node for; None: none waits for one."""
    for pod in pods:
        for condition in (pod.get("status") or {}).get("conditions") or ():
            if condition.get("type") == "PodScheduled" and condition.get("reason") == "Unschedulable":
                return str(condition.get("message") or "")
    return None


def _no_node(job: Object, why: str) -> str:
    """Return what is missing, where, and what helps."""
    pod = ((job.get("spec") or {}).get("template") or {}).get("spec") or {}
    node = _bound_to(pod)
    if not node:
        return _cut(f"its access Job's pod finds no node: {why}")
    # The numbers of other nodes, which it may not go to, change all the time.
    missing = ", ".join(sorted(set(_MISSING.findall(why)))) or why
    containers = pod.get("containers") or [{}]
    asked = (containers[0].get("resources") or {}).get("requests") or {}
    asks = ", ".join(f"{name} {amount}" for name, amount in sorted(asked.items()))
    return _cut(
        f"its access Job's pod must run on node {node}, which has the volume mounted (ReadWriteOnce), and "
        f"there is no room for it: {missing}; it asks for {asks or 'nothing'}: free that much on {node}, or "
        "keep checkpoints on a volume that several nodes may mount"
    )


def _bound_to(pod: Object) -> str:
    """Return the one node that a pod may go to; "": it is not bound to one."""
    affinity = (pod.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    for term in required.get("nodeSelectorTerms") or ():
        for field in term.get("matchFields") or ():
            if field.get("key") == "metadata.name" and field.get("values"):
                return str(field["values"][0])
    return ""


def _ended(job: Object) -> str | None:
    for condition in (job.get("status") or {}).get("conditions") or ():
        if condition.get("type") in ("Complete", "Failed") and condition.get("status") == "True":
            parts = (condition.get("type"), condition.get("reason"), condition.get("message"))
            return ": ".join(str(part) for part in parts if part)
    return None


def _whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _cut(text: str) -> str:
    """Return a pod's or the cluster's words: without what a terminal would obey, at a length that a status
    has."""
    return one_line(text, TEXT_LIMIT)
