"""Evals with proxy and differences in a status: short where they repeat, and read back as they were."""

from __future__ import annotations

import math

import pytest
from api_examples import DESIRED, full_record
from hypothesis import given
from hypothesis import strategies as st

from controller.api.codec import StatusError
from controller.api.record import STATUS_MAX, record, size, status
from controller.policy.job.record import JobRecord
from controller.policy.types import EvalPoint, Paired, PromptPair

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
    assert len(stored["decision"]["message"]) >= 75


def test_differences_on_the_same_prompts_are_stored_in_few_bytes() -> None:
    nan = PromptPair(5, 64, math.nan, 0.25)
    evals = (
        EvalPoint(10, 0.5, prompts=64),
        EvalPoint(20, 0.5, prompts=64, prompt_pairs=(PromptPair(10, 64, -0.25, 0.5), nan)),
        EvalPoint(30, 0.5, prompt_pairs=(PromptPair(10, 64, 0.0, 0.5), PromptPair(20, 64, 0.25, 1e-7))),
        EvalPoint(40, 0.5),
        EvalPoint(50, 0.5, prompts=128),
    )
    stored = status(JobRecord(evals=evals), DESIRED, 0.0)["evals"]
    assert [line.partition(" - ")[2] or line.rpartition(" -")[2].strip() for line in stored] == [
        "prompts=64",
        "pairs=10/-0.25/0.5",
        "prompts=- pairs=10/0.0/0.5/64,20/0.25/1e-07/64",
        "",
        "prompts=128",
    ]
    assert record({"evals": stored}).evals == (
        evals[0],
        evals[1]._replace(prompt_pairs=evals[1].prompt_pairs[:1]),
        *evals[2:],
    )


def test_a_whole_life_with_three_pairs_at_every_eval_fits() -> None:
    found = full_record(condition_count=9, retained=1, message="m" * 512)
    pairs = tuple(PromptPair(120000 + i, 1319, -0.012346, 0.12346) for i in range(3))
    evals = tuple(p._replace(prompts=1319, prompt_pairs=pairs) for p in found.evals)
    found = JobRecord(**{f: getattr(found, f) for f in JobRecord.__slots__} | {"evals": evals})
    stored = status(found, DESIRED, 0.0)
    assert size(stored) <= STATUS_MAX
    assert len(stored["decision"]["message"]) >= 75


def test_pairs_without_a_number_of_prompts_are_refused_in_words() -> None:
    with pytest.raises(StatusError, match=r"pairs=1/0\.5/0\.5: expected the number of prompts"):
        record({"evals": ["10 0.5 - pairs=1/0.5/0.5"]})
