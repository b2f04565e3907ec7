"""A turn of a group, event by event, and what is refused."""

from __future__ import annotations

from controller.policy.sharing import coordinator as co
from controller.policy.sharing import member as me
from controller.policy.sharing.messages import (
    Answer,
    Died,
    Forget,
    Gone,
    Granted,
    Kill,
    Load,
    Loaded,
    Missing,
    Ran,
    Refused,
    Released,
    Run,
    Token,
    TurnOver,
    Write,
    Written,
)

PODS = ("p0", "p1")
T1, T2 = Token(7, 3, "x", 1), Token(7, 3, "x", 2)
HEAD = co.restarted(7, 3, "x", PODS, {"a": 4, "b": 0})


def both(message: object) -> tuple[co.Send, ...]:
    return tuple(co.Send(uid, message) for uid in PODS)  # type: ignore[arg-type]


def held(resident: str = "a", version: int = 4) -> co.Coordinator:
    state, _ = co.ask(HEAD, resident)
    for uid in PODS:
        state, outputs = co.receive(state, uid, Loaded(T1))
    assert outputs == (co.Reply(resident, Granted(T1, version)),)
    return state


def answered(state: co.Coordinator) -> co.Coordinator:
    state, outputs = co.call(state, "a", T1, 1, "optim_step")
    assert outputs == both(Run(T1, 1, "optim_step"))
    for uid, answer in zip(PODS, ("norm 1.5", "other"), strict=True):
        state, outputs = co.receive(state, uid, Ran(T1, 1, answer))
    assert outputs == (co.Reply("a", Answer(T1, 1, "norm 1.5")),), "the answer is member 0's"
    return state


def test_a_whole_turn() -> None:
    state, outputs = co.ask(HEAD, "a")
    assert outputs == both(Load(T1, "a", 4, state.versions))
    state = answered(held())
    state, _ = co.ask(state, "b")
    state, outputs = co.release(state, "a", T1, again=True)
    assert outputs == both(Write(T1, 5))
    state, outputs = co.receive(state, "p1", Written(T1, 5))
    assert outputs == ()
    state, outputs = co.receive(state, "p0", Written(T1, 5))
    assert outputs == (co.Record("a", 5, T1),)
    assert state.version("a") == 4, "nothing counts before the record"
    state, outputs = co.recorded(state, "a", 5, T1)
    assert outputs == (
        co.Reply("a", Released(T1, 5)), *both(Load(T2, "b", 0, (("a", 5), ("b", 0)))),
    )  # fmt: skip
    assert (state.version("a"), state.waiting) == (5, ("a",))


def test_repeated_requests_get_the_same_answer() -> None:
    state = held()
    assert co.ask(state, "a") == (state, (co.Reply("a", Granted(T1, 4)),))
    state = answered(state)
    assert co.call(state, "a", T1, 1, "optim_step")[1] == (co.Reply("a", Answer(T1, 1, "norm 1.5")),)
    running, _ = co.call(state, "a", T1, 2, "forward")
    assert co.call(running, "a", T1, 2, "forward") == (running, ())
    writing, _ = co.release(state, "a", T1)
    assert co.release(writing, "a", T1) == (writing, ())
    waiting, _ = co.ask(state, "b")
    assert co.ask(waiting, "b") == (waiting, ())
    assert co.join(state, "a") == (state, ())


