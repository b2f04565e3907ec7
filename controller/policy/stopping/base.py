"""The contract of a stop rule: a pure fold over evals, whose state the caller keeps.

A rule never keeps state on itself. ``initial()`` gives the empty state, ``observe(state, point)`` the next
state and a verdict; states are tuples of JSON scalars, so that they fit into a resource's status and a
decision log, and so that a restarted operator goes on where it was.

What every rule can rely on (the caller, `EvalStream` in history.py, sees to it): scores are finite and
oriented higher-is-better, steps strictly increase. What every rule must keep to: one observation costs
O(window) at most, the state stays under 600 bytes of JSON, and the same points give the same verdicts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Protocol

from controller.frozen import dataclass
from controller.policy.types import EvalPoint, Verdict

State = tuple[Any, ...]


class StopRule(Protocol):
    """A method to tell from a run's evals that it is past its best."""

    name: ClassVar[str]  # as users write it: lowerCamelCase
    version: ClassVar[int]  # raised when the same evals would give other verdicts
    params: Any  # the rule's frozen params dataclass

    def initial(self) -> State:
        """Return the state before any eval."""
        ...

    def observe(self, state: State, point: EvalPoint) -> tuple[State, Verdict]:
        """Take in one eval; return the next state and what the rule asks for."""
        ...


def carry_spent(rule: StopRule, state: State, before: State) -> State:
    """Return a state that begins anew, or further back, with the budget of false stops as it was spent.

    A run that goes back, or whose scores are forgotten, is looked at again: what it may be stopped by chance
    with must not be there a second time. Rules that spend none have no ``carry_spent``, and their state
    stays.

    Args:
        rule: with its modifiers, of whom each says where the state of what it wraps is (``inner_at``).
        state: the new one.
        before: the one that it replaces, of the same rule.
    """
    inner, at = _wrapped(rule)
    if inner is None:
        own = getattr(rule, "carry_spent", None)
        return state if own is None else tuple(own(state, before))
    if at is None:
        return carry_spent(inner, state, before)
    return (*state[:at], carry_spent(inner, state[at], before[at]), *state[at + 1 :])


def reference(rule: StopRule, state: State) -> int | None:
    """Return the step of the eval with which the rule compares the next one; None: with none, or none yet.

    Rules that compare single evals have a ``reference``. ``rule``: with its modifiers. ``state``: of it, or
    () before any eval.
    """
    if not state:
        return None
    inner, at = _wrapped(rule)
    if inner is None:
        own = getattr(rule, "reference", None)
        return None if own is None else own(state)
    return reference(inner, state if at is None else state[at])


class Bound(NamedTuple):
    """A number that a rule's parameter sets, whatever its evals are.

    Attributes:
        owner: the rule, or the modifier of it, whose parameter that is.
        parameter: its name.
    """

    value: float
    owner: str
    parameter: str


def earliest(rule: StopRule) -> Bound | None:
    """Return the eval, counted from the first that it is shown, before which a rule can stop nothing at all;
    None: it names none.

    A bound: it may in fact need more. A rule says it as ``earliest`` (evals, parameter), a modifier as
    ``earliest_after`` (the wrapped rule's evals), whose parameter is "" where that of the rule decides.
    """
    inner, _ = _wrapped(rule)
    if inner is None:
        own = getattr(rule, "earliest", None)
        return None if own is None else _bound(rule, *own())
    before = earliest(inner)
    later = getattr(rule, "earliest_after", None)
    if later is None:
        return before
    evals, parameter = later(1 if before is None else int(before.value))
    if parameter or before is None:
        return _bound(rule, evals, parameter)
    return before._replace(value=evals)


def lets_pass(rule: StopRule) -> Bound | None:
    """Return the fall (score units, from the highest to the lowest of the scores that it compares) up to
    which a rule, with its modifiers, stops nothing; None: it names none. A rule says it as ``lets_pass``."""
    inner, _ = _wrapped(rule)
    if inner is not None:
        return lets_pass(inner)
    own = getattr(rule, "lets_pass", None)
    return None if own is None else _bound(rule, *own())


def _bound(rule: StopRule, value: float, parameter: str) -> Bound:
    return Bound(float(value), rule.name, parameter)


def _wrapped(rule: StopRule) -> tuple[StopRule | None, int | None]:
    """Return the rule that a modifier wraps, and where in the modifier's state its own is; None: it has no
    state besides. None twice: it is no modifier."""
    return getattr(rule, "_rule", None), getattr(rule, "inner_at", None)


@dataclass(frozen=True, slots=True)
class RuleType:
    """A registered rule or modifier: its params dataclass and how to make it.

    Attributes:
        make: takes the params; that of a modifier takes the params and the rule that it wraps.
        doc: the first line that users read about it.
        needs: fields of `EvalPoint` besides the score without which it says nothing; a rule class states them
            as ``needs``.
        uses: fields that it looks at where they are known; without them it still judges.
        rises: its statistic rises towards its threshold, which its stops lie above.
        standing: verdicts that are no STOP matter too, and a STOP counts only while it stands (a modifier
            that grades or defers).
        yields_e_value: each verdict of the rule carries one (`Verdict.e_value`); modifiers hand on that of
            the rule they wrap as it is.
    """

    name: str
    version: int
    params: type[Any]
    make: Callable[..., StopRule]
    doc: str
    needs: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    rises: bool = True
    standing: bool = False
    yields_e_value: bool = False

    @staticmethod
    def of(make: Any, params: type[Any], doc: str) -> RuleType:
        """Return an entry for a rule or modifier class, which carries its own name and version."""
        more = {
            key: getattr(make, key)
            for key in ("needs", "uses", "rises", "standing", "yields_e_value")
            if hasattr(make, key)
        }
        return RuleType(make.name, make.version, params, make, doc, **more)
