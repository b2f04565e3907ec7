"""An eval that is far less precise than the run's others, told to people (`stopping.precision`).

The gate drops such an eval. Where it counts all the same, for there is no gate, or for the run's first evals
were all like it, its standard error is the one by which the rule measures every fall.
"""

from __future__ import annotations

from collections.abc import Sequence

from controller.policy.job.record import JobRecord
from controller.policy.job.rule_in_use import RuleInUse
from controller.policy.stopping import gate
from controller.policy.stopping.precision import Precision, usual
from controller.policy.types import EvalPoint
from controller.policy.wording import counted, two_digits


def clause(points: Sequence[EvalPoint], step: int, times: float) -> str:
    """Return how much less precise the eval at a step is than most of these; "": it is not, or is not one of
    them.

    Args:
        points: the run's evals.
        step: of the eval.
        times: as large as the others' its standard error is too large.
    """
    point = next((one for one in reversed(points) if one.step == step), None)
    others = usual([one for one in points if one.step != step])
    if point is None or not (own := Precision.of(point)).coarser(others, times):
        return ""
    return f"its standard error, {own.error:.2g}, is {_ratio(own, others)} that of most others"


def blinds(record: JobRecord, use: RuleInUse) -> str:
    """Return that an eval that counts is far less precise than most, by which the rule measures every fall;
    "": none is."""
    others, state = usual(record.evals), record.rule.state if record.rule is not None else ()
    found = gate.coarsest(state) if use.gated and state else None
    own = found or max(map(Precision.of, record.evals), key=lambda one: one.error, default=Precision())
    if not own.coarser(others, use.imprecise):
        return ""
    of = f" (of {counted(own.samples, 'sample')})" if own.samples else ""
    return (
        f"an eval with a standard error of {own.error:.2g}{of} counts, {_ratio(own, others)} that of most, "
        "and the rule measures each fall by the largest: hardly any is large enough to stop this run"
    )


def _ratio(own: Precision, others: Precision) -> str:
    return f"{two_digits(own.error / others.error)} times"
