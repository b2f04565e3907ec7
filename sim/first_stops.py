"""The first stop of each of many jobs: by the streaming rule, or by its vectorised form where that pays."""

from __future__ import annotations

from collections.abc import Sequence

from sim.foresight import Foreseen, RuleSpec, first_stop
from sim.workload import Evals

VECTOR_FROM = 4096  # evals from which on importing numpy pays


def foresee(spec: RuleSpec, evals: Sequence[Evals | None]) -> list[Foreseen | None]:
    """Return the first STOP of every job, or None; by the vectorised form where there is one and it pays.

    Raises:
        ParamError: the rule, a modifier or a parameter does not exist or is out of bounds.
    """
    rule = spec.make()
    if sum(len(e.at) for e in evals if e is not None) >= VECTOR_FROM:
        from sim import vectorised

        if vectorised.covers(spec):
            return vectorised.foresee(spec, evals)
    context = bool(spec.needs | spec.uses)
    return [None if e is None else first_stop(rule, e, context=context) for e in evals]
