"""The best fit that is kept up to date is the plain one, in rooms and in trials."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.policy.pool import placement
from controller.policy.pool.best_fit import NO_RACKS, FreeGpus, fit
from controller.policy.pool.placement import NodeRoom
from controller.policy.types import JobState, JobView


class Sorted(dict[str, int]):
    """The plain form under the other's name: every question sorts all nodes."""

    def __init__(self, free: Any, racks: Any = NO_RACKS) -> None:
        super().__init__(free)
        self.racks = racks or getattr(free, "racks", NO_RACKS)

    def fit(self, replicas: int, gpus_per_replica: int, avoid: Any = ()) -> tuple[str, ...] | None:
        return fit(self, replicas, gpus_per_replica, avoid, self.racks)

    def add(self, node: str, gpus: int) -> bool:
        if node in self:
            self[node] += gpus
        return node in self

    def cap(self, node: str, gpus: int) -> int:
        self[node] = min(self[node], gpus)
        return self[node]


nodes = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 8), max_size=8)
racks_of = st.one_of(
    st.just({}), st.dictionaries(st.sampled_from("abcdefghij"), st.sampled_from(["r1", "r2", "r3"]))
)
changes = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.sampled_from("abcdefghij"), st.integers(-2, 8)),
        st.tuples(st.just("add"), st.sampled_from("abcdefghij"), st.integers(-2, 2)),
        st.tuples(st.just("cap"), st.sampled_from("abcdefghij"), st.integers(0, 8)),
        st.tuples(st.just("remove"), st.sampled_from("abcdefghij"), st.just(0)),
        st.tuples(st.just("fit"), st.integers(1, 12), st.integers(0, 8)),
        st.tuples(st.just("copy"), st.just(0), st.integers(0, 1)),
    ),
    max_size=40,
)


@settings(max_examples=400, deadline=None)
@given(nodes, changes, racks_of)
def test_answers_are_those_of_the_plain_form(
    free: dict[str, int], history: list[tuple[str, Any, int]], racks: dict[str, str]
) -> None:
    kept, plain = FreeGpus(free, racks), dict(free)
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
            kept = FreeGpus(before) if number else FreeGpus(before, racks)
            before["a"] = 100  # of no account to the copy
        elif verb == "fit":
            assert kept.fit(what, number) == fit(plain, what, number, racks=racks)
            assert kept.fit(what, number, "aceg") == fit(plain, what, number, "aceg", racks)
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


@settings(max_examples=300, deadline=None)
@given(nodes, st.integers(1, 6), st.integers(1, 4), racks_of)
def test_a_gang_stays_in_one_rack_where_one_holds_it_whole(
    free: dict[str, int], replicas: int, each: int, racks: dict[str, str]
) -> None:
    plain, got = fit(free, replicas, each), fit(free, replicas, each, racks=racks)
    assert (got is None) == (plain is None), "racks never decide whether a gang fits"
    if got is None:
        return
    assert all(got.count(node) * each <= free[node] for node in got)
    held = {
        rack
        for rack in racks.values()
        if sum(g // each for n, g in free.items() if racks.get(n) == rack) >= replicas
    }
    if replicas > 1 and held:
        assert len({racks.get(node) for node in got} & held) == 1
        assert len({racks.get(node) for node in got}) == 1
    else:
        assert got == plain


def test_of_two_racks_the_one_with_less_room_is_taken() -> None:
    free = {"a": 4, "b": 8, "c": 8, "d": 8, "e": 8, "f": 8}
    racks = {"a": "r1", "b": "r1", "c": "r1", "d": "r2", "e": "r2"}
    assert fit(free, 2, 8) == ("b", "c")
    assert fit(free, 2, 8, racks={**racks, "f": "r1"}) == ("d", "e")
    assert fit(free, 3, 8, racks=racks) == ("b", "c", "d"), "no rack holds it: as though none were named"
    assert fit(free, 1, 4, racks=racks) == ("a",)


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
@given(nodes, steps, steps, st.randoms(use_true_random=False), racks_of)
def test_rooms_and_trials_are_those_of_the_plain_form(
    free: dict[str, int],
    running: list[tuple[int, int, int]],
    waiting: list[tuple[int, int, int]],
    random: Any,
    racks: dict[str, str],
) -> None:
    """Fill a room, then take some gangs out of it and try others in their place, in both forms."""
    said: list[list[Any]] = []
    seed = random.randrange(2**32)
    for form in (FreeGpus, Sorted):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(placement, "FreeGpus", form)
            random.seed(seed)
            room, answers = NodeRoom(free, racks), []
            there = []
            for number, (replicas, each, _) in enumerate(running):
                new = job(number, JobState.QUEUED, (), each, replicas)
                answers.append(room.take(new))
                if answers[-1]:
                    state = random.choice([JobState.ADMITTED, JobState.ADMITTED, JobState.PREEMPTING])
                    there.append(job(number, state, room.placed[new.key].gang, each, replicas))
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
