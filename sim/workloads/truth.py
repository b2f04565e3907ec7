"""Ground truth of a workload, which nobody but the judge knows."""

from __future__ import annotations

from controller.frozen import dataclass
from sim.workloads.kinds import Kind


@dataclass(frozen=True, slots=True)
class Truth:
    """Ground truth by row of the workload, which nobody but the judge knows.

    ``peak``: share of the training at which the true score of a hacking run is highest; 1 for the others.
    """

    kind: tuple[Kind, ...]
    hacks: tuple[bool, ...]
    peak: tuple[float, ...]
