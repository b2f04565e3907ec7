"""e-process: bets against "this run is not past its best", on per-prompt differences to a reference step.

At each eval the trainer scores the current policy and that of a reference step, an earlier one, on the same
fresh prompts, and reports count, mean and variance of the differences d (`Paired`). The hypothesis is

    H: at every eval the current policy's expected score lies no more than ``min_drop`` below the reference's.

It holds for every run whose true score never falls, flat ones among them, whichever earlier steps are the
references. With x = -(d + min_drop) / (bound + min_drop), H says E[x] <= 0, and x >= -1 as long as no
prompt's score differs by more than ``bound``. A bettor who stakes the share b of his money on x, prompt after
prompt, wins nothing on average: his money is multiplied by prod(1 + b x). By Fan, Grama and Liu (2015,
"Exponential inequalities for martingales with applications"), for b in [0, 1) and x >= -1,

    1 + b x >= exp(b x - c(b) x^2),    c(b) = -ln(1 - b) - b,

so the factor of one eval, exp(b sum(x) - c(b) sum(x^2)), has a mean of at most 1 under H given all that was
seen before, and the two sums follow exactly from count, mean and variance. No normal approximation and no
variance taken for known: the observed squares are paid for. A list of bets is spread evenly (`BETS`), since
the size of the fall is not known.

After a rise the money is gone, and a fall would be seen late. So the bettor has several purses with weights
that add up to 1, each staked from another eval on (an e-detector with start weights, after Shin, Ramdas and
Rinaldo, NEJSDS): nine tenths of the money lie in at most `STARTS` purses spread evenly over the first
``horizon`` evals, the rest in purses beyond, ever smaller. A start that comes an eval or two late costs
little, for a fall begins small; more purses would cost more. What all of them are worth together, unopened
ones included, is the e-value: 1 before the first eval, and a supermartingale under H. Ville's inequality: the
chance that it ever reaches 1 / ``alpha`` is at most alpha, over the whole run, however often and for however
long one looks. STOP is said where it stands at that.

A change of the reference needs no restart. Each factor is about the reference in force, which was named
before the prompts of that eval were drawn, so that it was the best of many by luck (winner's curse) does not
matter: it is scored anew. All this assumes, and cannot see for itself, that

- prompts (and responses) are drawn anew for each eval, independently of what chose the reference. With
  prompts that the reference was chosen on, the winner's curse is back and the bound is void;
- ``bound`` holds. An eval whose mean square exceeds its square proves that it does not, and is left out and
  said; a bound that is too narrow by less goes unseen;
- differences on one eval's prompts are independent given the two policies;
- after a resume, and wherever the run's past is forgotten (another evaluator, a cooldown that forgets), the
  run is judged from there on: each such beginning has a chance of its own.

evalstop.md, section 4.4, detectors 6 and 7. What it finds and how early: docs/use/stop-rules.md.
"""

from __future__ import annotations

import math
from typing import ClassVar

from controller.frozen import dataclass
from controller.policy.params import check, param
from controller.policy.stopping.base import State
from controller.policy.types import EvalPoint, Paired, Verb, Verdict

BETS = tuple(0.75 / 2**k for k in range(6))  # shares of the money; the best one is near mean(x) / mean(x^2)
COSTS = tuple(-math.log1p(-bet) - bet for bet in BETS)  # c(b)
STARTS = 17  # purses within the horizon, at most
WITHIN_HORIZON = 0.9  # of the money
LARGEST = 1e300  # an e-value is reported up to here
ROUNDED = 1e-6  # how far a reported mean square may lie above the true one
ROUNDING = 1e6  # logarithms are kept rounded down to 1 / this: never in favour of a stop


@dataclass(frozen=True, slots=True)
class EProcessParams:
    alpha: float = param(
        0.025, unit="probability", doc="chance of ever stopping a run that does not fall", ge=1e-9, le=0.5
    )
    bound: float = param(
        1.0,
        unit="score",
        doc="most by which two policies' scores of one prompt can differ; 1 if scores lie in 0 to 1",
        gt=0.0,
        le=1e9,
    )
    min_drop: float = param(
        0.0,
        unit="score",
        doc="a fall of this much or less below the reference counts as none",
        ge=0.0,
        le=1e9,
    )
    horizon: int = param(
        50,
        unit="evals",
        doc="evals that most of alpha is spent on; longer runs stay covered",
        ge=1,
        le=100_000,
    )


def start_weight(number: int, horizon: int) -> float:
    """Return the share of the money that is staked from the ``number``-th eval (from 1) on; all add up
    to 1."""
    stride, within = _purses(horizon)
    opened, between = divmod(number - 1, stride)
    if between:
        return 0.0
    if opened < within:
        return WITHIN_HORIZON / within
    return (1.0 - WITHIN_HORIZON) * (within + 1.0) / ((opened + 1.0) * (opened + 2.0))


