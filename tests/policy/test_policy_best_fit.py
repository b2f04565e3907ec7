"""The best fit that is kept up to date is the plain one, in rooms and in trials."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.policy import placement
from controller.policy.best_fit import FreeGpus, fit
from controller.policy.placement import NodeRoom
from controller.policy.types import JobState, JobView


class Sorted(dict[str, int]):
    """The plain form under the other's name: every question sorts all nodes."""

    def fit(self, replicas: int, gpus_per_replica: int, avoid: Any = ()) -> tuple[str, ...] | None:
        return fit(self, replicas, gpus_per_replica, avoid)

    def add(self, node: str, gpus: int) -> bool:
        if node in self:
            self[node] += gpus
        return node in self

    def cap(self, node: str, gpus: int) -> int:
        self[node] = min(self[node], gpus)
        return self[node]


nodes = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 8), max_size=8)
changes = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.sampled_from("abcdefghij"), st.integers(-2, 8)),
        st.tuples(st.just("add"), st.sampled_from("abcdefghij"), st.integers(-2, 2)),
        st.tuples(st.just("cap"), st.sampled_from("abcdefghij"), st.integers(0, 8)),
        st.tuples(st.just("remove"), st.sampled_from("abcdefghij"), st.just(0)),
        st.tuples(st.just("fit"), st.integers(1, 12), st.integers(0, 8)),
        st.tuples(st.just("copy"), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=400, deadline=None)
@given(nodes, changes)
def test_answers_are_those_of_the_plain_form(
    free: dict[str, int], history: list[tuple[str, Any, int]]
) -> None:
    kept, plain = FreeGpus(free), dict(free)
    for verb, what, number in history:
        if verb == "set":
            kept[what] = plain[what] = number
        elif verb == "add":
            assert kept.add(what, number) == (what in plain)
            if what in plain:
                plain[what] += number
        elif verb == "cap" and what in plain:
            plain[what] = min(plain[what], number)
            assert kept.cap(what, number) == plain[what]
        elif verb == "remove" and what in plain:
            del kept[what], plain[what]
        elif verb == "copy":
            before = kept
            kept = FreeGpus(before)
            before["a"] = 100  # of no account to the copy
        elif verb == "fit":
            assert kept.fit(what, number) == fit(plain, what, number)
            assert kept.fit(what, number, "aceg") == fit(plain, what, number, "aceg")
        assert kept == plain
        assert sorted(kept) == sorted(plain)


@settings(max_examples=300, deadline=None)
@given(nodes, st.integers(1, 6), st.integers(0, 4), st.sets(st.sampled_from("abcdefghij")))
def test_nodes_to_avoid_are_the_last_to_be_taken(
    free: dict[str, int], replicas: int, each: int, avoid: set[str]
) -> None:
    got, without = fit(free, replicas, each, avoid), {n: g for n, g in free.items() if n not in avoid}
    if (clean := fit(without, replicas, each)) is not None:
        assert got == clean
    else:
        assert got == fit(free, replicas, each), "it waits for nobody's sake"


def test_a_node_that_is_not_there_is_not_made_up() -> None:
    free = FreeGpus({"a": 1})
    with pytest.raises(KeyError):
        free["b"] -= 1
    assert "b" not in free
    assert free.fit(1, 2) is None
    assert copy.deepcopy(free).fit(1, 1) == ("a",)


def job(number: int, state: JobState, where: tuple[str, ...], each: int, replicas: int) -> JobView:
    return JobView(f"ns/{number}", 0.0, number, replicas, each, state=state, nodes=where)


steps = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4), st.integers(0, 3)), max_size=25)


@settings(max_examples=300, deadline=None)
@given(nodes, steps, steps, st.randoms(use_true_random=False))
def test_rooms_and_trials_are_those_of_the_plain_form(
    free: dict[str, int],
    running: list[tuple[int, int, int]],
    waiting: list[tuple[int, int, int]],
    random: Any,
) -> None:
    """Fill a room, then take some gangs out of it and try others in their place, in both forms."""
    said: list[list[Any]] = []
    seed = random.randrange(2**32)
    for form in (FreeGpus, Sorted):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(placement, "FreeGpus", form)
            random.seed(seed)
            room, answers = NodeRoom(free), []
            there = []
            for number, (replicas, each, _) in enumerate(running):
                new = job(number, JobState.QUEUED, (), each, replicas)
                answers.append(room.take(new))
                if answers[-1]:
                    state = random.choice([JobState.ADMITTED, JobState.ADMITTED, JobState.PREEMPTING])
                    there.append(job(number, state, room.placed[new.key], each, replicas))
            for _ in range(random.randrange(3)):
                if there:
                    room.give(there.pop(random.randrange(len(there))))
            trial = room.trial()
            for gang in there:
                trial.give(gang)
            order = [job(100 + n, JobState.QUEUED, (), e, r) for n, (r, e, _) in enumerate(waiting)]
            order += [gang for gang in there if gang.state is JobState.ADMITTED]
            random.shuffle(order)
            for gang in order:
                answers.append((trial.take if gang.state is JobState.QUEUED else trial.keep)(gang))
            answers.append([gang.key for gang in trial.commit()])
            said.append([answers, dict(room.free), room.placed])
    assert said[0] == said[1]
