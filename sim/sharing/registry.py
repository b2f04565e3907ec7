"""All comparisons of shared groups by name.

Add a new one here and to `COMMANDS` of the CLI (controller/cli/sim_sharing.py), in the same order;
tests/sim_cli/test_sim_sharing_cli.py holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sim.experiments.executor import Executor
from sim.experiments.findings import Findings
from sim.sharing.arms import arms
from sim.sharing.curve import curve
from sim.sharing.saving import saving
from sim.sharing.setting import SharingSetting
from sim.sharing.trial import Progress

Comparison = Callable[[SharingSetting, int, Executor, Progress | None], Findings]

COMPARISONS: Mapping[str, Comparison] = {"saving": saving, "curve": curve, "arms": arms}
