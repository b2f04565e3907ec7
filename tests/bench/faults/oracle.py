"""The verdict on one run: nothing of the product enters it but a rule's fold over the true evals."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from tests.bench.faults.truth import Eval, Save, Truth, kept_below

# s that a checkpoint must lie whole, nothing else going wrong, to be owed: two scrapes, an access Job, the
# pause before a retry and that retry, on a machine that has other things to do.
OWED_AFTER = 15.0
NOTED = 10.0  # s in which what a scrape brought is written into the status, on a busy machine too
# s by which the operator may know less than the trainer: a scrape, a pass, and the write of the suspend.
BEHIND = 6.0

Span = tuple[float, float]  # s, from and to
Shown = Mapping[tuple[str, int], float]  # (life as the status names it, step) -> s, when a status showed it
Says = Callable[
    [Sequence[Eval]], bool
]  # whether the rule, fed with these evals, says stop on the last of them


@dataclass(frozen=True, slots=True)
class Stop:
    """An automatic stop, as the cluster showed it. ``at``: when the workload's spec said suspend;
    ``forbidden``: since when the run's user had it that no rule may stop it (mode Off)."""

    at: float
    by: str
    message: str
    forbidden: float | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """What the status says lies at a path: a checkpoint with this score."""

    what: str  # secured | retained
    path: Path
    step: int
    score: float | None


@dataclass(slots=True)
class Verdict:
    lost: list[str] = field(default_factory=list)
    false_stops: list[str] = field(default_factory=list)
    untrue: list[str] = field(default_factory=list)  # what the status says of a checkpoint, and is not so
    owed: int = 0  # evals whose checkpoint had to be safe
    kept: list[str] = field(default_factory=list)


def spans_without(troubles: Iterable[Span], since: float, until: float) -> list[Span]:
    """The parts of a time in which nothing went wrong."""
    found, at = [], since
    for begin, end in sorted(troubles):
        if begin > at:
            found.append((at, min(begin, until)))
        at = max(at, end)
        if at >= until:
            break
    if at < until:
        found.append((at, until))
    return found


def owed(
    truth: Truth,
    troubles: Sequence[Span],
    acute: Sequence[Span],
    until: float,
    ignored: Callable[[Sequence[Eval]], frozenset[int]],
    after: float = OWED_AFTER,
    shown: Shown = MappingProxyType({}),
) -> list[tuple[Eval, Save]]:
    """Counting evals of the last branch that were once its best, and whose checkpoint had to be made safe.

    A status showed it (`shown`), or somebody read its page and had ample time to note it (no time is `acute`:
    no operator, or no API server);
    and its checkpoint lay whole as the best one, nothing else going wrong (`troubles`), for long enough.
    """
    if not truth.lives:
        return []
    branch = truth.branch(truth.lives[-1].number)
    steps = ignored(branch)
    branch = [e for e in branch if e.step not in steps]
    found = []
    for i, e in enumerate(branch):
        if any(b.score >= e.score for b in branch[:i]):
            continue
        save = _save_of(truth, e)
        if save is None or save.at > e.at:
            continue
        ends = [until]
        if save.gone is not None:
            ends.append(save.gone)
        ends += [b.at for b in branch[i + 1 :] if b.score > e.score][:1]
        since = noted(truth, e, acute, shown)
        if since is None:
            continue
        spans = spans_without(troubles, since, min(ends))
        if any(end - begin >= after for begin, end in spans):
            found.append((e, save))
    return found


def noted(truth: Truth, e: Eval, acute: Sequence[Span], shown: Shown) -> float | None:
    """Since when an eval is surely in the status: it was seen there, or it was read, and should have been
    written by then while nothing was `acute`; or None."""
    life = truth.lives[e.life]
    read = (
        at + NOTED
        for at in life.scrapes
        if at >= e.at and not any(begin < at + NOTED and end > at for begin, end in acute)
    )
    times = [shown.get((life.attempt, e.step)), next(read, None)]
    return min((at for at in times if at is not None), default=None)


def _save_of(truth: Truth, e: Eval) -> Save | None:
    return next((s for s in reversed(truth.saves) if (s.life, s.step) == (e.life, e.step)), None)


