"""Steps from a trainer's metrics page: how long each was away from its training GPUs, and on them.

A page has its newest steps as ``rlhf_step_seconds{step, gpus}``. One that has only
``rlhf_phase_seconds_total{phase, gpus}`` gives means: seconds of phases over the steps since its process
began.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from controller import names
from controller.policy.sharing import LEAST_STEPS
from controller.policy.wording import counted

MOST_PAGE = 8 << 20  # bytes
_SAMPLE = re.compile(r"(rlhf_[a-z_]+)(?:\{([^{}]*)\})? ([^ ]+)(?: -?[0-9]+)?")
_LABEL = re.compile(r'([a-z_]+)="([^"\\]*)"')
_TRAINING, _OTHER = "training", "other"


class PageSteps(NamedTuple):
    """[seconds away, seconds on the training GPUs] of each step. ``means``: all are the mean of the run so
    far."""

    steps: list[list[float]]
    means: bool


def steps_of(text: str, where: str) -> PageSteps:
    """Return the steps of a page.

    Raises:
        ValueError: it has neither steps nor phases, or not on training GPUs and elsewhere.
    """
    phases = {_TRAINING: 0.0, _OTHER: 0.0}
    steps: dict[int, dict[str, float]] = {}
    gauges: dict[str, float] = {}
    by_phase = False
    for line in text.splitlines():
        match = _SAMPLE.fullmatch(line.strip())
        if match is None:
            continue
        name, labels = match[1], dict(_LABEL.findall(match[2] or ""))
        if name not in (
            names.METRIC_STEP_SECONDS,
            names.METRIC_PHASE_SECONDS,
            names.METRIC_STEP,
            names.METRIC_RESUMED_STEP,
        ):
            continue
        try:
            value = float(match[3])
        except ValueError:
            raise ValueError(f"{where}: {name}: {match[3][:40]!r}, expected a number") from None
        gpus = labels.get("gpus", "")
        if name in (names.METRIC_STEP_SECONDS, names.METRIC_PHASE_SECONDS) and gpus not in phases:
            raise ValueError(f"{where}: {name}: gpus={gpus[:40]!r}, expected {_TRAINING} or {_OTHER}")
        if name == names.METRIC_STEP_SECONDS and labels.get("step", "").isdecimal():
            steps.setdefault(int(labels["step"]), {})[gpus] = value
        elif name == names.METRIC_PHASE_SECONDS:
            by_phase = True
            phases[gpus] += value
        else:
            gauges[name] = value
    whole = [[one[_OTHER], one[_TRAINING]] for _, one in sorted(steps.items()) if len(one) == len(phases)]
    if len(whole) >= LEAST_STEPS:
        return PageSteps(whole, False)
    done = gauges.get(names.METRIC_STEP, 0.0) - gauges.get(names.METRIC_RESUMED_STEP, 0.0)
    if not by_phase or done < LEAST_STEPS:
        raise ValueError(
            f"{where}: {counted(len(whole), 'step')} in {names.METRIC_STEP_SECONDS}, and "
            f"{f'{done:g} steps with' if by_phase else 'no'} {names.METRIC_PHASE_SECONDS}; expected at least "
            f"{LEAST_STEPS} steps of a trainer that counts its phases (docs/use/trainer-contract.md)"
        )
    mean = [phases[_OTHER] / done, phases[_TRAINING] / done]
    return PageSteps([mean] * LEAST_STEPS, True)
