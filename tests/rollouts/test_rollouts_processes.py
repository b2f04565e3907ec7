"""Real engines and sidecars on loopback: what the client gets from them, whatever happens to them."""

from __future__ import annotations

import http.client
import json
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from rollouts_world import Pods, StepServer, until

from controller.web.certificates import issue_server, make_authority
from controller.web.tickets import Ticket
from evalstop_client import rollouts as client
from examples.engine.model import END
from examples.rollouts.learner import generate_here
from examples.rollouts.task import INITIAL, TOKENS

SEED, COPIES, MOST = 5, 3, 60
PROMPTS = list(range(0, 48, 3))
WEIGHTS = client.Weights.of(INITIAL.dump())


def prompts() -> list[client.Prompt]:
    return [client.Prompt(p, TOKENS[p].tolist(), float(len(PROMPTS) - i)) for i, p in enumerate(PROMPTS)]


def expected(step: int) -> list[list[list[int]]]:
    return generate_here(INITIAL, SEED, step, PROMPTS, COPIES, MOST)


def api(server: StepServer, attempt: int = 3, **more: Any) -> client.StepApi:
    return client.StepApi([server.url], server.ca, server.token("trainer-1"), attempt, **more)


def generate(rollouts: client.Rollouts, step: int, **more: Any) -> list[list[list[int]]]:
    return rollouts.generate(
        step,
        prompts(),
        copies=COPIES,
        most=MOST,
        weights=WEIGHTS,
        end=END,
        vocabulary=END + 1,
        seed=SEED,
        **more,
    )


class Running(threading.Thread):
    """A step in a thread, so that a test can do things to its actors meanwhile."""

    def __init__(self, rollouts: client.Rollouts, step: int) -> None:
        super().__init__(daemon=True)
        self._work, self.found, self.fault = (rollouts, step), None, None
        self.start()

    def run(self) -> None:
        try:
            self.found = generate(*self._work)
        except Exception as fault:
            self.fault = fault

    def result(self) -> Any:
        self.join(120)
        assert not self.is_alive()
        if self.fault is not None:
            raise self.fault
        return self.found


def generated(world: Pods, number: int) -> int:
    """Tokens that an actor's engine counts, read through its socket by nobody but the test."""
    import socket

    socket_path = world.running[number].engine.args[4]  # type: ignore[index]
    connection = http.client.HTTPConnection("engine")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(socket_path))
    connection.request("GET", "/report")
    return int(json.loads(connection.getresponse().read())["tokens"])


def test_steps_by_two_actors_then_by_more_and_fewer(world: Pods, server: StepServer) -> None:
    world.start(0)
    world.start(1)
    world.await_ready(0, 1)
    rollouts = client.Rollouts(api(server))
    rollouts.announce(1, prompts(), copies=COPIES, most=MOST)
    until(lambda: server.do(lambda: server.directory.demand("job-1").plan), "the announced step is planned")
    assert generate(rollouts, 1) == expected(1)
    assert rollouts.plan.reason in ("Planned", "KeptCount")
    rollouts.end(1, {"train": 0.5})
    (ended,) = until(lambda: server.do(lambda: server.directory.steps("job-1")), "the step's end was heard")
    total = sum(len(r) for row in expected(1) for r in row)
    assert ended["tokens"] == total == rollouts.counts["tokens"]
    assert generated(world, 0) + generated(world, 1) == total, (
        "engines' counters add up to what is trained on"
    )
    assert ended["reports"] >= 1
    # An iteration of the engine takes 10 ms, and longer beside other work.
    assert 0.009 < ended["law"]["iteration"] < 0.1, "of what was reported"
    # A third comes, the first goes: recalled in the middle of a step.
    world.start(2)
    world.await_ready(0, 1, 2)
    running = Running(rollouts, 2)
    until(lambda: server.do(lambda: server.directory.demand("job-1").generating), "step 2 generates")
    world.recall(0)
    until(lambda: 0 in world.released(), "the recalled actor was given back")
    world.kill(0)
    assert running.result() == expected(2)
    assert rollouts.counts["recalled"] == 1
    assert rollouts.counts["lost"] == rollouts.counts["faulty"] == 0
    engines = [world.running[n] for n in (1, 2)]
    world.running.clear()
    assert [actor.stop() for actor in engines] == [(0, 0), (0, 0)]


