"""What would another rule, policy or cluster have done: to one job's curve, and to a whole history."""

from sim.what_if.curves import CurveOutcome, Judgement, curve

__all__ = ["CurveOutcome", "Judgement", "curve"]
