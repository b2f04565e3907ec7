"""Effects of another rule, policy or cluster: on one job's curve, and on a whole history.

`curve` needs the standard library only; `sim.what_if.compare` replays a history, with numpy.

May import: what `sim` may.
Tests: tests/what_if.
"""

from sim.what_if.curves import CurveOutcome, Judgement, curve

__all__ = ["CurveOutcome", "Judgement", "curve"]
