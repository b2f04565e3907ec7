"""An eval above the best that the gate dropped is told, with where its checkpoint is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.policy.job.evals import ingest, rewind
from controller.policy.job.lone_peaks import LonePeak, lone_peak
from controller.policy.job.record import (
    Best,
    Decision,
    JobRecord,
    LifeRecord,
    ProtectedCheckpoint,
    StepCounts,
)
from controller.policy.job.rule_in_use import RuleInUse
from controller.policy.job.types import Desired, Direction, ScrapeOutcome, ScrapeView
from controller.policy.types import Attempt, EvalPoint, Mode, PolicySpec, Proposal

LIFE = Attempt(1, "9f2c41d0")
GATE = (PolicySpec("gate"),)
PEAK = (0.40, 0.55, 0.70, 0.85, 0.72, 0.60, 0.50)  # its rise and fall are as good as free of noise


def run(
    scores: tuple[float, ...], modifiers: tuple[PolicySpec, ...] = GATE, total: int = 80, sign: float = 1.0
) -> JobRecord:
    """One scrape after the other."""
    record, points = JobRecord(), []
    for number, score in enumerate(scores):
        points.append(EvalPoint(10 * (number + 1), sign * score, LIFE, 0.012))
        seen = ScrapeView(ScrapeOutcome.OK, metrics_seen=("gold",), points=tuple(points[-32:]))
        record = ingest(record, in_use(modifiers, sign, total), seen)
    return record


def in_use(
    modifiers: tuple[PolicySpec, ...] = GATE, sign: float = 1.0, total: int | None = None
) -> RuleInUse:
    desired = Desired("ns/a", "u", 1, "gold", 1, 1, PolicySpec("scan"), modifiers, direction=direction(sign))
    return RuleInUse.of(desired, total_steps=total)


def direction(sign: float) -> Direction:
    return Direction.MAXIMIZE if sign > 0 else Direction.MINIMIZE


def told(record: JobRecord, sign: float = 1.0, modifiers: tuple[PolicySpec, ...] = GATE) -> LonePeak | None:
    return lone_peak(record, modifiers, direction(sign), "run -n team")


def sentence(record: JobRecord, sign: float = 1.0, modifiers: tuple[PolicySpec, ...] = GATE) -> str:
    found = told(record, sign, modifiers)
    return "" if found is None else found.sentence(direction(sign))


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_peak_that_the_gate_dropped_is_told(sign: float) -> None:
    record = run(PEAK, sign=sign)
    assert record.best is not None
    assert record.best.step == 50, "the gate has it that the peak is none"
    far, side, way = ("higher", "below", "rise") if sign > 0 else ("lower", "above", "fall")
    assert sentence(record, sign) == (
        f"{sign * 0.85} at step 40 is {far} than the best: the eval after it lay {side} half of its {way}; "
        "its checkpoint: not kept; evalstop pin run -n team 40 keeps it while the trainer's own is there"
    )
    assert told(run(PEAK, (), sign=sign), sign, ()) is None, "every eval counts"


def test_what_counts_or_waits_is_none() -> None:
    for until in range(1, 5):
        assert told(run(PEAK[:until])) is None, until
    assert told(JobRecord()) is None
    # The status has another rule's memory until its next pass.
    record = run(PEAK[:4])
    assert record.rule is not None
    strange = replace(record, awaiting=None, rule=replace(record.rule, state=(1,)))
    assert sentence(strange).startswith("0.85 at step 40 is higher than the best")


def test_it_says_what_did_not_bear_it_out() -> None:
    two = run((0.5, 0.5, 0.5, 0.9, 0.85, 0.5, 0.5), total=4000)  # the second of two it was
    assert "0.9 at step 40 is higher than the best (so is 1 other): the evals after it did not" in sentence(
        two
    )
    steep = (PolicySpec("gate", {"borne_out": 0.9}),)
    assert "the eval after it lay below 90 % of its rise" in sentence(run(PEAK, steep), modifiers=steep)


def test_where_its_checkpoint_is() -> None:
    record = run(PEAK)
    path = f"/ckpt/.evalstop/u/{LIFE}-40"
    kept = ProtectedCheckpoint(40, 40, path, "sha256:ab", 1.0, attempt=LIFE)
    other = replace(kept, attempt=Attempt(2, "9f2c41d1"))
    for changed, place in (
        (replace(record, retained=(kept,)), f"retained at {path}"),
        (replace(record, secured=kept), f"pinned at {path}"),
        (replace(record, pinned=(kept,)), f"pinned at {path}"),
        (replace(record, to_release=(path,)), f"{path}, released once the next one is pinned; evalstop pin"),
    ):
        found = told(changed)
        assert found is not None
        assert found.checkpoint.startswith(place)
        assert found.path == path
    for changed in (replace(record, secured=other), replace(record, retained=(kept,), retained_gone=(path,))):
        assert "its checkpoint: not kept; evalstop pin run -n team 40" in sentence(changed)
    other_counter = replace(record, pinned=(kept,), step_counts=StepCounts(LIFE, disagree=True))
    assert sentence(other_counter).endswith("its checkpoint: not kept"), "step 40 is another moment there"
    proposal = Proposal(70, "FellBelowBestStretch", 5.0, 3.5, 50)
    stop = Decision("scan", Mode.ENFORCE, proposal, "", 1.0, suspended_at=2.0)
    assert "evalstop resume run -n team --step 40 --yes goes on" in sentence(replace(record, decision=stop))
    assert sentence(replace(record, finished="Completed")).endswith("trainer's own may still be there")


LONG = (*PEAK[:4], *(0.7 + 0.001 * (n % 3) for n in range(60)))


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_one_that_is_no_longer_kept_is_told_by_the_curve(sign: float) -> None:
    record = run(LONG, sign=sign, total=4000)
    assert record.evals[0].step > 40
    found = told(record, sign)
    assert found is not None
    assert (found.score, found.step, found.last, found.others) == (sign * 0.85, 40, 40, 0)
    assert found.reason == "the evals after it did not bear it out"
    coarse = run((*LONG, *(0.7 for _ in range(40))), sign=sign, total=4000)
    found = told(coarse, sign)
    assert found is not None
    assert found.step <= 40 <= found.last
    assert f"{sign * 0.85} at a step of {found.step} to {found.last} is" in found.sentence(direction(sign))
    assert found.checkpoint == "not kept"


def test_no_bucket_is_told_of_that_may_have_evals_that_were_left() -> None:
    record = run(LONG, total=4000)
    assert told(replace(record, abandoned_step=100)) is None
    again = (LifeRecord(LIFE, "p", 0.0, 0.0), LifeRecord(LIFE, "q", 0.0, 0.0, resumed=40))
    assert told(replace(record, lives=again)) is None
    back = rewind(record, in_use(total=4000), 400)
    assert told(back) is None
    # A better best than its bucket has digits for is none that the bucket is higher than.
    assert told(replace(record, best=Best(40, 0.85000001))) is None
    assert told(replace(record, best=Best(40, 0.8499999))) is None
