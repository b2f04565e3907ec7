"""Decision about an actor with nothing more to do: kept for the next step, or released.

Releasing gives its GPUs away for the time in which it would be idle, less what the way back costs: its GPUs
are held while it is stopped (recall) and while it starts again. So it pays where idle time is longer than
both.
"""

from __future__ import annotations

from controller.policy.rollout.types import Supply, WhenIdle


def releases(when: WhenIdle, idle: float, supply: Supply) -> bool:
    """Return whether an actor that will be idle for ``idle`` s is released."""
    if when is not WhenIdle.AUTO:
        return when is WhenIdle.RELEASE
    return idle > supply.start + supply.recall


def explain(when: WhenIdle, idle: float, supply: Supply) -> str:
    """Return in words what is decided and by which numbers."""
    if when is not WhenIdle.AUTO:
        return f"whenIdle is {when.value}"
    sign, verb = (">", "released") if releases(when, idle, supply) else ("<=", "kept")
    return f"{verb}: idle for {idle:.1f} s {sign} start {supply.start:.1f} s + recall {supply.recall:.1f} s"
