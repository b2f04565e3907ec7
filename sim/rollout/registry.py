"""All comparisons of rollout schemes by name.

Add a new one here and to `COMMANDS` of the CLI (controller/cli/sim_rollout.py), in the same order;
tests/sim_cli/test_sim_rollout_cli.py holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from sim.experiments.executor import Executor
from sim.experiments.findings import Findings
from sim.rollout.ablation import ablation
from sim.rollout.grid import grid
from sim.rollout.headline import headline
from sim.rollout.setting import RolloutSetting
from sim.rollout.shared import shared
from sim.rollout.starts import starts
from sim.rollout.trial import Progress

Comparison = Callable[[RolloutSetting, int, Executor, Progress | None], Findings]

COMPARISONS: Mapping[str, Comparison] = {
    "headline": headline,
    "ablation": ablation,
    "grid": grid,
    "shared": shared,
    "starts": starts,
}


def changed(setting: RolloutSetting, values: Mapping[str, str]) -> RolloutSetting:
    """Return the setting with numbers of it, or of its lengths (``lengths.NAME``), replaced.

    Raises:
        ValueError: there is no such number, or the value is none; the message names what is allowed.
    """
    own: dict[str, Any] = {}
    lengths: dict[str, Any] = {}
    for name, text in values.items():
        part = setting.profile if name.startswith("lengths.") else setting
        key = name.removeprefix("lengths.")
        numbers = {
            f.name: type(v) for f in fields(part) if isinstance(v := getattr(part, f.name), int | float)
        }
        if key not in numbers:
            raise ValueError(f"--set: {name!r} is not allowed, expected one of {', '.join(names(setting))}")
        try:
            value = numbers[key](text)
        except ValueError:
            value = -1
        if not 0 <= value < 1e9 or (value == 0 and numbers[key] is int):
            raise ValueError(
                f"--set {name}: {text!r} is not allowed, expected a number above 0, or 0 for seconds"
            )
        (own if part is setting else lengths)[key] = value
    found = replace(setting, **own, profile=replace(setting.profile, **lengths))
    if found.static > found.most:
        raise ValueError(f"--set static: {found.static} is not allowed, expected at most most, {found.most}")
    return found


def names(setting: RolloutSetting) -> list[str]:
    """Return what `changed` takes."""
    own = [f.name for f in fields(setting) if isinstance(getattr(setting, f.name), int | float)]
    of_lengths = [
        f.name for f in fields(setting.profile) if isinstance(getattr(setting.profile, f.name), int | float)
    ]
    return own + [f"lengths.{name}" for name in of_lengths]
