"""What one run is and what goes wrong in it: all of it drawn from its seed, nothing from the clock."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

# Faults of the API server's answers, as the operator meets them. All runs share the operator: these are
# felt by the neighbours too.
ANSWERS = ("409", "410", "429", "500", "503", "lost", "delay", "lag", "away")
OPERATOR = ("operator-kill", "operator-stop")
OWN = ("trainer-kill", "trainer-stop", "access-kill", "access-stop", "disk-full", "retention-full")
KINDS = (*ANSWERS, *OPERATOR, *OWN)

# How often each is drawn, per fault. "away" costs every run of the bench its length.
_WEIGHTS: Mapping[str, float] = {
    **dict.fromkeys(ANSWERS, 1.0),
    "lag": 2.0,
    "lost": 2.0,
    "away": 0.25,
    "operator-kill": 2.0,
    "operator-stop": 1.0,
    "trainer-kill": 5.0,
    "trainer-stop": 1.5,
    "access-kill": 3.0,
    "access-stop": 1.5,
    "disk-full": 1.5,
    "retention-full": 1.0,
}
# s; of faults that are a state and not an act.
_LASTS: Mapping[str, tuple[float, float]] = {
    **dict.fromkeys(("409", "410", "429", "500", "503"), (1.0, 4.0)),
    "lost": (1.0, 4.0),
    "delay": (2.0, 5.0),
    "lag": (3.0, 8.0),
    "operator-stop": (2.0, 9.0),
    "trainer-stop": (1.0, 6.0),
    "access-stop": (1.0, 6.0),
    "disk-full": (2.0, 6.0),
    "retention-full": (3.0, 10.0),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """``at``: seconds after the run's first life began. ``lasts``: seconds; 0: an act of a moment."""

    at: float
    kind: str
    lasts: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """One run. ``back``: by life, how many checkpoints it goes back further than it must; ``waits``: whether
    its trainers end only when their last eval is in the status."""

    seed: int
    kind: str  # over-optimising | healthy
    trainer: tuple[str, ...]  # arguments
    replicas: int
    gpus: int  # per replica
    rule: Mapping[str, Any]  # spec.stopRule and spec.modifiers
    restart: str  # restartPolicy of the pods
    back: tuple[int, ...]
    act: str  # of its user: "" | Stopped | Off | Off-Enforce
    act_at: float
    waits: bool = False
    faults: tuple[Fault, ...] = field(default=())

    def described(self) -> dict[str, Any]:
        return json.loads(json.dumps(asdict(self)))


def draw(
    seed: int, away: float = 60.0, kinds: tuple[str, ...] = KINDS, evals: tuple[int, int] = (18, 30)
) -> Plan:
    """The run of this seed. ``away``: seconds for which the API server is gone when it goes; ``kinds``: which
    faults there are; ``evals``: how many a run has at least and at most, so many that all stay exposed."""
    rng = random.Random(f"faults {seed}")
    over = rng.random() < 0.6
    count = rng.randint(*evals)
    every = rng.choice((3, 4, 5))
    pace = rng.uniform(0.45, 0.8)  # s between evals
    keep = rng.choice((8, 40, 40, 40))
    learning = rng.choice((0.02, 0.03, 0.04)) if over else 0.006
    trainer = (
        f"--steps={count * every}",
        f"--eval-every={every}",
        f"--seed={rng.randint(1, 10**6)}",
        f"--preferences={rng.choice((40, 100, 200)) if over else 5000}",
        f"--kl={0 if over else 0.1}",
        f"--lr={learning}",
        "--batch=48",
        f"--eval-samples={rng.choice((96, 192))}",
        f"--keep={keep}",
        f"--step-seconds={pace / every:.3f}",
        "--linger-seconds=5",
        "--stop-grace-seconds=30",
    )
    restart = "OnFailure" if rng.random() < 0.75 else "Never"
    length = count * pace + 6
    many = rng.choice((0, 1, 1, 2, 2, 3, 4))
    weights = [_WEIGHTS[kind] for kind in kinds]
    faults: list[Fault] = []
    deaths = 0
    for kind in rng.choices(kinds, weights, k=many) if kinds else ():
        if kind == "trainer-kill":
            deaths += 1
            if deaths > (3 if restart == "OnFailure" else 1):
                kind = "trainer-stop"
        lasts = away if kind == "away" else rng.uniform(*_LASTS[kind]) if kind in _LASTS else 0.0
        faults.append(Fault(round(rng.uniform(1.0, length), 2), kind, round(lasts, 2)))
    act, act_at = "", 0.0
    if rng.random() < 0.1:
        act, act_at = rng.choice(("Stopped", "Off", "Off-Enforce")), rng.uniform(0.3, 1.0) * length
    return Plan(
        seed=seed,
        kind="over-optimising" if over else "healthy",
        trainer=trainer,
        replicas=rng.choice((1, 1, 1, 2)),
        gpus=rng.choice((1, 1, 2)),
        rule=_rule(rng),
        restart=restart,
        back=(0, *(rng.choice((0, 1, 2, 4, 8)) for _ in range(5))),
        act=act,
        act_at=round(act_at, 2),
        faults=tuple(sorted(faults, key=lambda f: f.at)),
    )


def _rule(rng: random.Random) -> dict[str, Any]:
    if rng.random() < 0.4:
        return {}  # what a user gets who chooses nothing
    rules: tuple[dict[str, Any], ...] = (
        {"kDeclines": {"k": 3, "minDelta": "0.02"}},
        {"drawdown": {"maxDrop": "0.3"}},
        {"scan": {}},
        {"cusum": {}},
    )
    found: dict[str, Any] = {"stopRule": rng.choice(rules)}
    if rng.random() < 0.5:
        found["modifiers"] = [{"warmUp": {"minEvals": 5}}]
    return found
