"""The step API over HTTPS: who may ask, what it answers, what it refuses and with which reason."""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
from rollouts_world import JOB, StepServer, TokensNamePods, step_server, until
from starlette.requests import Request

from controller.policy import decision_log
from controller.steps.app import Refused, StepApi
from controller.steps.directory import ActorPod, Directory
from controller.steps.sessions import REGISTERED_SECONDS
from controller.web.tickets import check

PRINT = "ab" * 32
STEP = {"attempt": 3, "step": 1}
SHAPE = {"copies": 4, "cap": 2048, "spread": 0.2, "bins": [[900.0, 10], [300.0, 100]]}
ANNOUNCE = {**STEP, "beginsIn": 9.0, **SHAPE}
END = {
    **STEP,
    "seconds": 30.0,
    "tokens": 1000,
    "rank": 0.8,
    **SHAPE,
    "phases": {"train": 3.5},
    "counts": {"moved": 2},
    "failures": ["actor 1 lost: gone"],
}
REPORT = {
    "iterations": 100,
    "tokens": 300,
    "decodeSeconds": 5.0,
    "grown": 10,
    "prompts": 3,
    "prefillSeconds": 0.1,
}
DONE = {**STEP, "actor": 0, "release": True, "report": REPORT}


@pytest.fixture
def ask(server: StepServer) -> Any:
    server.do(lambda: server.directory.put_job(JOB))
    server.do(
        lambda: server.directory.put_actors(JOB.uid, [ActorPod(f"actor-{n}", n, "127.0.0.1") for n in (0, 1)])
    )

    def post(path: str, body: Any = None, pod: str = "trainer-1") -> tuple[int, dict[str, Any]]:
        return server.ask("GET" if "?" in path else "POST", path, body, pod)

    return post


def register(ask: Any, number: int, fingerprint: str = PRINT, **more: Any) -> tuple[int, dict[str, Any]]:
    body = {
        "address": f"127.0.0.1:{9000 + number}",
        "fingerprint": fingerprint,
        "slots": 8,
        "version": None,
        **more,
    }
    return ask("/v1/actors", body, f"actor-{number}")


def plan_of(server: StepServer, step: int) -> Any:
    def found() -> Any:
        demand = server.directory.demand(JOB.uid)
        return demand.plan if demand.step == step else None

    return until(lambda: server.do(found), f"step {step} is planned")


def test_a_step_from_its_announcement_to_its_end(server: StepServer, ask: Any) -> None:
    status, whose = register(ask, 0)
    assert (status, whose["job"], whose["attempt"], whose["actor"]) == (200, "job-1", 3, 0)
    assert ask("/v1/announce", ANNOUNCE) == (200, {})
    plan = plan_of(server, 1)
    status, begun = ask("/v1/begin", STEP)
    assert status == 200
    assert begun["plan"]["actors"] == plan.actors
    assert begun["plan"]["reason"] == "Planned"
    (actor,) = begun["actors"]
    assert (actor["number"], actor["address"], actor["fingerprint"], actor["slots"]) == (
        0,
        "127.0.0.1:9000",
        PRINT,
        8,
    )
    check(actor["ticket"], [whose["key"]], job="job-1", attempt=3, actor=0, now=0.0)
    assert ask("/v1/begin", STEP)[1]["plan"] == begun["plan"], "asked again: an answer was lost"
    answers: list[Any] = []
    path = f"/v1/watch?attempt=3&step=1&after={begun['revision']}"
    watching = threading.Thread(target=lambda: answers.append(ask(path)))
    watching.start()
    register(ask, 1, "cd" * 32)
    watching.join(30)
    assert [a["number"] for a in answers[0][1]["actors"]] == [0, 1]
    leaving = [ActorPod("actor-0", 0, leaving=True), ActorPod("actor-1", 1)]
    server.do(lambda: server.directory.put_actors(JOB.uid, leaving))
    _, news = ask(f"/v1/watch?attempt=3&step=1&after={answers[0][1]['revision']}")
    assert news["leave"] == [0]
    assert [a["number"] for a in news["actors"]] == [1]
    assert ask("/v1/done", DONE) == (200, {})
    assert server.do(lambda: server.directory.demand(JOB.uid).released) == {0}
    assert ask("/v1/end", END) == (200, {})
    (ended,) = server.do(lambda: server.directory.steps(JOB.uid))
    assert (ended["tokens"], ended["reports"], ended["phases"], ended["counts"]) == (
        1000,
        1,
        {"train": 3.5},
        {"moved": 2},
    )
    assert ended["failures"] == ("actor 1 lost: gone",)
    took = REPORT["decodeSeconds"] / REPORT["iterations"]
    assert ended["law"]["iteration"] == pytest.approx(took), "the first report counts for more than a guess"
    assert not server.do(lambda: server.directory.demand(JOB.uid).generating)


