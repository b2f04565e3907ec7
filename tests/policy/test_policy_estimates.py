"""How long a run takes as a whole: from its own pace, from runs like it, as its user states."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.policy.job.estimates import NO_HISTORY, OWN_PACE, History, Kind, PastRun, past_run, whole
from controller.policy.job.record import Decision, JobRecord, RunProgress
from controller.policy.types import Mode, Proposal

KIND = Kind("team", ("trainer:1",), 2, 4, (("model", "7b"),))
OTHER_LABELS = KIND._replace(labels=(("model", "70b"),))


def history(*runs: tuple[Kind, float, int | None]) -> History:
    return History((kind, PastRun(seconds, steps)) for kind, seconds, steps in runs)


def progress(share: float, seconds: float, kind: Kind = KIND) -> RunProgress:
    return RunProgress(round(1000 * share), 1000, seconds * kind.gpus)


@pytest.mark.parametrize(
    ("past", "steps", "expected"),
    [
        (history(), None, None),
        (history((KIND, 100.0, None)), None, 100.0),
        (history((KIND, 100.0, None), (KIND, 300.0, None), (KIND, 9000.0, None)), None, 300.0),  # median
        (history((KIND, 100.0, 50), (KIND, 300.0, 150)), 1000, 2000.0),  # 2 s a step
        (history((KIND, 100.0, 50)), None, 100.0),  # how many steps it will make is not told yet
        (history((KIND, 100.0, None)), 1000, 100.0),
        (history((KIND, 100.0, None), (OTHER_LABELS, 900.0, None)), None, 100.0),  # the closest kind
        (history((OTHER_LABELS, 900.0, None)), None, 900.0),  # else the same without labels
        (history((KIND._replace(namespace="others"), 900.0, None)), None, None),
        (history((KIND._replace(images=("trainer:2",)), 900.0, None)), None, None),
        (history((KIND._replace(replicas=1), 900.0, None)), None, None),
    ],
)
def test_runs_like_it(past: History, steps: int | None, expected: float | None) -> None:
    assert past.whole(KIND, steps) == expected


@pytest.mark.parametrize(
    ("seen", "past", "stated", "expected"),
    [
        (None, NO_HISTORY, None, None),
        (None, NO_HISTORY, 500.0, 500.0),
        (None, history((KIND, 100.0, None)), 500.0, 100.0),  # what runs did counts for more than what is said
        (progress(0.5, 300.0), history((KIND, 100.0, None)), 500.0, 600.0),  # its own pace
        (progress(OWN_PACE, 60.0), NO_HISTORY, 100.0, 600.0),
        (progress(OWN_PACE / 2, 30.0), NO_HISTORY, 100.0, 350.0),  # half and half
        (progress(0.01, 6.0), NO_HISTORY, None, 600.0),  # better than nothing
        (progress(0.0, 30.0), NO_HISTORY, None, None),  # no step made: nothing to go by
        (progress(0.0, 30.0), history((KIND, 100.0, 1000)), None, 100.0),
        (progress(0.5, 0.0), NO_HISTORY, 500.0, 500.0),
    ],
)
def test_the_whole(
    seen: RunProgress | None, past: History, stated: float | None, expected: float | None
) -> None:
    found = whole(KIND, seen, past, stated)
    assert found == (None if expected is None else pytest.approx(expected))


SECONDS = st.floats(1e-3, 1e7)
RUNS = st.lists(st.tuples(SECONDS, st.none() | st.integers(1, 10**6)), min_size=1, max_size=4)


@given(SECONDS, st.integers(1, 1000))
def test_at_a_constant_pace_what_is_left_is_right(seconds: float, step: int) -> None:
    seen = RunProgress(step, 1000, seconds * step / 1000 * KIND.gpus)
    found = whole(KIND, seen)
    assert found == pytest.approx(seconds)
    assert found * (1 - seen.share) == pytest.approx(seconds - seconds * step / 1000, abs=1e-6 * seconds)


@given(RUNS, st.none() | SECONDS, st.floats(0.0, 1.0), SECONDS)
def test_an_estimate_lies_between_what_it_rests_on(
    runs: list[tuple[float, int | None]], stated: float | None, share: float, worked: float
) -> None:
    past = history(*((KIND, *run) for run in runs))
    seen = progress(share, worked)
    found = whole(KIND, seen, past, stated)
    expected = past.whole(KIND, seen.total_steps)
    own = worked / seen.share if seen.step else expected
    assert expected is not None
    assert own is not None
    assert found is not None
    slack = 1e-9 * max(own, expected)
    assert min(own, expected) - slack <= found <= max(own, expected) + slack
    if share >= OWN_PACE and seen.share >= OWN_PACE:
        assert found == pytest.approx(own)


@given(RUNS)
def test_the_order_of_the_history_does_not_matter(runs: list[tuple[float, int | None]]) -> None:
    answers = {history(*((KIND, *r) for r in order)).whole(KIND, 700) for order in permutations(runs)}
    assert len(answers) == 1


def ended(by: str | None, step: int = 1000, **more: object) -> JobRecord:
    record = JobRecord(attained=900.0 * 8, lost=100.0 * 8, progress=RunProgress(step, 1000, 0.0))
    if by is not None:
        stop = Decision(by, Mode.ENFORCE, Proposal(1, 1, "r", 0.0, 0.0), "", 5.0, pods_gone_at=9.0)
        record = replace(record, decision=stop)
    return replace(record, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (ended(None), None),  # still running
        (ended(None, finished="Complete"), PastRun(800.0, 1000)),  # what was lost is no part of it
        (ended(None, finished="Failed"), None),
        (ended("scan", step=500), PastRun(1600.0, 1000)),  # half the steps in 800 s
        (ended("User", step=250), PastRun(3200.0, 1000)),
        (ended("scan", step=0), None),
        (ended("scan", progress=None), None),
        (ended(None, finished="Complete", progress=None), PastRun(800.0, None)),
        (JobRecord(finished="Complete"), None),  # it never ran
    ],
)
def test_what_an_ended_run_tells(record: JobRecord, expected: PastRun | None) -> None:
    assert past_run(record, 8) == expected
    assert past_run(record, 0) is None