def test_lost_actors_cost_no_response(world: Pods, server: StepServer) -> None:
    for number in (0, 1):
        world.start(number)
    world.await_ready(0, 1)
    rollouts = client.Rollouts(api(server))
    running = Running(rollouts, 1)
    until(lambda: generated(world, 1) > 20, "actor 1 works")
    world.running[1].engine.kill()  # the sidecar lives on
    world.start(2)
    until(lambda: generated(world, 0) > 40, "actor 0 works")
    world.await_ready(2)
    world.kill(0)
    assert running.result() == expected(1)
    assert rollouts.counts["lost"] >= 1
    assert rollouts.counts["moved"] >= 1
    assert rollouts.counts["tokens"] == sum(len(r) for row in expected(1) for r in row), "no token came twice"


def test_a_step_goes_on_while_the_operator_is_silent_and_finds_it_again(
    world: Pods, server: StepServer
) -> None:
    world.start(0)
    world.await_ready(0)
    source = api(server, patience=0.3)
    rollouts = client.Rollouts(source)
    assert generate(rollouts, 1) == expected(1)
    server.close()
    assert generate(rollouts, 2) == expected(2)
    assert source.silent
    assert rollouts.plan.reason == "Unplanned"
    server.restart()  # it knows nothing, has another key, and tickets of the one before are still good
    world.tell()
    world.await_ready(0)

    def heard() -> bool:
        source.begin(3)
        return not source.silent

    until(heard, "the operator is heard again")
    assert generate(rollouts, 4) == expected(4)


def test_an_operator_that_moved_or_has_another_certificate_is_found_by_run_json(
    server: StepServer, world: Pods, tmp_path: Path
) -> None:
    """A trainer runs for weeks: leaders have other addresses, and authorities are renewed."""
    other = issue_server(make_authority(datetime.now(UTC)), ["127.0.0.1"], datetime.now(UTC)).certificate
    run = tmp_path / "run.json"
    run.write_text(json.dumps({"attempt": 3, "steps": {"urls": ["https://127.0.0.1:1"], "ca": other}}))
    found = client.StepApi.of_run(json.loads(run.read_text()), server.token("trainer-1"), str(run))
    assert found.begin(1) is None
    assert found.silent
    run.write_text("{")
    assert found._moved() is False, "written just now"
    run.write_text(json.dumps({"attempt": 3, "steps": {"urls": [server.url], "ca": server.ca}}))
    until(lambda: found.begin(1) is not None or not found.silent, "the operator is heard where it is now")
    assert found.begin(1) is not None
    assert found._moved() is False


def test_without_any_actor_the_learner_generates_or_the_step_starves(server: StepServer, world: Pods) -> None:
    from examples.rollouts.learner import go_on

    def here(missing: list) -> list[list[int]]:
        return go_on(INITIAL, [(p, t) for p, t, _, _ in missing], [d for *_, d in missing], MOST)

    alone = client.Rollouts(api(server), local=here, starve=0.2)
    assert generate(alone, 1) == expected(1)
    assert alone.counts["local"] == sum(len(r) for row in expected(1) for r in row)
    with pytest.raises(client.RolloutStarved, match=r"no actor for 0 s, 48 responses are missing"):
        generate(client.Rollouts(api(server), starve=0.2), 2)


class Starting:
    """An operator that says for a while that an actor is starting, which never comes."""

    def __init__(self, often: int) -> None:
        self.often, self.watched = often, 0

    def announce(self, body: Any) -> None: ...
    def done(self, body: Any) -> None: ...
    def end(self, body: Any) -> None: ...

    def begin(self, step: int) -> client.News:
        return client.News(client.Plan(), (), frozenset(), 1, coming=1)

    def watch(self, step: int, after: int) -> client.News:
        time.sleep(0.1)  # as an operator holds a watch
        self.watched += 1
        return client.News(client.Plan(), (), frozenset(), 1, coming=int(self.watched < self.often))


def test_a_step_does_not_starve_while_an_actor_starts() -> None:
    """Models load for longer than a step waits for an actor that is gone."""
    source = Starting(often=12)
    with pytest.raises(client.RolloutStarved):
        generate(client.Rollouts(source, starve=0.4), 1)
    assert source.watched >= 12, "it starves only once the operator names none any more"


def test_a_renewed_authority_is_taken_up_by_sidecars(server: StepServer, world: Pods) -> None:
    world.start(0)
    world.await_ready(0)
    now = datetime.now(UTC)
    authority = make_authority(now)
    pair = issue_server(authority, ["127.0.0.1"], now)
    texts = {"tls.crt": pair.certificate, "tls.key": pair.key, "ca.crt": authority.certificate}
    for name, text in texts.items():
        (server.folder / f"{name}.new").write_text(text)
        (server.folder / f"{name}.new").rename(server.folder / name)
    server.restart()  # no connection of before is left
    world.tell()
    world.await_ready(0)