def test_a_step_that_nobody_announced_is_static(ask: Any) -> None:
    status, begun = ask("/v1/begin", {"attempt": 3, "step": 7})
    assert status == 200
    assert begun["plan"]["actors"] == JOB.settings.static
    assert begun["plan"]["reason"] == "NoForecast"
    assert ask("/v1/announce", {**ANNOUNCE, "step": 8, "bins": []}) == (200, {})


def test_who_may_ask(server: StepServer, ask: Any) -> None:
    def reason(*args: Any) -> tuple[int, str]:
        status, found = ask(*args)
        return status, found["reason"]

    assert reason("/v1/begin", STEP, "somebody") == (403, "NotTheSpeaker")
    assert reason("/v1/begin", STEP, "actor-0") == (403, "NotTheSpeaker")
    register_body = {"address": "127.0.0.1:9", "fingerprint": PRINT}
    assert reason("/v1/actors", register_body, "trainer-1") == (403, "NotAnActor")
    assert reason("/v1/actors", {**register_body, "address": "10.0.0.9:9"}, "actor-0") == (
        400,
        "WrongAddress",
    )
    context = ssl.create_default_context(cadata=server.ca)
    connection = http.client.HTTPSConnection("127.0.0.1", server.port, context=context)
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic x"}):
        connection.request("POST", "/v1/begin", json.dumps(STEP), headers)
        answer = connection.getresponse()
        assert (answer.status, json.loads(answer.read())["reason"]) == (401, "Unauthenticated")
    server.leads = False
    assert reason("/v1/begin", STEP) == (421, "NotLeading")
    server.leads = True
    # A preemption: the pod of the attempt before speaks no more, nor does one that claims another attempt.

    assert reason("/v1/begin", {**STEP, "attempt": 2}) == (409, "OldAttempt")
    assert reason("/v1/begin", {**STEP, "attempt": 4}) == (409, "OldAttempt")
    server.do(lambda: server.directory.put_job(replace(JOB, attempt=4, speaker="trainer-2")))
    assert reason("/v1/begin", STEP) == (403, "NotTheSpeaker")
    assert reason("/v1/actors", register_body, "actor-0") == (403, "NotAnActor")
    assert ask("/v1/begin", {**STEP, "attempt": 4}, "trainer-2")[0] == 200


def test_older_steps_are_refused(ask: Any) -> None:
    assert ask("/v1/begin", {"attempt": 3, "step": 5})[0] == 200
    for path, body in (
        ("/v1/begin", STEP), ("/v1/announce", ANNOUNCE), ("/v1/end", END), ("/v1/done", DONE),
        ("/v1/watch?attempt=3&step=4&after=0", None),
    ):  # fmt: skip
        status, found = ask(path, body)
        assert (status, found["reason"]) == (409, "OldStep"), path
    assert ask("/v1/done", {**DONE, "step": 5, "actor": 9})[1]["reason"] == "NoSuchActor"
    assert ask("/v1/end", {**END, "step": 5})[0] == 200
    assert ask("/v1/end", {**END, "step": 5})[1]["reason"] == "OldStep", "it has ended"


