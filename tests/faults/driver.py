"""Histories: drawn from a seed, played, made shorter, written down."""

from __future__ import annotations

import gc
import json
import re
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.faults.acts import ACTS, Act
from tests.faults.disk import watched
from tests.faults.oracle import Violation
from tests.faults.world import LAYOUTS, RULES, World

TRACES = Path(__file__).parent / "traces"
Step = tuple[str, int]
COMMON = ("rise", "decline", "wait", "restart")  # without which little can happen


@dataclass(frozen=True)
class Focus:
    """Acts that make one situation come up often, and configurations (values to choose from)."""

    acts: tuple[str, ...]
    config: dict[str, tuple[Any, ...]] = field(default_factory=dict)


@dataclass
class Outcome:
    """What became of a history. ``violation``: what must not be, with the invariant first; "": nothing."""

    violation: str = ""
    at: int = -1  # acts played before
    counts: Counter[str] = field(default_factory=Counter)
    log: list[str] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """The violation without its numbers: failures of one kind are told apart from others by it."""
        text = re.sub(r"/\S+", "PATH", self.violation)
        text = re.sub(r"[0-9]+-[0-9a-z]{6,}|-?[0-9]+([.][0-9]+)?", "#", text)
        return re.sub(r"\[[^]]*\]", "[…]", text)[:120]


def drawn_config(r: Random) -> dict[str, Any]:
    config: dict[str, Any] = {
        "seed": r.getrandbits(32),
        "tells": True,
        "jobs": r.choice((1, 2, 2)),
        "layout": r.choice(LAYOUTS),
        "direction": r.choice(("Maximize", "Maximize", "Minimize")),
        "guard": r.random() < 0.25,
        "replicas": r.choice((1, 1, 2)),
        "mode": r.choice(("Enforce",) * 7 + ("Shadow",)),
        "lag": r.choice((0, 0, 0, 10, 20)),
        "rule": r.choice(list(RULES)),
        "page": r.random() < 0.95,
        "serves": r.random() < 0.8,
        "save_first": r.random() < 0.5,
        "anew": r.random() < 0.7,
        "keep": r.choice((1, 2, 3)),
        "leftovers": r.random() < 0.15,
        "stderr": r.choice((None, 0.02)),
        "gate": r.random() < 0.3,
        "contended": r.random() < 0.2,
        "length": r.randint(12, 36),
    }
    # Told by the seed, not drawn: a draw more would change all that comes after it.
    config["retain"] = "AfterSuspend" if config["seed"] % 4 == 0 else "BeforeSuspend"
    config["outlive"] = config["seed"] % 4 == 1
    return config


def drawn(seed: int, focus: Focus | None = None) -> tuple[dict[str, Any], list[Step]]:
    """The history of a seed; ``focus``: with few other acts than these, and so configured."""
    r = Random(seed)
    config = drawn_config(r)
    names, weights = list(ACTS), [e.weight for e in ACTS.values()]
    if focus is not None:
        config |= {key: r.choice(values) for key, values in focus.config.items()}
        weights = [4.0 if n in focus.acts else e.weight if n in COMMON else 0.02 for n, e in ACTS.items()]
    picked = r.choices(names, weights, k=config["length"])
    return config, [(name, r.getrandbits(32)) for name in picked]


def play(config: dict[str, Any], steps: Sequence[Step], *, talks: bool = False) -> Outcome:
    """Play a history, and let the world settle.

    Raises:
        ValueError: there is no such act (any more).
    """
    known = [(name, seed, _act(name)) for name, seed in _beginning(config) + list(steps)]
    world = World(config)
    world.talks = talks
    outcome = Outcome(counts=world.counts, log=world.log)
    try:
        with watched(world.disk):
            for number, (name, seed, act) in enumerate(known):
                outcome.at = number
                world.counts[f"act {name}"] += 1
                if talks:
                    world.say(f"--- {name} {seed}")
                act(world, Random(seed))
            if talks:
                world.say("--- settle")
            world.oracle.settle()
    except Violation as violation:
        outcome.violation = str(violation)
    except Exception as error:  # a plan is total: whatever the world looks like, it never raises
        where = traceback.extract_tb(error.__traceback__)[-1]
        outcome.violation = f"S0 raised {type(error).__name__}: {error}, {where.name}"
    finally:
        world.close()
    return outcome


def collect_garbage_rarely() -> None:
    """For a process that plays histories and nothing else: an eighth of its time went into collections that
    went through all modules, and found the few worlds that were over."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def _start(world: World, r: Random) -> None:
    if world.config["leftovers"]:
        world.leave_over()
    world.tick(6)


BEGINNING: dict[str, Act] = {"start": _start}


def _act(name: str) -> Act:
    found = BEGINNING.get(name) or (ACTS[name].act if name in ACTS else None)
    if found is None:
        raise ValueError(f"act {name!r}: not known, expected one of {', '.join(sorted(ACTS))}")
    return found


def _beginning(config: dict[str, Any]) -> list[Step]:
    return [("start", config["seed"])]


def shrink(config: dict[str, Any], steps: Sequence[Step], most: int = 400) -> tuple[list[Step], Outcome]:
    """A failure of the same kind with fewer acts."""
    best, outcome, tries = list(steps), play(config, steps), 0
    best = best[: outcome.at]  # the act of that number is played: the first is the beginning
    kind = outcome.kind
    size = max(1, len(best) // 2)
    while size and tries < most:
        start = 0
        while start < len(best) and tries < most:
            fewer = best[:start] + best[start + size :]
            tries += 1
            found = play(config, fewer)
            if found.violation and found.kind == kind:
                best, outcome = fewer, found
            else:
                start += size
        size //= 2
    return best, outcome


def save(
    config: dict[str, Any], steps: Sequence[Step], outcome: Outcome, name: str, folder: Path = TRACES
) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(
        json.dumps(
            {"violation": outcome.violation, "config": config, "acts": [list(s) for s in steps]}, indent=1
        )
        + "\n"
    )
    return path


def load(path: Path) -> tuple[dict[str, Any], list[Step], str]:
    found = json.loads(path.read_text())
    return found["config"], [(name, seed) for name, seed in found["acts"]], found["violation"]
