"""Divergence: a stop counts only if the eval falls while what the run optimises moves clearly.

Over the last ``window`` evals a straight line is fitted to the score and one to the proxy reward of the same
evals. A slope counts as up or down when it differs from nothing at ``level``, one-sided, after Student's t
with window - 2 degrees of freedom: t = b / (s / sqrt(sum (x - mean(x))^2)). Then, when the wrapped rule says
STOP (evalstop.md, section 4.4, detector 10):

    score down, proxy up      RewardHacking   the reward model is over-optimised: a better one is the remedy
    score down, proxy down    Collapse        training itself has failed (learning rate, divergence)
    else                      NotDiverging    the stop is held back

Supporting evidence is what it is, no more. A rising proxy is what every healthy run shows: it says nothing
against "this run is not past its best", so to lower the wrapped rule's threshold for it would only let more
noise through, and void what the rule guarantees. It may veto and explain. Stops are a subset of the wrapped
rule's, so its bound on false stops stays true whatever the proxy does; what is lost are declines with a proxy
that has levelled off, and some evals of delay. Without the proxy of each eval no stop is let through.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar

from controller.policy.params import check, param
from controller.policy.stopping import noise
from controller.policy.stopping.base import State, StopRule
from controller.policy.types import EvalPoint, Verb, Verdict

MAX_WINDOW = 8  # evals: the state is kept in a resource's status
LARGEST = 3e38  # about what a float32 holds


@dataclass(frozen=True, slots=True)
class DivergenceParams:
    window: int = param(6, unit="evals", doc="newest evals whose slopes are judged", ge=4, le=MAX_WINDOW)
    level: float = param(
        0.05, unit="probability", doc="chance at which a slope of nothing counts as one", ge=1e-6, le=0.5
    )
    collapse: bool = param(
        True, unit="choice", doc="let a stop through too when score and proxy fall together"
    )


class Divergence:
    """Let the wrapped rule's STOP through when the score falls and the proxy rises, or falls with it.

    State: (score and proxy of the newest evals that have both, packed: `pack`; state of the wrapped rule).
    """

    name: ClassVar[str] = "divergence"
    version: ClassVar[int] = 1
    needs: ClassVar[tuple[str, ...]] = ("proxy",)

    def __init__(self, params: DivergenceParams, rule: StopRule) -> None:
        check(params, self.name)
        self.params = params
        self._rule = rule
        self._limit = noise.widen(-NormalDist().inv_cdf(params.level), params.window - 2)

    def initial(self) -> State:
        return ("", self._rule.initial())

    def observe(self, state: State, point: EvalPoint) -> tuple[State, Verdict]:
        packed, inner = state
        inner, verdict = self._rule.observe(inner, point)
        known = point.proxy is not None and math.isfinite(point.proxy)
        if known:
            assert point.proxy is not None
            packed = pack([*unpack(packed), (point.score, point.proxy)][-self.params.window :])
        if verdict.verb is Verb.STOP:
            verdict = self._judge(verdict, unpack(packed)) if known else _held(verdict, "NoProxy")
        return (packed, inner), verdict

    def _judge(self, verdict: Verdict, seen: Sequence[tuple[float, float]]) -> Verdict:
        if len(seen) < self.params.window:
            return _held(verdict, "TooFewProxies")
        score, proxy = (slope(values) for values in zip(*seen, strict=True))
        if score >= -self._limit or abs(proxy) <= self._limit:
            return _held(verdict, "NotDiverging")
        if proxy > 0.0:
            return verdict._replace(reason="RewardHacking")
        if self.params.collapse:
            return verdict._replace(reason="Collapse")
        return _held(verdict, "Collapse")


def slope(values: Sequence[float]) -> float:
    """Return t of the least-squares slope of equally spaced values, of which there are at least 3.

    It is infinite on a straight line that is not level, and 0 on a level one.
    """
    count = len(values)
    center, mean = (count - 1) / 2.0, math.fsum(values) / count
    across = count * (count * count - 1) / 12.0  # sum (x - mean(x))^2
    rise = math.fsum((i - center) * (v - mean) for i, v in enumerate(values)) / across
    rest = math.fsum((v - mean - rise * (i - center)) ** 2 for i, v in enumerate(values))
    if rise == 0.0:
        return 0.0
    error = math.sqrt(rest / (count - 2) / across)
    return rise / error if error > 0.0 else math.copysign(math.inf, rise)


def _held(verdict: Verdict, reason: str) -> Verdict:
    return verdict._replace(verb=Verb.CONTINUE, reason=reason)


def pack(pairs: Sequence[tuple[float, float]]) -> str:
    """Pairs as text, a third as long as their digits: little-endian float32, in base64."""
    flat = (max(-LARGEST, min(LARGEST, value)) for pair in pairs for value in pair)
    return base64.b64encode(struct.pack(f"<{2 * len(pairs)}f", *flat)).decode()


def unpack(text: str) -> list[tuple[float, float]]:
    """Return what `pack` was given, in single precision."""
    return list(struct.iter_unpack("<2f", base64.b64decode(text)))