def test_what_a_step_put_aside_is_known_before_it_ends(server: StepServer, ask: Any) -> None:
    """A step that lost its only actor never ends. Its pod may be gone: that is why it was lost."""
    lost = {**DONE, "release": False, "report": {}, "actor": 9, "failure": "actor 9 lost: no token for 120 s"}
    assert ask("/v1/begin", STEP)[0] == 200
    assert server.do(lambda: server.directory.demand(JOB.uid).aside) == ()
    assert ask("/v1/done", lost) == (200, {})
    found = server.do(lambda: server.directory.demand(JOB.uid))
    assert (found.step, found.aside, found.released) == (1, (lost["failure"],), frozenset())
    faulty = {**DONE, "report": {}, "failure": "actor 0 faulty: tokens of nobody"}
    assert ask("/v1/done", faulty) == (200, {})
    found = server.do(lambda: server.directory.demand(JOB.uid))
    assert (found.aside, found.released) == ((lost["failure"], faulty["failure"]), {0})
    assert ask("/v1/end", END)[0] == 200
    assert server.do(lambda: server.directory.demand(JOB.uid).aside) == (), "its end tells all of them"
    assert ask("/v1/begin", {"attempt": 3, "step": 2})[0] == 200
    assert server.do(lambda: server.directory.demand(JOB.uid).aside) == ()


def test_between_two_steps_the_one_that_was_announced_counts(server: StepServer, ask: Any) -> None:
    """Not before the step under way has ended: its actors are at work."""
    assert ask("/v1/begin", STEP)[0] == 200
    assert ask("/v1/done", DONE) == (200, {})
    assert ask("/v1/announce", {**ANNOUNCE, "step": 2}) == (200, {})
    demand = server.do(lambda: server.directory.demand(JOB.uid))
    assert (demand.step, demand.generating, demand.released) == (1, True, {0})
    assert ask("/v1/end", END)[0] == 200
    assert plan_of(server, 2).reason == "Planned"
    demand = server.do(lambda: server.directory.demand(JOB.uid))
    assert (demand.generating, demand.due, demand.released) == (False, False, {0}), (
        "it is let go all the same"
    )


def test_who_was_let_go_goes_though_the_next_step_is_announced(server: StepServer, ask: Any) -> None:
    """The last actor's end, the step's end and the next announcement come at the same moment."""
    assert ask("/v1/begin", STEP)[0] == 200
    assert ask("/v1/end", END)[0] == 200
    assert ask("/v1/announce", {**ANNOUNCE, "step": 2, "beginsIn": 600.0}) == (200, {})
    plan_of(server, 2)
    assert ask("/v1/done", DONE) == (200, {})
    demand = server.do(lambda: server.directory.demand(JOB.uid))
    assert (demand.step, demand.due, demand.released) == (2, False, {0})
    server.do(lambda: server.directory.put_job(replace(JOB, start=600.0)))
    demand = server.do(lambda: server.directory.demand(JOB.uid))
    assert (demand.due, demand.released) == (True, frozenset()), "it is wanted again"


def test_actors_of_a_step_that_comes_start_as_late_as_they_may(server: StepServer, ask: Any) -> None:
    """What they would hold before the begin helps nobody; where their GPUs are lent, a recall earlier."""

    def due(step: int) -> Any:
        demand = server.directory.demand(JOB.uid)
        return demand.due if demand.step == step and demand.plan is not None else None

    soon = replace(JOB, start=0.1, recall=600.0)
    server.do(lambda: server.directory.put_job(soon))
    assert ask("/v1/announce", {**ANNOUNCE, "beginsIn": 600.0}) == (200, {})
    plan_of(server, 1)
    assert server.do(lambda: due(1)) is False
    lent = replace(soon, at_hand=0)
    server.do(lambda: server.directory.put_job(lent))
    assert server.do(lambda: due(1)) is True, "its GPUs are lent by now"
    server.do(lambda: server.directory.put_job(soon))
    assert server.do(lambda: due(1)) is True, "who has begun to start is not called off"
    assert ask("/v1/begin", STEP)[0] == 200
    assert ask("/v1/end", END)[0] == 200
    assert ask("/v1/announce", {**ANNOUNCE, "step": 2, "beginsIn": 1.5}) == (200, {})
    plan_of(server, 2)
    until(lambda: server.do(lambda: due(2)), "its time comes, and nobody has to ask")


def test_a_step_is_planned_anew_where_there_is_room_for_more_by_then(server: StepServer, ask: Any) -> None:
    """Its like of another job held the GPUs when it was announced."""
    narrow = replace(JOB, start=1.0, most=1)
    server.do(lambda: server.directory.put_job(narrow))
    assert ask("/v1/announce", {**ANNOUNCE, "beginsIn": 600.0}) == (200, {})
    assert plan_of(server, 1).actors == 1
    wide = replace(narrow, most=4)
    server.do(lambda: server.directory.put_job(wide))
    assert server.do(lambda: server.directory.demand(JOB.uid).due) is False
    assert plan_of(server, 1).actors == 1, "there is time: room may come and go"
    server.do(lambda: server.directory.put_job(replace(wide, recall=600.0, at_hand=0)))
    until(lambda: server.do(lambda: server.directory.demand(JOB.uid).due), "its actors are asked for")
    assert plan_of(server, 1).actors > 1


