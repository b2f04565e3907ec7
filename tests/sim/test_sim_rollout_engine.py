"""The generation engine: against a loop that gives a token at a time, and what must always hold."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.kernel import Kernel
from sim.rollout import laws
from sim.rollout.engine.dispatch import Dispatch, Groups, OneQueue
from sim.rollout.engine.generation import Generation
from sim.rollout.engine.work import GenerationReport, Prompt

LAW = laws.Law(iteration=0.01, sequence=0.001, context=1e-5, prefill=1e-4)


def prompts(lengths: list[list[int]], tokens: int = 50) -> list[Prompt]:
    return [Prompt(i, tokens, tuple(ls), sum(ls) / len(ls)) for i, ls in enumerate(lengths)]


def generate(
    work: list[Prompt],
    dispatch: Dispatch,
    actors: list[tuple[float, float]],
    *,
    slots: int = 4,
    release: bool = True,
    recall: tuple[float, int] | None = None,
    shared_prefill: bool = True,
    prefill_elsewhere: bool = False,
) -> GenerationReport:
    kernel = Kernel()
    generation = Generation(
        kernel, LAW, slots, dispatch, sum(len(p.lengths) for p in work),
        release=[release] * len(actors), shared_prefill=shared_prefill,
    )  # fmt: skip
    if prefill_elsewhere:
        generation.prefill_elsewhere(work, len(actors))
    generation.begin(actors)
    if recall is not None:

        def take(_: object) -> bool:
            generation.recall(generation.actors[recall[1]])
            return True

        kernel.at(recall[0], 0, take, None)
    kernel.run(iter(()), iter(()), lambda _s, _t: None, lambda _t: None)
    assert generation.report is not None
    return generation.report


def token_by_token(work: list[Prompt], slots: int) -> float:
    """Return s of one actor that has all prompts in order, one token of every live response at a time."""
    waiting = deque((p, length) for p in work for length in p.lengths)
    live: list[list[int]] = []  # context, left
    seen: set[int] = set()
    seconds = 0.0
    while waiting or live:
        while waiting and len(live) < slots:
            prompt, length = waiting.popleft()
            if prompt.number not in seen:
                seconds += prompt.tokens * LAW.prefill
                seen.add(prompt.number)
            live.append([prompt.tokens, length])
        seconds += LAW.iteration + LAW.sequence * len(live) + LAW.context * sum(c for c, _ in live)
        live = [[context + 1, left - 1] for context, left in live if left > 1]
    return seconds


some = st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=4), min_size=1, max_size=12)


@settings(max_examples=80, deadline=None)
@given(some, st.integers(1, 6))
def test_stretches_are_a_loop_over_single_tokens(lengths: list[list[int]], slots: int) -> None:
    work = prompts(lengths)
    report = generate(work, Groups(work, ranked=False), [(0.0, 0.0)], slots=slots)
    assert report.seconds == pytest.approx(token_by_token(work, slots))


def dispatches(work: list[Prompt]) -> dict[str, Dispatch]:
    return {
        "queue": OneQueue(work),
        "even": Groups(work, ranked=False),
        "ranked": Groups(work, ranked=True, cut=0.6),
        "global": Groups(work, ranked=False, cut=0.6, local=False),
    }


@settings(max_examples=80, deadline=None)
@given(
    some, st.integers(1, 5), st.sampled_from(["queue", "even", "ranked", "global"]), st.booleans(),
    st.floats(0.0, 3.0), st.booleans(),
)  # fmt: skip
def test_every_token_is_generated_once_whatever_is_done(
    lengths: list[list[int]], actors: int, name: str, release: bool, late: float, elsewhere: bool
) -> None:
    work = prompts(lengths)
    times = [(0.0, 0.0), *[(0.0, late)] * (actors - 1)]
    report = generate(work, dispatches(work)[name], times, release=release, prefill_elsewhere=elsewhere)
    assert report.tokens == sum(map(sum, lengths))
    assert sum(a.responses for a in report.actors) == sum(map(len, lengths))
    for actor in report.actors:
        assert actor.ended <= report.seconds + 1e-9
        assert actor.held >= 0.0
        assert actor.tokens <= 4 * actor.iterations
    if not release:
        assert all(a.ended == pytest.approx(max(report.seconds, a.bound)) for a in report.actors)


@settings(max_examples=60, deadline=None)
@given(some, st.integers(2, 4), st.floats(0.0, 1.5), st.sampled_from(["queue", "even", "ranked"]))
def test_a_recall_loses_no_response(lengths: list[list[int]], actors: int, at: float, name: str) -> None:
    work = prompts(lengths)
    report = generate(
        work, dispatches(work)[name], [(0.0, 0.0)] * actors, release=False, recall=(at, actors - 1)
    )
    assert sum(a.responses for a in report.actors) == sum(map(len, lengths))
    assert report.tokens == sum(map(sum, lengths))


def test_a_moved_response_costs_its_prefix_again() -> None:
    work = prompts([[100], [2]])
    alone = generate(work, Groups(work, ranked=False), [(0.0, 0.0)] * 2)
    moved = generate(work, Groups(work, ranked=False), [(0.0, 0.0)] * 2, release=False, recall=(0.5, 0))
    again = sum(a.prefilled for a in moved.actors) - sum(a.prefilled for a in alone.actors)
    assert again > 50  # the prompt, and what was generated in half a second


def test_copies_share_a_prefill_on_one_actor_unless_they_may_not() -> None:
    work = prompts([[5, 5, 5], [5, 5, 5]])
    shared = generate(work, OneQueue(work), [(0.0, 0.0)])
    apart = generate(work, OneQueue(work), [(0.0, 0.0)], shared_prefill=False)
    assert sum(a.prefilled for a in shared.actors) == 100
    assert sum(a.prefilled for a in apart.actors) == 300


def test_a_prefill_actor_takes_the_prefill_and_the_others_wait_for_it() -> None:
    work = prompts([[5], [5]], tokens=1000)
    report = generate(work, Groups(work, ranked=False), [(0.0, 0.0)] * 2, prefill_elsewhere=True)
    assert sum(a.prefilled for a in report.actors) == 0
    assert report.prefill_actor == pytest.approx(0.2)
    assert report.seconds > 0.2
    assert report.held > sum(a.held for a in report.actors)


def test_early_release_ends_actors_before_the_last_response() -> None:
    work = prompts([[200], [10], [10]])
    report = generate(work, Groups(work, ranked=True), [(0.0, 0.0)] * 3)
    ends = [a.ended for a in report.actors]
    assert ends[0] == report.seconds
    assert all(later < earlier for earlier, later in pairwise(ends[:2]))


def test_a_cut_waits_for_its_share_and_for_free_slots() -> None:
    # Two actors of 4 slots: the short group's last response (40) moves when the long group has a slot free.
    work = prompts([[60], [60], [60], [10], [5], [5], [5], [40]])
    for prompt, predicted in zip(range(8), (60, 60, 60, 60, 5, 5, 5, 5), strict=True):
        work[prompt] = Prompt(prompt, 50, work[prompt].lengths, float(predicted))
    cut = generate(work, Groups(work, ranked=True, cut=0.7), [(0.0, 0.0)] * 2)
    never = generate(work, Groups(work, ranked=True), [(0.0, 0.0)] * 2)
    assert (cut.moved, never.moved) == (1, 0)
    assert cut.actors[1].ended < never.actors[1].ended
    assert cut.actors[1].ended > 10 * LAW.iteration, "a slot of the long group is free after 10 iterations"


def test_laws_are_those_of_the_spec_sheets() -> None:
    small = laws.actor_law(laws.QWEN_3B, laws.L40S, 2)
    large = laws.actor_law(laws.QWEN_7B, laws.L40S, 4)
    assert 1000 * small.iteration == pytest.approx(9.9, abs=0.1)
    assert 1000 * (small.sequence + 500 * small.context) == pytest.approx(0.035, abs=0.001)
    assert 1000 * 160 * small.prefill == pytest.approx(3.4, abs=0.1)
    assert 1000 * large.iteration == pytest.approx(10.6, abs=0.3)
    assert 1000 * 160 * large.prefill == pytest.approx(4.2, abs=0.1)
    assert laws.QWEN_3B.kv_bytes == 36_864
