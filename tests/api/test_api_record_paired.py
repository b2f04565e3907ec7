"""Evals with proxy and differences in a status: short where they repeat, and read back as they were."""

from __future__ import annotations

import math

from api_examples import DESIRED, full_record
from hypothesis import given
from hypothesis import strategies as st

from controller.api.record import STATUS_MAX, record, size, status
from controller.policy.job.record import JobRecord
from controller.policy.types import EvalPoint, Paired

PAIRS = st.none() | st.builds(
    Paired,
    st.sampled_from([0, 400]),
    st.sampled_from([64, 1024]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(0.0, allow_infinity=False),
)
PROXIES = st.none() | st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(st.tuples(PROXIES, PAIRS), max_size=32))
def test_what_is_stored_is_read_back(seen: list[tuple[float | None, Paired | None]]) -> None:
    evals = tuple(EvalPoint(i, 0.5, proxy=proxy, paired=pair) for i, (proxy, pair) in enumerate(seen))
    assert record(status(JobRecord(evals=evals), DESIRED, 0.0)).evals == evals


def test_reference_and_prompts_stand_only_where_they_change() -> None:
    pairs = [
        Paired(400, 64, -0.5, 0.25),
        Paired(400, 64, -0.25, 0.25),
        None,
        Paired(500, 64, math.nan, 0.25),  # not stored, so it changes nothing
        Paired(400, 64, 0.0, 0.25),
        Paired(500, 64, 1.5, 0.25),
    ]
    evals = tuple(EvalPoint(i, 0.5, paired=pair) for i, pair in enumerate(pairs))
    stored = status(JobRecord(evals=evals), DESIRED, 0.0)["evals"]
    assert [line.partition(" paired=")[2] for line in stored] == [
        "-0.5/0.25/400/64",
        "-0.25/0.25",
        "",
        "",
        "0.0/0.25",
        "1.5/0.25/500/64",
    ]


def test_a_whole_life_with_differences_at_every_eval_fits() -> None:
    found = full_record(condition_count=9, retained=1, message="m" * 512)
    evals = tuple(
        p._replace(proxy=-1.234567, paired=Paired(120000, 1024, -0.01234567, 0.1234567)) for p in found.evals
    )
    found = JobRecord(**{f: getattr(found, f) for f in JobRecord.__slots__} | {"evals": evals})
    stored = status(found, DESIRED, 0.0)
    assert size(stored) <= STATUS_MAX
    assert len(stored["decision"]["message"]) >= 80
