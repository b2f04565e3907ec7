"""What the oracle knows of each job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from controller.policy.job.types import ScrapeView
from tests.faults.cluster import Job
from tests.faults.trainer import Eval, Saved

if TYPE_CHECKING:
    from tests.faults.world import World


class Violation(AssertionError):
    """What must never be: the invariant's name first."""


@dataclass
class Owed:
    """A best eval whose checkpoint must be in safety from now on."""

    eval: Eval
    saved: Saved
    at: float


@dataclass
class Case:
    """What the oracle knows of one RLHFJob."""

    owed: list[Owed] = field(default_factory=list)
    desired: list[tuple[float, Any]] = field(default_factory=list)
    evaluators: list[str] = field(default_factory=lambda: ["1"])
    baseline: int = 0  # lives before this one count for no stop
    operated: float = 0.0  # s for which an operator has run: in a day that is skipped it makes few passes
    wrong: dict[str, float] = field(default_factory=dict)  # when of these it became so
    good: dict[str, float] = field(default_factory=dict)  # s that it lay whole for an eval while all worked
    resumed_best: float | None = None
    ended: bool = False
    stopping: float = 0.0  # s for which its user's stop has not suspended it
    asked_to_go_on: bool = False  # its user resumed it after its end
    resumed_from: str = ""  # what the resume that was last carried out names
    shown: ScrapeView | None = None  # the page that was last read
    fooled: bool = False  # a page that does not say whose it is may have been another's


class Knowledge:
    """What is true of each job, and how evals and checkpoints belong together."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.cases: dict[str, Case] = {}
        self.dirty = True
        self.read: dict[str, int] = {}  # at which number of changes by the trainer
        self.settled = False  # nothing new has happened for long
        self.kept: dict[str, list[tuple[str, Saved | None]]] = {}  # by uid, until files may have changed

    def fail(self, invariant: str, job: Job, text: str) -> None:
        raise Violation(f"{invariant} {job.name}: {text}")

    def case(self, job: Job) -> Case:
        found = self.cases.get(job.uid)
        if found is None:
            found = self.cases[job.uid] = Case()
        return found

    def sign(self, job: Job) -> float:
        return 1.0 if job.spec("metrics")[0].get("direction", "Maximize") == "Maximize" else -1.0

    def worth(self, job: Job, e: Eval) -> float:
        return self.sign(job) * e.score

    @staticmethod
    def on_the_way(e: Eval, saved: Saved) -> bool:
        """Whether a checkpoint lies on the way to an eval."""
        life, most = e.life, e.step
        while True:
            if life is saved.life:
                return saved.step <= most
            if life.source is None:
                return False
            if life.source is saved:
                return True
            life, most = life.source.life, min(most, life.source.step)


def borne_out(evals: Sequence[Eval]) -> set[int]:
    """Outliers (their `id`) with one at the same level beside them: no gate can know that they are none.

    The third eval of all decides between the first two, so it may bear out the first.
    """
    found: set[int] = set()
    usual = [e for e in evals if e.fault in ("", "outlier")]
    last = 0.0
    for at, one in enumerate(usual):
        if not one.fault:
            last = one.score
            continue
        for other in usual[at + 1 : at + (3 if at == 0 else 2)]:
            if other.fault and abs(other.score - one.score) <= 0.5 * abs(one.score - last):
                found |= {id(one), id(other)}
    return found
