"""Tell from a pod's status why it does not run, or how a container of it last ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from controller.objects import Object, parse_time
from controller.policy.job import LAST_WORDS, UNSCHEDULABLE, PodTrouble, free_first
from controller.untrusted_text import one_line

# Waiting in one of these is on the way to running.
USUAL = frozenset({"", "ContainerCreating", "PodInitializing", "CrashLoopBackOff"})
# One wait under two names, between which the kubelet goes to and fro.
SAME = {"ErrImagePull": "ImagePullBackOff"}
CODE_MAX = 2**31 - 1


def pod_trouble(pod: Object) -> PodTrouble | None:
    """Return the newest end with an exit code, else what a container waits for; None: neither."""
    status = pod.get("status") or {}
    metadata = pod.get("metadata") or {}
    name, uid = str(metadata.get("name", ""))[:253], str(metadata.get("uid", ""))
    ends, waits = [], []
    for container in _containers(status):
        which = f"{uid}/{container.get('name', '')}/{container.get('restartCount', 0)}"
        for state, at in (("state", ""), ("lastState", "-")):
            ended = (container.get(state) or {}).get("terminated") or {}
            code = ended.get("exitCode")
            if isinstance(code, int) and code != 0:
                ends.append(_ended(name, which + at, code, ended))
        waiting = (container.get("state") or {}).get("waiting") or {}
        if (why := str(waiting.get("reason") or "")) not in USUAL:
            text = clean(waiting.get("message"))
            waits.append(PodTrouble(name, waits=SAME.get(why, why)[:63], message=text))
    if ends:
        return max(ends, key=lambda one: one.since)
    return waits[0] if waits else None


def unplaced(pod: Object) -> PodTrouble | None:
    """Return that a pod's scheduler finds no node for it, in its words; None: it has one, or none has been
    sought. What it says of preemption and claims after its first sentence helps nobody."""
    status, metadata = pod.get("status") or {}, pod.get("metadata") or {}
    if (pod.get("spec") or {}).get("nodeName") or status.get("phase") != "Pending":
        return None
    for one in status.get("conditions") or ():
        if one.get("type") != "PodScheduled" or one.get("status") != "False":
            continue
        if one.get("reason") == UNSCHEDULABLE:
            words = one_line(str(one.get("message") or ""), 4096).partition(". ")[0].removesuffix(".")
            name = str(metadata.get("name", ""))[:253]
            if len(words) > LAST_WORDS:
                words = free_first(words)
            return PodTrouble(name, waits=UNSCHEDULABLE, message=one_line(words, LAST_WORDS))
    return None


def clean(text: object, most: int = LAST_WORDS) -> str:
    """Return the last words of a text that anybody may have written: one line of printable characters, the
    end of it, ``most`` of them."""
    if not isinstance(text, str):
        return ""
    words = " ".join("".join(x if x.isprintable() else " " for x in text[-4096:]).split())
    return words if len(words) <= most else "…" + words[1 - most :]


def _containers(status: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for group in ("initContainerStatuses", "containerStatuses"):
        yield from status.get(group) or ()


def _ended(pod: str, which: str, code: int, ended: Mapping[str, Any]) -> PodTrouble:
    reason = clean(ended.get("reason"), LAST_WORDS // 2)
    before = "" if reason in {"", "Error"} else f"{reason}: "  # OOMKilled
    last_words = clean(ended.get("message"), LAST_WORDS - len(before))  # what says most is at the end
    last_words = (before + last_words).removesuffix(": ")
    identity = str(ended.get("containerID") or which)[-128:]
    return PodTrouble(
        pod,
        exit_code=min(max(code, 0), CODE_MAX),
        message=last_words,
        since=parse_time(ended.get("finishedAt")) or 0.0,
        container=identity,
    )