def test_a_pass_looks_again_before_actors_are_to_start(server: StepServer, ask: Any) -> None:
    """What a pool has free is known from passes, and a job that trains may have none for long."""
    asked: list[tuple[float, bool]] = []

    def look(uid: str) -> None:
        asked.append((time.monotonic(), server.directory.demand(uid).due))

    def let_in() -> None:
        server.directory.put_job(replace(JOB, start=0.1))
        server.directory.wanted = look

    server.do(let_in)
    assert ask("/v1/announce", {**ANNOUNCE, "beginsIn": 2.5}) == (200, {})
    until(lambda: server.do(lambda: bool(asked) and asked[-1][1]), "its time comes")
    planned, looked, due = server.do(lambda: asked[-3:])
    assert (planned[1], looked[1], due[1]) == (False, False, True)
    assert 0.5 < due[0] - looked[0] < 1.5
    assert looked[0] - planned[0] > 0.5


def test_how_long_actors_take_counts_from_when_they_were_asked_for(server: StepServer, ask: Any) -> None:
    """A pass or two come before an actor's entry, from which on its start counts."""
    session = server.sessions.of(JOB)
    pods = [ActorPod(f"actor-{n}", n, "127.0.0.1") for n in range(3)]
    server.do(lambda: server.directory.put_actors(JOB.uid, pods))
    register(ask, 0)
    assert server.do(lambda: session._way) is None, "nobody had asked for it"
    server.do(lambda: server.directory.put_job(replace(JOB, start=0.1)))
    assert ask("/v1/announce", {**ANNOUNCE, "beginsIn": 0.2}) == (200, {})
    until(lambda: server.do(lambda: session._asked_at), "its actors are asked for")
    register(ask, 1)
    first = server.do(lambda: session._way)
    assert 0.0 < first < 60.0
    register(ask, 1)
    assert server.do(lambda: session._way) == first, "it registers again and again"
    register(ask, 2)
    assert server.do(lambda: session._way) > first, "a step's way is its last actor's"
    assert ask("/v1/begin", STEP)[0] == 200
    assert ask("/v1/end", END)[0] == 200
    assert server.do(lambda: len(session._ways)) == 1


def test_a_step_whose_actors_came_late_is_held_against_what_they_could_do(
    server: StepServer, ask: Any
) -> None:
    session = server.sessions.of(JOB)
    pods = [ActorPod(f"actor-{n}", n, "127.0.0.1") for n in range(JOB.settings.max)]
    server.do(lambda: server.directory.put_actors(JOB.uid, pods))
    register(ask, 0)
    assert ask("/v1/announce", ANNOUNCE) == (200, {})
    plan = plan_of(server, 1)
    assert ask("/v1/begin", STEP)[0] == 200
    server.do(lambda: setattr(session, "_begun_at", session._begun_at - 0.5 * plan.seconds))
    for number in range(1, plan.actors):
        register(ask, number)
    assert ask("/v1/end", END)[0] == 200
    (ended,) = server.do(lambda: server.directory.steps(JOB.uid))
    assert plan.actors > 1
    assert plan.seconds < ended["expected"] < 2.0 * plan.seconds
    assert ended["planned"] == plan.seconds


def test_actors_that_are_gone_are_forgotten(server: StepServer, ask: Any) -> None:
    """Each start has a number of its own: a run of a week has thousands."""
    session = server.sessions.of(JOB)
    register(ask, 0)
    server.do(lambda: server.directory.put_actors(JOB.uid, []))
    assert server.do(lambda: (session._named(JOB), list(session._ready))) == ({}, [0]), "seen late perhaps"
    later = time.monotonic() + 2.0 * REGISTERED_SECONDS
    server.do(lambda: setattr(session, "_now", lambda: later))
    assert server.do(lambda: (session._named(JOB), list(session._ready))) == ({}, [])