def test_what_is_refused() -> None:
    state = held()
    assert co.ask(state, "z")[1] == (co.Reply("z", Refused(403, "z is no resident")),)
    assert co.release(state, "z", T1)[1] == (co.Reply("z", Refused(403, "z is no resident")),)
    (output,) = co.call(state, "a", T1, 3, "forward")[1]
    assert output == co.Reply("a", Refused(422, "call 3 in phase Held, expected 1 in Held"))
    calling, _ = co.call(state, "a", T1, 1, "forward")
    assert co.release(calling, "a", T1)[1] == (co.Reply("a", Refused(422, "release in phase Calling")),)
    for wrong in (T2, T1._replace(random="y"), T1._replace(start=2), T1._replace(admission=6)):
        assert co.call(state, "a", wrong, 1, "forward")[1] == (co.Reply("a", TurnOver(wrong, 4)),)
        assert co.release(state, "a", wrong)[1] == (co.Reply("a", TurnOver(wrong, 4)),)
        assert co.receive(state, "p0", Loaded(wrong)) == (state, ())
    assert co.call(state, "b", T1, 1, "forward")[1] == (co.Reply("b", TurnOver(T1, 0)),), "another's token"
    assert co.receive(state, "p1-made-again", Died(T1)) == (state, ())


def test_a_silent_holder_loses_the_turn_but_not_while_it_is_recorded() -> None:
    state, _ = co.ask(answered(held()), "b")
    ended, outputs = co.expire(state, T1)
    assert outputs == (
        *both(Kill(T1)), co.Reply("a", TurnOver(T1, 4)), *both(Load(T2, "b", 0, (("a", 4), ("b", 0)))),
    )  # fmt: skip
    assert ended.version("a") == 4
    assert co.receive(state, "p1", Died(T1)) == (ended, outputs)
    recording, _ = co.release(state, "a", T1)
    for uid in PODS:
        recording, _ = co.receive(recording, uid, Written(T1, 5))
    assert co.expire(recording, T1) == (recording, ())
    assert co.expire(state, T2) == (state, ())


def test_a_lost_state_ends_the_residency_and_forgetting_is_told_until_it_is_done() -> None:
    state, _ = co.ask(HEAD, "a")
    state, outputs = co.receive(state, "p1", Missing(T1))
    assert outputs[0] == co.Record("a", None, None)
    assert co.Reply("a", Refused(403, "a: its state is lost")) in outputs
    assert set(both(Forget(7, 3, "a"))) <= set(outputs)
    assert state.version("a") is None
    state, outputs = co.receive(state, "p0", Gone("a"))
    assert outputs == ()
    assert co.remind(state)[1] == (co.Send("p1", Forget(7, 3, "a")),)
    state, outputs = co.receive(state, "p1", Gone("a"))
    assert outputs == (co.ResidencyOver("a"),)
    assert co.leave(state, "a") == (state, ())


def test_a_resident_that_leaves_in_its_turn_and_one_that_comes() -> None:
    state, _ = co.ask(held(), "b")
    state, outputs = co.leave(state, "a")
    assert set(both(Kill(T1))) <= set(outputs)
    assert set(both(Load(T2, "b", 0, (("b", 0),)))) <= set(outputs)
    state, outputs = co.join(state, "c")
    assert outputs == (co.Record("c", 0, None),)
    assert state.version("c") == 0
    assert co.recorded(state, "c", 0, None) == (state, ())


M = me.Member("p1", 7, PODS)


def loaded(resident: str = "a", version: int = 0, token: Token = T1) -> me.Member:
    state, effects = me.receive(M, "p0", Load(token, resident, version))
    assert effects == (me.Begin(resident, version, token),)
    state, effects = me.began(state, token)
    assert effects == (me.Reply(Loaded(token)),)
    return state


def test_a_member_runs_each_number_once() -> None:
    state, effects = me.receive(loaded(), "p0", Run(T1, 1, "forward"))
    assert effects == (me.Execute(T1, 1, "forward"),)
    assert me.receive(state, "p0", Run(T1, 1, "forward")) == (state, ())
    state, effects = me.ran(state, T1, 1, "ok")
    assert effects == (me.Reply(Ran(T1, 1, "ok")),)
    assert me.receive(state, "p0", Run(T1, 1, "forward")) == (state, effects)
    assert me.receive(state, "p0", Run(T1, 3, "forward")) == (state, ())