def kept_aside(number: int, horizon: int) -> float:
    """Return the share of the money in purses not opened by the ``number``-th eval: 1 less the weights so
    far."""
    stride, within = _purses(horizon)
    opened = (number + stride - 1) // stride
    if opened <= within:
        return 1.0 - WITHIN_HORIZON * opened / within
    return (1.0 - WITHIN_HORIZON) * (within + 1.0) / (opened + 1.0)


def _purses(horizon: int) -> tuple[int, int]:
    """Evals from one start to the next, and starts within the horizon."""
    stride = -(-horizon // STARTS)
    return stride, -(-horizon // stride)


def sums(paired: Paired, bound: float, min_drop: float) -> tuple[float, float]:
    """sum(x) and sum(x^2) of an eval's prompts."""
    scale = bound + min_drop
    shortfall = -(paired.mean + min_drop) / scale
    squares = (paired.prompts - 1) * paired.variance / (scale * scale)
    return paired.prompts * shortfall, squares + paired.prompts * shortfall * shortfall


def usable(paired: Paired) -> bool:
    """Return whether these are numbers of two prompts or more."""
    return (
        paired.prompts >= 2
        and math.isfinite(paired.mean)
        and math.isfinite(paired.variance)
        and paired.variance >= 0.0
    )


def exceeds(paired: Paired, bound: float) -> bool:
    """Return whether some prompt's difference must be larger than ``bound``, by the mean square of all."""
    squares = paired.variance * (paired.prompts - 1) / paired.prompts + paired.mean * paired.mean
    return squares > bound * bound * (1.0 + ROUNDED)


class EProcess:
    """Stop when the evidence that the current policy is worse than the reference reaches 1 / ``alpha``.

    Statistic and threshold are the e-value and 1 / ``alpha``. An eval without differences changes nothing.
    State: (evals with differences, logarithm of each bet's money now at stake).
    """

    name: ClassVar[str] = "eProcess"
    version: ClassVar[int] = 1
    needs: ClassVar[tuple[str, ...]] = ("paired",)
    yields_e_value: ClassVar[bool] = True

    def __init__(self, params: EProcessParams) -> None:
        check(params, self.name)
        self.params = params

    def lets_pass(self) -> tuple[float, str]:
        return self.params.min_drop, "min_drop"

    def initial(self) -> State:
        return (0, ())

    def observe(self, state: State, point: EvalPoint) -> tuple[State, Verdict]:
        seen, staked = state
        paired = point.paired
        if paired is None or not usable(paired):
            return state, self._verdict(state, "NoPairedDifferences")
        if exceeds(paired, self.params.bound):
            return state, self._verdict(state, "BoundExceeded")
        state = self._bet(seen + 1, staked or (-math.inf,) * len(BETS), paired)
        return state, self._verdict(state)

    def _bet(self, number: int, staked: tuple[float, ...], paired: Paired) -> State:
        weight = start_weight(number, self.params.horizon)
        fresh = math.log(weight) if weight > 0.0 else -math.inf
        total, squares = sums(paired, self.params.bound, self.params.min_drop)
        money = (
            _log_add(logarithm, fresh) + bet * total - cost * squares
            for logarithm, bet, cost in zip(staked, BETS, COSTS, strict=True)
        )
        return (number, tuple(math.floor(m * ROUNDING) / ROUNDING for m in money))

    def _verdict(self, state: State, silent: str = "") -> Verdict:
        seen, staked = state
        evidence = log_e_value(seen, staked, self.params.horizon)
        e_value = math.exp(evidence) if evidence < math.log(LARGEST) else LARGEST
        limit = 1.0 / self.params.alpha
        if silent:
            return Verdict(Verb.CONTINUE, silent, e_value, limit, e_value)
        if e_value >= limit:
            return Verdict(Verb.STOP, "WorseThanReference", e_value, limit, e_value)
        return Verdict(Verb.CONTINUE, "NotClearlyWorse", e_value, limit, e_value)


def log_e_value(seen: int, staked: tuple[float, ...], horizon: int) -> float:
    """Return ln of all the money: what is kept aside, and the mean over the bets of what is at stake."""
    total = math.log(kept_aside(seen, horizon))
    for logarithm in staked:
        total = _log_add(total, logarithm - math.log(len(BETS)))
    return total


def _log_add(a: float, b: float) -> float:
    """ln(exp(a) + exp(b)) without overflow."""
    high, low = max(a, b), min(a, b)
    return high + math.log1p(math.exp(low - high)) if low > -math.inf else high
