"""A trial in the simulator: the same policy code, the cluster's measured delays, and its timeline."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from controller.parity.compressed_trace import TraceOnCluster
from controller.parity.timeline import How, Lived, Stay, Timeline
from controller.policy.queueing import EvalStop, make_policy
from controller.policy.types import PolicySpec, StopLimits
from sim.engine import EventLog, simulate
from sim.latencies import Latencies

# A GPUPool learns the usual noise of its runs in any case, and nobody looks for falls that runs share: in a
# compressed trace everything happens at once.
LIMITS = StopLimits(shared_fall_percent=None)

_HOW = {"preempt": How.PREEMPT, "release": How.STOP}


def simulated(
    trial: TraceOnCluster,
    policy: PolicySpec,
    latencies: Latencies,
    scatter: Callable[[str], float] | None = None,
) -> Timeline:
    """Run a trial under a (compressed) policy. ``scatter``: as in `sim.engine.simulate`.

    Raises:
        ParamError: policy or rule do not exist, or are out of bounds.
    """
    event_log = _Stays()
    workload = trial.workload
    simulate(
        workload,
        trial.cluster,
        EvalStop(make_policy(policy)),
        rule=trial.rule,
        latencies=latencies,
        scatter=scatter,
        limits=LIMITS,
        event_log=event_log,
    )
    return Timeline(
        tuple(
            Lived(key, workload.gpus[row], workload.submitted[row], tuple(event_log.stays[key]))
            for row, key in enumerate(map(workload.key, range(len(workload))))
        )
    )


class _Stays(EventLog):
    """A event_log that keeps each job's stays instead of lines, whatever its name has in it."""

    __slots__ = ("_admitted", "_decided", "stays")

    def __init__(self) -> None:
        super().__init__()
        self._admitted: dict[str, tuple[float, tuple[str, ...]]] = {}  # when, and to which nodes
        self._decided: dict[str, tuple[float, How]] = {}
        self.stays: dict[str, list[Stay]] = defaultdict(list)

    def write(self, now: float, verb: str, key: str, detail: str = "") -> None:
        now = float(now)
        match verb:
            case "admit":
                self._admitted[key] = now, tuple(dict.fromkeys(detail.split(",") if detail else ()))
            case "preempt" | "release":
                self._decided[key] = now, _HOW[verb]
            case "end":
                self._decided.pop(key, None)
                self._left(key, now, How.END, None)
            case "free":
                at, how = self._decided.pop(key)
                self._left(key, now, how, at)

    def _left(self, key: str, now: float, how: How, decided: float | None) -> None:
        admitted, nodes = self._admitted.pop(key)
        self.stays[key].append(Stay(admitted, now, how, decided, nodes))
