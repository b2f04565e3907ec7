"""A trial in the simulator: the same policy code, the cluster's measured delays, and its timeline."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from controller.parity.timeline import How, Lived, Stay, Timeline
from controller.parity.trial import Trial
from controller.policy.queueing import EvalStop, make_policy
from controller.policy.types import PolicySpec, StopLimits
from sim.engine import Journal, simulate
from sim.latencies import Latencies

# A GPUPool learns the usual noise of its runs in any case, and nobody looks for falls that runs share: in a
# compressed trace everything happens at once.
LIMITS = StopLimits(shared_fall_percent=None)

_HOW = {"preempt": How.PREEMPT, "release": How.STOP}


def simulated(
    trial: Trial,
    policy: PolicySpec,
    latencies: Latencies,
    scatter: Callable[[str], float] | None = None,
) -> Timeline:
    """Run a trial under a (compressed) policy. ``scatter``: as in `sim.engine.simulate`.

    Raises:
        ParamError: policy or rule do not exist, or are out of bounds.
    """
    journal = Journal()
    workload = trial.workload
    simulate(
        workload,
        trial.cluster,
        EvalStop(make_policy(policy)),
        rule=trial.rule,
        latencies=latencies,
        scatter=scatter,
        limits=LIMITS,
        journal=journal,
    )
    return timeline(trial, journal)


def timeline(trial: Trial, journal: Journal) -> Timeline:
    """The stays that a journal tells of."""
    stays: dict[str, list[Stay]] = defaultdict(list)
    admitted: dict[str, float] = {}
    decided: dict[str, tuple[float, How]] = {}
    for line in journal.lines:
        text, verb, key, *_ = line.split(" ")
        now = float(text)
        match verb:
            case "admit":
                admitted[key] = now
            case "preempt" | "release":
                decided[key] = (now, _HOW[verb])
            case "end":
                stays[key].append(Stay(admitted.pop(key), now, How.END))
                decided.pop(key, None)
            case "free":
                at, how = decided.pop(key)
                stays[key].append(Stay(admitted.pop(key), now, how, at))
    workload = trial.workload
    return Timeline(
        tuple(
            Lived(
                workload.key(row),
                workload.gpus[row],
                workload.submitted[row],
                tuple(stays[workload.key(row)]),
            )
            for row in range(len(workload))
        )
    )
