"""Baselines that end before the rule had evals enough to speak: another version of the evaluator each time.

Evals of two versions are not compared, so a rule under which each version scores an eval or two can stop
nothing, and the best is what the newest version says. A series of such versions is counted, and said from
`LEAST` on. Through all of it two pins stay beside the present best's: the best of before the series, and that
of the highest score in it, whoever scored it. Where the version should have been a constant (a time, a commit
or a seed was in it) that one is the best of the run.
"""

from __future__ import annotations

from controller.frozen import dataclass
from controller.policy.job.bests import higher_of
from controller.policy.job.record import EvalBaseline, JobRecord, ProtectedCheckpoint, ShortBaselines
from controller.policy.job.rule_in_use import RuleInUse
from controller.policy.job.types import Direction
from controller.policy.stopping import StopRule, earliest
from controller.policy.wording import agreeing, counted

LEAST = 3  # in a row, from which on they are no coincidence
TWO = 2  # evals: fewer are compared with nothing
WORD = 40  # characters of a version that a message shows


@dataclass(frozen=True, slots=True)
class Kept:
    """Memory of the baselines before a new one: pin of the best, the short ones, paths to be released."""

    best: ProtectedCheckpoint | None
    short: ShortBaselines | None
    released: tuple[str, ...]


def speaks_at(rule: StopRule) -> int:
    """Return at which eval of one evaluator a rule may stop a run at the earliest, at least the second."""
    first = earliest(rule)
    return max(TWO, int(first.value)) if first is not None else TWO


def ended(
    record: JobRecord, use: RuleInUse, seen: int, leaving: ProtectedCheckpoint | None, by: str | None
) -> Kept:
    """Return what stays once the record's baseline has ended.

    Args:
        record: as it was before.
        use: its rules.
        seen: evals that the rule saw under that baseline.
        leaving: its best's pin, with its score; None: it has none, or keeps it.
        by: version of the evaluator that scored it, where another one follows; "" where the unit changed;
            None: it does not count in a series, for another cause ended it, or it had no eval at all.
    """
    former = record.baseline.kept if record.baseline is not None else None
    series = record.baseline.short if record.baseline is not None else None
    if seen >= speaks_at(use.rule) or (by is None and series is None):
        if leaving is None:  # what is pinned stays until there is something in its place
            return Kept(former, ShortBaselines(highest=series.highest) if series is not None else None, ())
        old = (former, series.highest if series is not None else None)
        return Kept(leaving, None, tuple(k.path for k in old if k is not None and k.path != leaving.path))
    series = series or ShortBaselines()
    count, version = series.count, series.evaluator
    if by is not None:
        count, version = count + 1, by
    longest = max(series.longest, seen)
    if former is None:
        return Kept(leaving, ShortBaselines(count, longest, version, series.highest), ())
    highest = higher_of(use.direction, series.highest, leaving)
    lower = leaving if highest is not leaving else series.highest
    gone = (lower.path,) if lower is not None and lower is not highest else ()
    return Kept(former, ShortBaselines(count, longest, version, highest), gone)


def goes_on(record: JobRecord, rule: StopRule) -> bool:
    """Return whether a run's versions, or units, come so fast that its rule can stop nothing.

    It is over with one more eval under one of them than any before had.
    """
    short = record.baseline.short if record.baseline is not None else None
    if short is None or short.count < LEAST or record.evals_seen >= speaks_at(rule):
        return False
    return record.evals_seen <= max(1, short.longest)


def complaint(record: JobRecord, rule: StopRule, direction: Direction) -> str:
    """Return in a sentence that they do, and what is kept meanwhile."""
    baseline = record.baseline
    assert baseline is not None
    assert baseline.short is not None
    short, most = baseline.short, max(1, baseline.short.longest)
    if baseline.unit:
        what = "the unit of the scores changes again and again"
        named = f"{counted(short.count, 'time')} in a row"
    else:
        what = "the evaluator's version changes again and again"
        named = f"{_shown(short.evaluator)}, then {_shown(record.evaluator)}"
    text = (
        f"{what} ({named}), each time after {counted(most, 'eval')} at most: scores of two are not compared, "
        f"so the rule, which needs {counted(speaks_at(rule), 'eval')} of one, can stop nothing, and the best "
        "is the newest one's"
    )
    if kept := sorted({one.step for one in baseline.pins}):
        steps = ", ".join(map(str, kept))
        text += f"; {agreeing(len(kept), 'step', 'steps')} {steps} of before "
        text += f"{agreeing(len(kept), 'stays', 'stay')} pinned"
        top = higher_of(direction, *((*baseline.pins, None)[:2]))
        if top is not None and top.score is not None:
            text += f" (highest score: {top.score:.4g} at step {top.best_step})"
    return text


def stays_until(baseline: EvalBaseline) -> str:
    """Return until when the pins of before stay, and which one besides the best's; goes on a sentence."""
    short = baseline.short
    if short is None or short.highest is None:
        return " until they begin anew again"
    return f", and so does that of step {short.highest.step}, highest since, until evals of one go on longer"


def _shown(version: str) -> str:
    """Return a version, of a long one its two ends."""
    half = WORD // 2
    return repr(version if len(version) <= WORD else f"{version[:half]}…{version[-half:]}")