def test_an_actor_lets_in_its_own_jobs_ticket_and_checks_what_it_gets(
    world: Pods, server: StepServer
) -> None:
    world.start(0)
    world.await_ready(0)
    (actor,) = api(server).begin(1).actors  # type: ignore[union-attr]
    signer = server.sessions.signer

    def ask(
        method: str, path: str, body: Any = None, ticket: str = actor.ticket, **headers: str
    ) -> tuple[int, Any]:
        connection = client._Pinned(actor.address, actor.fingerprint, 20)
        content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        given = {"Authorization": f"Bearer {ticket}", "Content-Type": "application/json", **headers}
        connection.request(method, path, content, given)
        answer = connection.getresponse()
        found = json.loads(answer.read() or b"{}")
        connection.close()
        return answer.status, found

    def reason(*args: Any, **more: Any) -> tuple[int, str]:
        status, found = ask(*args, **more)
        return status, found.get("reason", "")

    assert ask("GET", "/v1/report")[0] == 200
    assert ask("GET", "/healthz", ticket="") == (200, {"actor": 0}), "what its pod's readiness is told by"
    for wrong in (
        Ticket("job-2", 3, 0, 9e9), Ticket("job-1", 2, 0, 9e9), Ticket("job-1", 4, 0, 9e9),
        Ticket("job-1", 3, 1, 9e9), Ticket("job-1", 3, 0, 1.0),
    ):  # fmt: skip
        assert reason("GET", "/v1/report", ticket=signer.sign(wrong)) == (403, "WrongTicket")
    assert reason("GET", "/v1/report", ticket="") == (403, "WrongTicket")
    content = INITIAL.dump()
    named = {"X-Weights-Version": "7", "X-Weights-Digest": WEIGHTS.digest}
    assert reason("POST", "/v1/weights", content[:-8], **named, **OCTETS) == (409, "WrongDigest")
    assert reason("POST", "/v1/weights", content, **OCTETS, **{**named, "X-Weights-Version": "-1"}) == (
        400,
        "BadRequest",
    )
    assert reason("POST", "/v1/weights", {"path": "/etc/passwd", "version": 7, "digest": "0" * 64})[0] == 400
    assert ask("POST", "/v1/weights", content, **named, **OCTETS) == (
        200,
        {"version": 7, "digest": WEIGHTS.digest},
    )
    fine = {"id": "1.0.0.1", "prompt": [1, 2], "tokens": [], "most": 9, "draw": [1, 2, 3, 4]}
    assert reason("POST", "/v1/generate", {"version": 6, "requests": [fine]}) == (409, "WrongWeights")
    for change in WRONG:
        body = {"version": 7, "requests": [{**fine, **change}]}
        assert reason("POST", "/v1/generate", body) == (400, "BadRequest"), change
    assert reason("POST", "/v1/generate", b'{"version": NaN, "requests": []}') == (400, "BadRequest")
    assert reason("POST", "/v1/generate", b"[" * 5_000_000) == (413, "TooLarge")
    assert ask("POST", "/v1/generate", {"version": 7, "requests": [fine]}) == (200, {"taken": 1})
    assert reason("GET", "/v1/frames?after=99999") == (410, "FramesGone")
    assert reason("GET", "/v1/frames?after=x") == (400, "BadRequest")
    with pytest.raises(ConnectionError, match="another certificate"):
        client._Pinned(actor.address, "0" * 64, 20).connect()


WRONG: tuple[dict[str, Any], ...] = (
    {"prompt": []},
    {"prompt": [1.5, 2]},
    {"most": 0},
    {"most": True},
    {"draw": [1]},
    {"id": ""},
    {"tokens": [-1]},
    {"temperature": 0},
)
OCTETS = {"Content-Type": "application/octet-stream"}


def test_weights_from_a_shared_volume(server: StepServer, tmp_path: Path) -> None:
    """The engine reads the same file that the sidecar has found right."""
    from rollouts_world import pods

    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "step-1.bin").write_bytes(INITIAL.dump())
    with pytest.MonkeyPatch.context() as patch, pods(server, tmp_path) as world:
        patch.setenv("EVALSTOP_ACTOR_WEIGHTS", str(shared))
        world.start(0)
        world.await_ready(0)
        rollouts = client.Rollouts(api(server), starve=20)
        named = client.Weights(WEIGHTS.digest, path="step-1.bin")
        found = rollouts.generate(1, prompts(), copies=1, most=20, weights=named, end=END, seed=SEED)
        assert found == generate_here(INITIAL, SEED, 1, PROMPTS, 1, 20)
        wrong = client.Weights("0" * 64, path="step-1.bin")
        with pytest.raises(client.RolloutStarved):
            client.Rollouts(api(server), starve=0.3).generate(
                2, prompts(), copies=1, most=20, weights=wrong, end=END
            )