def judge_safety(
    verdict: Verdict,
    truth: Truth,
    places: Sequence[Path],
    troubles: Sequence[Span],
    acute: Sequence[Span],
    until: float,
    ignored: Callable[[Sequence[Eval]], frozenset[int]],
    shown: Shown = MappingProxyType({}),
) -> None:
    """Lost bests: the best that was owed, and nothing at least as good lies in the places, byte for byte."""
    due = owed(truth, troubles, acute, until, ignored, shown=shown)
    verdict.owed = len(due)
    found = [item for place in places for item in kept_below(place, truth)]
    verdict.kept = [f"{path}: life {s.life} step {s.step} score {score}" for path, s, score in found]
    if not due:
        return
    best = max(due, key=lambda pair: pair[0].score)[0]
    scores = [score for _, _, score in found if score is not None]
    if not any(score >= best.score for score in scores):
        verdict.lost.append(
            f"the checkpoint of life {best.life} step {best.step}, score {best.score:.4f}, was to be safe; "
            f"the best that is has {max(scores, default=float('nan')):.4f} of {len(found)} kept"
        )


def judge_claims(verdict: Verdict, truth: Truth, claims: Sequence[Claim]) -> None:
    """A path that the status names holds what the status says, of a save that the trainer made."""
    for claim in claims:
        found = kept_below(claim.path, truth)
        if not found:
            verdict.untrue.append(
                f"{claim.what} {claim.path}: no checkpoint that the trainer wrote lies there"
            )
            continue
        _, save, score = found[0]
        if save.step != claim.step:
            verdict.untrue.append(f"{claim.what} {claim.path}: is of step {save.step}, not {claim.step}")
        elif None not in (score, claim.score) and abs((score or 0.0) - (claim.score or 0.0)) > 1e-6:
            verdict.untrue.append(
                f"{claim.what} {claim.path}: "
                f"life {save.life} step {save.step} scored {score}, not {claim.score}"
            )


def judge_stop(verdict: Verdict, truth: Truth, stop: Stop, says: Says, troubles: Sequence[Span]) -> None:
    """A false stop: the rule says no stop on the true evals of the run as it was then.

    What the operator could know is a little less than all: the newest evals of a few seconds, and more where
    something else went wrong then; and of a life that died those that no scrape saw any more.
    """
    if stop.forbidden is not None and stop.at - stop.forbidden > BEHIND + _trouble_at(stop.at, troubles):
        verdict.false_stops.append(f"stopped {stop.at - stop.forbidden:.0f} s after its mode was Off")
        return
    behind = BEHIND + _trouble_at(stop.at, troubles)
    living = [life for life in truth.lives if life.ready and life.began <= stop.at]
    candidates = [
        life
        for i, life in enumerate(living)
        if i == len(living) - 1 or living[i + 1].began > stop.at - behind
    ]
    for life in candidates:
        for evals in _seen(truth, life.number, stop.at, behind, troubles):
            if evals and says(evals):
                return
    verdict.false_stops.append(
        f"by {stop.by} ({stop.message}): the rule says no such thing on the true evals"
    )


def _trouble_at(at: float, troubles: Sequence[Span]) -> float:
    """Seconds for which things had gone wrong, in one stretch, up to this moment or shortly before."""
    reach = at - BEHIND
    for begin, end in sorted(troubles, key=lambda span: -span[1]):
        if begin <= at and end >= reach:
            reach = min(reach, begin)
    return at - BEHIND - reach


def _seen(
    truth: Truth, number: int, at: float, behind: float, troubles: Sequence[Span]
) -> Iterable[list[Eval]]:
    """What of a branch the operator may have seen at that moment, the likeliest first."""
    branch = [e for e in truth.branch(number) if e.at <= at]
    parts = [list(group) for _, group in itertools.groupby(branch, key=lambda e: e.life)]
    choices: list[list[list[Eval]]] = []
    for part in parts:
        life = truth.lives[part[0].life]
        own = part[0].life == number
        ends = at if own else life.last
        lag = behind if own else BEHIND + _trouble_at(life.last, troubles)
        surely = sum(1 for e in part if e.at <= ends - lag)
        choices.append([part[:n] for n in range(len(part), surely - 1, -1)])
    for chosen in itertools.islice(itertools.product(*choices), 5000):
        yield last_of_steps(e for part in chosen for e in part)


def last_of_steps(evals: Iterable[Eval]) -> list[Eval]:
    """Evals of a branch; of a step that a life has evaluated again, which went on from it, the last."""
    found: list[Eval] = []
    for e in evals:
        if found and found[-1].step >= e.step:
            found.pop()
        found.append(e)
    return found