def test_a_member_writes_beside_and_drops_when_the_next_is_loaded() -> None:
    state, effects = me.receive(loaded(), "p0", Write(T1, 1))
    assert effects == (me.Save("a", 1, T1),)
    state, effects = me.saved(state, T1, 1)
    assert effects == (me.Reply(Written(T1, 1)),)
    assert me.receive(state, "p0", Write(T1, 1)) == (state, effects)
    again, effects = me.receive(state, "p0", Load(T2, "a", 1))
    assert effects == (me.Reply(Loaded(T2)),), "it stays loaded"
    state, _ = me.saved(again._replace(ready=True), T2, 2)
    assert state.states == (("a", 1), ("a", 2)), "1 is there until 2 is recorded"
    _, effects = me.receive(state, "p0", Load(T2._replace(sequence=3), "a", 2))
    assert me.Drop("a", 1) in effects


def test_another_is_loaded_only_when_the_device_says_that_it_is_free() -> None:
    state, _ = me.saved(loaded(), T1, 1)
    state, effects = me.receive(state, "p0", Load(T2, "b", 0))
    assert effects == (me.OffLoad("a"),)
    assert me.began(state, T1) == (state, ())
    state, effects = me.device_free(state)
    assert effects == (me.Begin("b", 0, T2),)
    dirty, _ = me.receive(loaded(), "p0", Run(T1, 1, "forward"))
    _, effects = me.receive(dirty, "p0", Load(T2, "b", 0))
    assert effects == (me.End("a"),), "what is no version is not kept"


def test_whom_a_member_obeys() -> None:
    state = loaded()
    for sender, message in (
        ("p1", Load(T2, "b", 0)),
        ("p0-made-again", Load(T2, "b", 0)),
        ("p0", Load(T2._replace(admission=6), "b", 0)),
        ("p0", Load(T2._replace(start=2), "b", 0)),
        ("p0", Forget(6, 3, "a")),
        ("p0", Kill(T2)),
    ):
        assert me.receive(state, sender, message) == (state, ())
    newer, effects = me.receive(state, "p0", Load(Token(7, 4, "y", 1), "b", 0))
    assert effects == (me.End("a"),)
    assert me.receive(newer, "p0", Load(T2, "a", 0)) == (newer, ()), "only the newest start"


def test_a_member_that_was_restarted_begins_no_turn_twice() -> None:
    state = me.member_restarted(loaded())
    assert state.leaving
    assert me.receive(state, "p0", Load(T1, "a", 0)) == (state, ())
    state, effects = me.receive(state, "p0", Load(T2, "a", 0))
    assert effects == ()
    assert me.device_free(state)[1] == (me.Begin("a", 0, T2),)
    lost, effects = me.receive(state, "p0", Load(T2._replace(sequence=9), "a", 8))
    assert effects == (me.Reply(Missing(T2._replace(sequence=9))),)
    assert lost.token is None


def test_a_dead_worker_and_a_resident_that_leaves() -> None:
    state, effects = me.worker_died(loaded())
    assert effects == (me.Reply(Died(T1)),)
    assert me.worker_died(state)[1] == ()
    state, effects = me.receive(me.saved(loaded(), T1, 1)[0], "p0", Forget(7, 3, "a"))
    assert effects == (me.Drop("a", 1), me.End("a"), me.Reply(Gone("a")))
    assert (state.token, state.states) == (None, ())
    state, effects = me.receive(loaded(), "p0", Kill(T1))
    assert effects == (me.End("a"),)


def test_a_newer_turn_leaves_one_state_of_every_other_resident() -> None:
    state = M._replace(states=(("a", 4), ("a", 5), ("b", 1), ("b", 2), ("c", 7)))
    state, effects = me.receive(state, "p0", Load(T2, "b", 1, (("a", 5), ("b", 1))))
    assert {one for one in effects if isinstance(one, me.Drop)} == {me.Drop("a", 4), me.Drop("b", 2)}
    assert state.states == (("a", 5), ("b", 1), ("c", 7)), "of c nothing was said"
