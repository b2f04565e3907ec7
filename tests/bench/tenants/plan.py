"""Who takes part: honest jobs with their evals, and how large and how fast all of it is."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from controller.policy.stopping import make_rule
from controller.policy.types import EvalPoint, PolicySpec, Verb

Object = dict[str, Any]

METRIC = "gold"
SECONDS = 5.0  # the shortest interval between two scrapes that the API allows
SIGMA = 0.02


@dataclass(frozen=True, slots=True)
class Scale:
    """``hurry``: of the interval, as the operator is told to take it; ``rate``: requests/s to the API server
    of each kind of attack, of all tenants together; ``idle``: connections to each port of the operator's."""

    honest: int = 10
    hostile: int = 100
    tenants: int = 10  # namespaces of the hostile
    nodes: int = 4
    gpus: int = 8  # of each node
    evals: int = 24
    hurry: float = 1.0
    rate: float = 1.0
    idle: int = 100
    grace: int = 5  # s, of the pool: for a borrower's next checkpoint
    patience: float = 600.0  # s for one run of all honest jobs
    scope: str = "Namespace"
    shared_fall_wait: float = 60.0  # s, of the pool

    @property
    def interval(self) -> float:
        """s between two scrapes."""
        return SECONDS * self.hurry

    @property
    def alone(self) -> bool:
        """Whether a run is judged by its own namespace's evidence. Where the whole pool is asked, other
        namespaces may raise a run's noise and hold its stop back once: then stops may come later."""
        return self.scope == "Namespace"


# s that an admission may take besides: a pass or two, the pods' termination, the scheduler.
BINDING = 10.0
SMALL = Scale(
    honest=3,
    hostile=6,
    tenants=2,
    nodes=1,
    gpus=4,
    evals=12,
    hurry=0.08,
    rate=1.0,
    idle=20,
    grace=1,
    patience=180.0,
)


@dataclass(frozen=True, slots=True)
class Honest:
    """``stops``: whether it is to be stopped; ``early``: it is there before the hostile ones come."""

    name: str
    namespace: str
    rule: Object
    scores: tuple[float, ...]
    stops: bool
    early: bool


@dataclass(frozen=True, slots=True)
class _Kind:
    rule: Object
    level: Callable[[float], float]  # share of the run -> score, of which the noise is added
    stops: bool
    noise: float = SIGMA


def _falls(at: float, slope: float) -> Callable[[float], float]:
    return lambda share: 0.5 + 0.5 * min(share, at) - slope * max(0.0, share - at)


_KINDS = (
    _Kind({"kDeclines": {"k": 3}}, _falls(0.4, 2.0), True, 0.0),
    _Kind({"scan": {}}, _falls(0.4, 2.0), True),
    # As the worst of many: whoever is no peer of its own namespace must not make it one.
    _Kind({"medianOfPeers": {"minPeers": 3, "grace": 2}}, lambda share: 0.3, False, 0.0),
    _Kind({"drawdown": {"maxDrop": "0.2"}}, _falls(0.5, 1.5), True, 0.005),
    _Kind({"scan": {}}, lambda share: 0.7, False),  # flat: too little noise of others would stop it
    _Kind({"cusum": {}}, _falls(0.4, 2.0), True),
    _Kind({"kDeclines": {"k": 3}}, lambda share: 0.2 + 0.6 * share, False, 0.0),
    _Kind({"glr": {}}, _falls(0.4, 2.0), True),
    _Kind({"drawdown": {"maxDrop": "0.0", "sigmas": "4"}}, _falls(0.6, 2.5), True),
    _Kind({"kDeclines": {"k": 4}}, _falls(0.3, 0.6), True, 0.0),
)


def honest(scale: Scale, prefix: str) -> list[Honest]:
    """The same jobs with the same evals, whatever the prefix of their namespaces; two share a namespace."""
    found = []
    for i in range(scale.honest):
        kind = _KINDS[i % len(_KINDS)]
        draw = random.Random(f"honest {i}")
        scores = [
            round(kind.level(n / scale.evals) + draw.gauss(0.0, kind.noise), 6) for n in range(scale.evals)
        ]
        end = _stop(kind.rule, scores)
        if (end is not None) != kind.stops:
            raise ValueError(f"run-{i}: {kind.rule} says stop at eval {end} of {scores}, which is not wanted")
        namespace = f"{prefix}-honest-{i // 2}"
        rule, early = kind.rule, i % 2 == 0
        shown = scores[:end] if scale.alone else scores  # a stop that may come later needs evals to come
        found.append(Honest(f"run-{i}", namespace, rule, tuple(shown), kind.stops, early))
    return found


def _stop(rule: Object, scores: list[float]) -> int | None:
    """After how many evals a rule that sees them alone asks to stop; None: it does not.

    A trainer reports none after that one: with which of them a slower operator would carry the stop out says
    nothing about the hostile ones, and how much later it does is measured.
    """
    ((name, given),) = rule.items()
    if name == "medianOfPeers":  # it has no peers
        return None
    params = {re.sub(r"[A-Z]", lambda m: "_" + m[0].lower(), key): _plain(v) for key, v in given.items()}
    judge = make_rule(PolicySpec(name, params))
    state = judge.initial()
    for n, score in enumerate(scores):
        state, verdict = judge.observe(state, EvalPoint(10 * (n + 1), score))
        if verdict.verb is Verb.STOP:
            return n + 1
    return None


def _plain(value: Any) -> Any:
    """A parameter as rules take it: the API has decimals as texts."""
    return float(value) if isinstance(value, str) else value


@dataclass(slots=True)
class Outcome:
    """What became of an honest job; times in s. ``verdict``: by, reason, step, numbers of its stop."""

    name: str
    verdict: tuple[Any, ...] | None = None
    best: tuple[Any, ...] | None = None
    digest: str | None = None
    waited: float = 0.0  # from its creation to its admission
    decided: float | None = None  # from the first read of its page to its stop, as seen from outside
    freed: float | None = None  # the same, until its pods were gone
    attempts: int = 0
    lags: list[float] = field(default_factory=list)  # how much later than it should each read came
