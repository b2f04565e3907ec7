"""Checks of the template's launcher: what becomes of the trainer when its pod is told to end.

A run is ended by SIGTERM when it is suspended, preempted, or its node is drained. The step and a checkpoint
are finished if the trainer hears of it and the grace period is long enough; and the exit code after it must
not be taken for a failure. What each launcher does is in docs/use/trainers.md, *Launchers*.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any

from controller.cli.cluster import CallerApi
from controller.cli.doctor.findings import Finding, note, ok, wrong
from controller.cli.job_view import Reading
from controller.kube.errors import NotFound
from controller.kube.resources import JOBS
from controller.workloads.kinds import get

Object = Mapping[str, Any]

SHELLS = ("sh", "bash", "dash", "ash", "zsh")
TERMINATED = 143  # 128 + SIGTERM
# Exit codes of launchers that are told to end, whatever the trainer's is, and why. Ray 2.60's is that of a
# driver with no handler of its own.
CODES = {
    "torchrun": (1, "torchrun ends with 1, whatever its script ends with"),
    "driver": (1, "a driver of Ray's ends with 1"),
}
GRACE = "terminationGracePeriodSeconds"
USUAL_GRACE = 30  # s, where the template names none
FAILING = ("FailJob", "FailIndex")
PAGE = "docs/use/trainers.md, Launchers"
# What makes a shell start a command beside itself, instead of becoming it; 2>&1 and &>log do not.
_SEVERAL = re.compile(r"\n|;|\||&&|(?<!>)&(?![&>\d])")
_PASSES_ON = re.compile(r"(^|[\s;&(])(exec|trap)\s")


async def template(api: CallerApi, job: Reading) -> AsyncIterator[Finding]:
    """Yield what is wrong with the template of the workload, or with the one that the spec refers to."""
    workload = (job.spec.get("workload") or {}).get("template")
    ref = (job.spec.get("workload") or {}).get("ref")
    if ref:
        try:
            workload = await api.get(JOBS, str(ref["name"]), job.namespace)
        except NotFound:
            return  # the conditions say so
    for found in examined(workload or {}, seconds_per_step(job)):
        yield found


def examined(workload: Object, step_seconds: float | None = None) -> Iterator[Finding]:
    """Yield the findings of one workload.

    Args:
        workload: a Job, or a template of one.
        step_seconds: how long a step of its trainer takes; None: not known.
    """
    pod = get(workload, ("spec", "template", "spec")) or {}
    containers = pod.get("containers") or [{}]
    words = [*(containers[0].get("command") or ()), *(containers[0].get("args") or ())]
    launcher = launched_by(words)
    found = [*_sigterm(words, launcher), *_grace(pod, step_seconds), *_exit_codes(workload, launcher)]
    yield from found
    if not found:
        yield ok("launcher", "SIGTERM reaches the trainer, and what it then ends with is no failure")


def launched_by(words: Sequence[str]) -> str:
    """Return ``torchrun``, ``accelerate``, ``ray``, ``driver`` (of Ray's: verl's or OpenRLHF's module), or an
    empty text: the trainer is the command itself, or the image's own command, which cannot be seen."""
    split = [word for one in words for word in _split(str(one))]
    for first, second in pairwise([*(PurePosixPath(word).name for word in split), ""]):
        if first == "torchrun" or (first, second) == ("-m", "torch.distributed.run"):
            return "torchrun"
        if first in ("accelerate", "accelerate-launch", "accelerate.commands.launch"):
            return "accelerate"
        if first == "ray" and second in ("job", "start", "submit"):
            return "ray"
        if first == "-m" and second.partition(".")[0] in ("verl", "openrlhf"):
            return "driver"
    return ""


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError:  # quotes that a shell would refuse too, or a script in another language
        return text.split()


def _sigterm(words: Sequence[str], launcher: str) -> Iterator[Finding]:
    """Return whether the trainer hears of SIGTERM."""
    if launcher == "accelerate":
        text = (
            "accelerate launch dies at once of SIGTERM, and leaves the script running until the container is "
            "killed with it: the save under way is torn"
        )
        yield wrong("launcher", text, f"start the script by torchrun: {PAGE}")
    if launcher in ("ray", "driver"):
        text = "Ray's processes are not told of SIGTERM: nothing is saved when the pod is told to end"
        yield note("launcher", text, f"save often: what was done since the last checkpoint is lost; {PAGE}")
    script = _script(words)
    if script is not None and _SEVERAL.search(script) and not _PASSES_ON.search(script):
        text = (
            "a shell runs several commands, one of them the trainer: the shell gets SIGTERM, the trainer "
            "does not, and is killed when the grace period is over"
        )
        yield wrong("launcher", text, "put exec before the last command: exec python train.py …")


def _script(words: Sequence[str]) -> str | None:
    """Return the script that a shell is given by ``-c``; None: the command is no such shell."""
    if not words or PurePosixPath(str(words[0])).name not in SHELLS:
        return None
    for word, after in pairwise(words):
        if re.fullmatch(r"-[a-z]*c[a-z]*", str(word)):
            return str(after).strip().replace("\\\n", " ")
    return None


def _grace(pod: Object, step_seconds: float | None) -> Iterator[Finding]:
    """Return whether the time between SIGTERM and SIGKILL is enough for one step."""
    given = pod.get(GRACE)
    grace = USUAL_GRACE if given is None else int(given)
    named = f"no {GRACE}, so it is {grace} s" if given is None else f"{GRACE} is {grace}"
    cure = f"set {GRACE} in the pod template: it must cover one step and one save"
    if step_seconds is not None and step_seconds > grace:
        text = (
            f"{named}, and a step takes {step_seconds:.0f} s, by the times of its evals: a pod that is told "
            "to end is killed before its step is over, and nothing is saved"
        )
        yield wrong("grace period", text, cure)
    elif given is None:
        yield note("grace period", f"{named}: one step and one save have to end within it", cure)


def _exit_codes(workload: Object, launcher: str) -> Iterator[Finding]:
    """Return whether the exit code after SIGTERM counts as a failure of the Job."""
    if str(workload.get("kind", "Job")) != "Job" or launcher == "ray":
        return  # a pod of Ray is killed: no code of the trainer's
    code, why = CODES.get(launcher, (TERMINATED, "128 + SIGTERM"))
    spec = workload.get("spec") or {}
    failing = next((c for c in (TERMINATED, code) if _action(spec, c) in FAILING), None)
    if failing is not None:
        text = (
            f"podFailurePolicy fails the Job at exit code {failing}: a pod that is told to end, ends the run"
        )
        yield wrong("exit code", text, f"let a rule with action Ignore for {failing} come before that one")
    elif _action(spec, code) != "Ignore":
        text = (
            f"no rule of podFailurePolicy ignores exit code {code} ({why}): each pod that is told to end, as "
            f"on a drained node, counts as a failure; backoffLimit is {spec.get('backoffLimit', 6)}"
        )
        # The API server takes a podFailurePolicy beside restartPolicy: Never alone.
        again = get(spec, ("template", "spec", "restartPolicy")) == "OnFailure"
        first = "set restartPolicy: Never (it is OnFailure) and " if again else ""
        yield note("exit code", text, f"{first}add one with action Ignore, onExitCodes In [{code}]: {PAGE}")


def _action(spec: Object, code: int) -> str | None:
    """Return what the first rule that fits an exit code does; None: none fits."""
    for rule in get(spec, ("podFailurePolicy", "rules")) or ():
        asked = rule.get("onExitCodes")
        if asked and (code in (asked.get("values") or ())) == (asked.get("operator") == "In"):
            return str(rule.get("action"))
    return None


def seconds_per_step(job: Reading) -> float | None:
    """Return how long a step takes at least, by when its evals were first read; None: too few were."""
    times = job.record.eval_times
    evals = job.record.evals[-len(times) :] if times else ()
    found = [
        (later - earlier) / (b.step - a.step)
        for (a, earlier), (b, later) in pairwise(zip(evals, times, strict=False))
        if b.step > a.step and later > earlier and a.attempt == b.attempt
    ]
    return min(found, default=None)