def test_an_answer_says_how_many_actors_are_still_starting(server: StepServer, ask: Any) -> None:
    server.do(lambda: server.directory.put_job(replace(JOB, coming=2)))
    assert ask("/v1/begin", STEP)[1]["coming"] == 2


def test_in_shadow_another_plan_is_made_and_not_carried_out(server: StepServer, ask: Any) -> None:
    kept = replace(JOB.settings, min=2, max=2, static=2, when_idle="Keep")
    server.do(lambda: server.directory.put_job(replace(JOB, settings=kept, shadow=JOB.settings)))
    assert ask("/v1/announce", ANNOUNCE) == (200, {})
    plan = plan_of(server, 1)
    assert (plan.actors, set(plan.release)) == (2, {False})
    session = server.sessions.of(JOB)
    until(lambda: server.do(lambda: session._planned[1].other), "the other plan")
    assert ask("/v1/begin", STEP)[0] == 200
    assert ask("/v1/end", END)[0] == 200
    (ended,) = server.do(lambda: server.directory.steps(JOB.uid))
    assert ended["wouldTake"] > 0
    assert ended["most"] == 2
    assert ended["actorSeconds"] > 0
    assert ended["wholeSeconds"] is None, "it was the first"


def test_a_step_that_began_under_the_leader_before_goes_on(server: StepServer, ask: Any) -> None:
    """Who leads now knows of no step: the one that is watched, or ends, is under way."""
    status, found = ask("/v1/watch?attempt=3&step=6&after=41")
    assert status == 200, "at once: the revision is another leader's"
    assert found["step"] == 6
    assert server.do(lambda: server.directory.demand(JOB.uid)).generating
    assert ask("/v1/end", {**END, "step": 7})[0] == 200
    (ended,) = server.do(lambda: server.directory.steps(JOB.uid))
    assert ended["step"] == 7
    assert ask("/v1/watch?attempt=3&step=6&after=0")[1]["reason"] == "OldStep"


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/begin", {"attempt": 3}, "step: None"),
    ("/v1/begin", {"attempt": 3, "step": -1}, "step: -1"),
    ("/v1/begin", {"attempt": 3, "step": 1.5}, "step: 1.5"),
    ("/v1/begin", {"attempt": 3, "step": True}, "step: True"),
    ("/v1/begin", {"attempt": "3", "step": 1}, "attempt: '3'"),
    ("/v1/begin", {"attempt": 3, "step": 10**13}, "0 to 1000000000000"),
    ("/v1/announce", {**ANNOUNCE, "beginsIn": -1}, "beginsIn: -1"),
    ("/v1/announce", {**ANNOUNCE, "beginsIn": 1e300}, "a number from 0 to 1e+07"),
    ("/v1/announce", {**ANNOUNCE, "bins": [[0.0, 1]]}, "tokens above 0"),
    ("/v1/announce", {**ANNOUNCE, "bins": [[5.0, 0]]}, "at least one prompt"),
    ("/v1/announce", {**ANNOUNCE, "bins": [[5.0]]}, "[tokens, prompts]"),
    ("/v1/announce", {**ANNOUNCE, "bins": [[5.0, 1]] * 257}, "at most 256 bins"),
    ("/v1/announce", {**ANNOUNCE, "bins": "x"}, "bins: expected a list"),
    ("/v1/announce", {**ANNOUNCE, "copies": 0}, "copies"),
    ("/v1/announce", {**ANNOUNCE, "copies": 2000}, "1 to 1024"),
    ("/v1/announce", {**ANNOUNCE, "cap": 0}, "cap"),
    ("/v1/announce", {**ANNOUNCE, "spread": 9.0}, "spread"),
    ("/v1/done", {**DONE, "release": 1}, "release: 1"),
    ("/v1/done", {**DONE, "failure": "x" * 201}, "failure: 'xxx"),
    ("/v1/done", {**DONE, "failure": 1}, "failure: 1"),
    ("/v1/done", {**DONE, "report": {**REPORT, "tokens": -5}}, "tokens: -5"),
    ("/v1/done", {**DONE, "report": {**REPORT, "decodeSeconds": "x"}}, "decodeSeconds"),
    ("/v1/end", {**END, "rank": 2.0}, "rank: 2.0"),
    ("/v1/end", {**END, "phases": {"a": -1}}, "a: -1"),
    ("/v1/end", {**END, "phases": {"\n": 1}}, "phases"),
    ("/v1/end", {**END, "seconds": None}, "seconds: None"),
    ("/v1/end", {**END, "failures": "lost"}, "failures: expected at most 8 texts"),
    ("/v1/end", {**END, "failures": ["x"] * 9}, "failures: expected at most 8 texts"),
    ("/v1/end", {**END, "failures": [7]}, "failures: 7 is not allowed"),
    ("/v1/end", {**END, "failures": ["x" * 201]}, "of at most 200 characters"),
]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with step_server(tmp_path_factory.mktemp("steps")) as server:
        server.do(lambda: server.directory.put_job(JOB))
        server.do(lambda: server.directory.put_actors(JOB.uid, [ActorPod("actor-0", 0)]))
        yield server


