"""Every interleaving of a group's protocol, searched; and mutations that the search must find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from controller.policy.sharing import coordinator as co
from controller.policy.sharing import member as me
from controller.policy.sharing.messages import Token
from tests.policy.sharing_search import Budget, World, WrongError, begin, search

CRASH, LOST_AND_DOUBLED = Budget(crashes=1), Budget(losses=1, doubles=1)


@pytest.mark.parametrize(
    ("world", "least"),
    [
        # Both devices take their time; a third turn comes after two others.
        (begin((2, 1), CRASH), 10_000),
        (begin((2, 1), LOST_AND_DOUBLED), 10_000),
        # All of it at once: a crash, a lost and a doubled message, anywhere.
        (begin((1, 1), Budget(crashes=1, losses=1, doubles=1), slow=(1,)), 100_000),
    ],
)
def test_no_interleaving_breaks_the_protocol(world: World, least: int) -> None:
    assert search(world) > least


def any_turn_of_this_start(present: Token | None, given: Token) -> bool:
    return present is not None and present[:3] == given[:3]


def v_is_dropped_at_once(state: me.Member, version: int) -> tuple[tuple[str, int], ...]:
    others = [one for one in state.states if one[0] != state.resident]
    return tuple(sorted([*others, (state.resident, version)]))


def whoever_is_there(state: me.Member, sender: str, admission: int, start: int) -> bool:
    return start >= state.newest[0]


MUTATIONS: dict[str, dict[tuple[Any, str], Callable[..., Any]]] = {
    "token equality, coordinator": {(co, "same"): any_turn_of_this_start},
    "token equality, member": {(me, "same"): any_turn_of_this_start},
    "wait for the device": {(me, "waits_for_device"): lambda _: False},
    "v kept until v+1 is recorded": {(me, "kept_at_write"): v_is_dropped_at_once},
    "pod UIDs": {(me, "obeys"): whoever_is_there, (co, "known"): lambda *_: True},
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_each_mutation_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for (module, function), mutation in MUTATIONS[name].items():
        monkeypatch.setattr(module, function, mutation)
    with pytest.raises(WrongError):
        search(begin((2, 1), CRASH), 200_000, tidies=False)