def test_bad_values_are_named(shared: StepServer) -> None:
    shared.ask("POST", "/v1/begin", STEP)
    for at, (path, body, words) in enumerate(BAD):
        if at % 10 == 0:
            shared.do(lambda: shared.directory.put_job(replace(JOB, speaker=f"trainer-{at}")))  # noqa: B023
            pod = f"trainer-{at}"
        status, found = shared.ask("POST", path, body, pod)
        assert (status, found["reason"]) == (400, "BadRequest"), (path, body, found)
        assert words in found["message"], found
    for body in (b'{"attempt": 3, "step": NaN}', b"[1]", b"{", b'{"step": 1e999}'):
        status, found = shared.ask("POST", "/v1/begin", body, pod)
        assert (status, found["reason"]) == (400, "BadRequest"), body
    assert shared.ask("POST", "/v1/begin", b" " * 70_000, pod)[0] == 413
    for change in (
        {"address": "x"},
        {"address": 5},
        {"fingerprint": "AB" * 32},
        {"slots": -1},
        {"version": 0.5},
    ):
        body = {"address": "127.0.0.1:9", "fingerprint": PRINT, **change}
        assert shared.ask("POST", "/v1/actors", body, "actor-0")[0] == 400, change


def test_one_pod_cannot_ask_without_end() -> None:
    now = [0.0]
    api = StepApi(Directory(), None, TokensNamePods(), lambda: now[0])  # type: ignore[arg-type]
    request = Request(
        {"type": "http", "headers": [(b"authorization", b"Bearer pod:eager")], "client": ("::1", 1)}
    )
    other = Request(
        {"type": "http", "headers": [(b"authorization", b"Bearer pod:calm")], "client": ("::1", 1)}
    )
    for _ in range(60):
        assert asyncio.run(api.pod(request)) == "eager"
    with pytest.raises(Refused, match="10 calls per second") as caught:
        asyncio.run(api.pod(request))
    assert caught.value.status == 429
    assert asyncio.run(api.pod(other)) == "calm", "others are still answered"
    now[0] = 0.2
    assert asyncio.run(api.pod(request)) == "eager"


def test_a_planner_that_dies_is_started_again_and_the_step_is_static(server: StepServer, ask: Any) -> None:
    ask("/v1/announce", ANNOUNCE)
    plan_of(server, 1)
    server.do(lambda: server.planner._process.kill())
    until(lambda: server.do(lambda: server.planner._process.returncode is not None), "it is gone")
    ask("/v1/announce", {**ANNOUNCE, "step": 2})
    assert plan_of(server, 2).reason == "Planned"


def test_each_plan_is_noted_with_its_question_and_replays(server: StepServer, ask: Any) -> None:
    lines: list[str] = []
    server.do(lambda: server.directory.put_job(JOB))
    session = server.sessions.of(JOB)
    session._note = lambda asked, plan: lines.append(decision_log.step_line(asked, 1.0, plan))
    assert ask("/v1/announce", ANNOUNCE) == (200, {})
    plan_of(server, 1)
    assert ask("/v1/begin", STEP)[0] == 200
    assert ask("/v1/end", END)[0] == 200
    assert ask("/v1/begin", {**STEP, "step": 2})[0] == 200, "nobody has announced it"
    found = list(decision_log.replay(lines))
    assert [(one.subject, one.same) for one in found] == [
        ("team/run step 1", True),
        ("team/run step 2", True),
    ]
