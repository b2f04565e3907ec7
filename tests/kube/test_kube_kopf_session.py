"""kopf as the way in: what it is told, what reaches the cache, and what breaks neither."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest
from kopf_world import Server, World, gpupool, rlhfjob, until, world

from controller.kube import client, informer, kopf_session, wire
from controller.kube.backoffs import JitteredBackoffs
from controller.kube.resources import GPUPOOLS, RLHFJOBS
from controller.operator import handlers

DEEP = b'{"a":' * 5000 + b"1" + b"}" * 5000

Story = Callable[[Server], Awaitable[None]]


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses between tries that a test can wait for."""

    def soon(first: float = 0.05, factor: float = 2.0, cap: float = 0.2) -> JitteredBackoffs:
        return JitteredBackoffs(0.05, 2.0, 0.2)

    for module in (informer, kopf_session, handlers):
        monkeypatch.setattr(module, "JitteredBackoffs", soon)


def run(story: Story) -> None:
    async def whole() -> None:
        async with Server() as server:
            await story(server)

    asyncio.run(whole())


async def sees(made: World, server: Server, name: str) -> None:
    """What happens from now on is seen."""
    server.put(RLHFJOBS, rlhfjob(name, 0))
    await made.until(lambda: name in made.names(), f"{name} to be seen")


def test_what_is_there_and_what_happens_reaches_the_cache() -> None:
    async def story(server: Server) -> None:
        for i in range(250):
            server.put(RLHFJOBS, rlhfjob(f"run-{i:03d}", 0))
        server.put(GPUPOOLS, gpupool("pool", 0))
        async with world(server) as made:
            await made.until(lambda: made.cache.complete, "both kinds to be listed")
            assert len(made.cache.stores[RLHFJOBS]) == 250
            assert sorted(made.listed, key=str) == [(GPUPOOLS, "", 1), (RLHFJOBS, "", 250)]
            server.put(RLHFJOBS, rlhfjob("new", 0))
            server.remove(RLHFJOBS, "ns/run-007")
            await made.until(lambda: "new" in made.names() and "run-007" not in made.names())
            server.put(GPUPOOLS, gpupool("pool", 0, modeCap="Shadow"))
            await made.until(lambda: made.cache.get(GPUPOOLS, "pool")["spec"])  # type: ignore[index]
            calls = {("list", "rlhfjobs", "200"), ("watch", "rlhfjobs", "200"), ("watch", "gpupools", "200")}
            assert calls <= set(made.calls)

    run(story)


def test_with_nothing_there_the_kinds_are_listed_all_the_same() -> None:
    async def story(server: Server) -> None:
        async with world(server) as made:
            await made.until(lambda: made.cache.complete, "both kinds to be listed")
            await sees(made, server, "first")

    run(story)


def test_kopf_writes_nothing_and_keeps_nothing() -> None:
    """It is told names and versions alone; its own writes, made known by the answer, do not come to it."""

    async def story(server: Server) -> None:
        async with world(server) as made:
            await made.until(lambda: made.cache.complete)
            told = made.session.informers[1]._identity(rlhfjob("run", 7))
            assert told["metadata"] == {"namespace": "ns", "name": "run", "resourceVersion": "7"}
            mine = rlhfjob("mine", server.version + 1)
            made.cache.put(RLHFJOBS, mine)  # the answer to a write, before the watch tells of it
            server.put(RLHFJOBS, mine)
            await sees(made, server, "theirs")
            assert [name for name, _ in made.events] == ["theirs"]
            assert set(server.methods) == {"GET"}

    run(story)


def test_an_object_nested_5000_deep_is_put_aside_and_the_others_go_on() -> None:
    async def story(server: Server) -> None:
        server.put(RLHFJOBS, rlhfjob("deep", 0, x="DEEP"))
        server.put(RLHFJOBS, rlhfjob("flat", 0))
        server.edit = lambda body: body.replace(b'"DEEP"', DEEP)
        async with world(server) as made:
            await made.until(lambda: made.cache.complete)
            assert made.names() == ["deep", "flat"]
            assert list(made.cache.aside) == [(RLHFJOBS, "ns/deep")]
            later = json.dumps({"type": "ADDED", "object": rlhfjob("later", 150, x="DEEP")}).encode()
            server.say(later.replace(b'"DEEP"', DEEP))
            await made.until(lambda: "later" in made.names())
            found = made.cache.get(RLHFJOBS, "ns/later")
            assert found is not None
            assert "nested deeper than 200 levels" in wire.problem(found)
            await sees(made, server, "next")

    run(story)


def test_all_states_of_an_object_are_handed_on_in_their_order() -> None:
    async def story(server: Server) -> None:
        async with world(server) as made:
            await made.until(lambda: made.cache.complete and len(server.open) == 2)
            states = [("ADDED", 201), ("DELETED", 202), ("ADDED", 203), ("MODIFIED", 204)]
            lines = [json.dumps({"type": kind, "object": rlhfjob("run", at)}) for kind, at in states]
            server.say("\n".join(lines).encode())
            await made.until(lambda: len(made.events) >= 4)
            assert made.events == [("run", kind == "DELETED") for kind, _ in states]
            assert made.names() == ["run"]

    run(story)


def test_chosen_namespaces_are_listed_and_watched_one_by_one() -> None:
    async def story(server: Server) -> None:
        for namespace in "abc":
            server.put(RLHFJOBS, rlhfjob(f"run-{namespace}", 0, namespace))
        async with world(server, namespaces=("a", "b")) as made:
            await made.until(lambda: made.cache.complete)
            assert made.names() == ["run-a", "run-b"]
            server.put(RLHFJOBS, rlhfjob("unseen", 0, "c"))
            server.put(RLHFJOBS, rlhfjob("later", 0, "b"))
            server.remove(RLHFJOBS, "a/run-a")  # as where its namespace is deleted
            await made.until(lambda: made.names() == ["later", "run-b"])
            assert not [path for path, _ in server.lists if "/namespaces/c/" in path]

    run(story)


def test_every_request_has_the_token_as_it_is_then() -> None:
    async def story(server: Server) -> None:
        async with world(server) as made:
            await made.until(lambda: made.cache.complete)
            assert set(server.tokens) == {"Bearer first"}
            made.token = ""  # it is being replaced
            server.cut()
            await made.until(lambda: made.without_token > 2)
            made.token = "second"
            await made.until(lambda: server.tokens[-1] == "Bearer second", "the new token")
            await sees(made, server, "next")

    run(story)


def test_refused_credentials_are_tried_again_until_they_are_taken() -> None:
    async def story(server: Server) -> None:
        server.refuse = lambda verb, path: 401
        async with world(server) as made:
            await made.until(lambda: len(server.refused) > 6, "it to try again")
            assert not made.thread.ended.is_set()
            server.refuse = lambda verb, path: 200
            await made.until(lambda: made.cache.complete)
            server.refuse = lambda verb, path: 401 if verb == "watch" else 200
            server.cut()
            before = len(server.refused)
            await made.until(lambda: len(server.refused) > before + 3)
            server.refuse = lambda verb, path: 200
            await sees(made, server, "next")

    run(story)


ERROR = b'{"type":"ERROR","object":{"kind":"Status","code":%d,"reason":"Any","message":"m"}}'


@pytest.mark.parametrize("line", [ERROR % 410, ERROR % 500, ERROR % 504, b'{"type": "ADD', b"[]", b"{}"])
def test_whatever_a_watch_says_instead_of_an_event_it_lists_anew(line: bytes) -> None:
    """By itself kopf ends the process at all of these but the first."""

    async def story(server: Server) -> None:
        server.put(RLHFJOBS, rlhfjob("gone", 0))
        async with world(server) as made:
            await made.until(lambda: made.cache.complete and len(server.open) == 2)
            server.remove(RLHFJOBS, "ns/gone", silently=True)
            before = json.dumps({"type": "ADDED", "object": rlhfjob("before", server.version)}).encode()
            server.say(before + b"\n" + line)  # in one piece
            await made.until(lambda: ("before", False) in made.events, "what came before the fault")
            await made.until(lambda: made.names() == [], "a LIST that lacks it")
            await sees(made, server, "next")

    run(story)


@pytest.mark.parametrize("verb", ["list", "watch"])
@pytest.mark.parametrize("status", [403, 410, 429, 500, 503])
def test_refused_lists_and_watches_are_tried_again(verb: str, status: int) -> None:
    async def story(server: Server) -> None:
        server.refuse = lambda asked, path: status if asked == verb else 200
        async with world(server) as made:
            await made.until(lambda: len(server.refused) > 4, "it to try again")
            assert not made.cache.complete, "a kind is listed once it is watched, too"
            assert any(found.problem for found in made.session.informers)
            server.refuse = lambda verb, path: 200
            await made.until(lambda: made.cache.complete)
            await sees(made, server, "next")
            assert not any(found.problem for found in made.session.informers if found.resource == RLHFJOBS)

    run(story)


def test_a_list_that_is_no_json_is_asked_for_again() -> None:
    async def story(server: Server) -> None:
        server.edit = lambda body: body[:-5]
        async with world(server) as made:
            await made.until(lambda: len(server.lists) > 4)
            server.edit = lambda body: body
            await made.until(lambda: made.cache.complete)

    run(story)


def test_a_page_that_is_too_large_is_asked_for_in_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ANSWER_MOST", 60_000)

    async def story(server: Server) -> None:
        for i in range(150):
            server.put(RLHFJOBS, rlhfjob(f"run-{i:03d}", 0, x="x" * 1000))
        async with world(server) as made:
            await made.until(lambda: made.cache.complete)
            assert len(made.names()) == 150
            limits = [limit for path, limit in server.lists if path.endswith("rlhfjobs")]
            assert (limits[0], limits[-1]) == (100, 50)

    run(story)


def test_it_lists_anew_from_time_to_time_and_mends_what_the_watch_missed() -> None:
    async def story(server: Server) -> None:
        server.put(RLHFJOBS, rlhfjob("missed", 0))
        async with world(server, relist=1.0) as made:
            await made.until(lambda: made.cache.complete)
            server.remove(RLHFJOBS, "ns/missed", silently=True)
            await made.until(lambda: made.names() == [])
            assert (RLHFJOBS, "", 0) in made.listed, "what is known already is no news"

    run(story)


def test_it_waits_for_its_kinds_to_be_installed() -> None:
    async def story(server: Server) -> None:
        server.installed = False
        async with world(server) as made:
            await made.until(lambda: len(server.tokens) > 3)
            assert server.lists == []
            server.installed = True
            await made.until(lambda: made.cache.complete)
        server.installed = False
        async with world(server) as made:
            await made.until(lambda: len(server.tokens) > 3)  # and ends while it waits

    run(story)


def test_kopf_ends_where_a_kind_is_not_served_any_more(caplog: pytest.LogCaptureFixture) -> None:
    """Then the engine ends, and its next life waits until the kind is installed."""

    async def story(server: Server) -> None:
        async with world(server) as made:
            await made.until(lambda: made.cache.complete)
            server.refuse = lambda verb, path: 404
            server.cut()
            await until(made.thread.ended.is_set, "kopf to give up")
            assert "404" in caplog.text

    run(story)


def test_what_the_taker_fails_at_ends_kopf(caplog: pytest.LogCaptureFixture) -> None:
    async def story(server: Server) -> None:
        async with world(server) as made:
            await made.until(lambda: made.cache.complete)
            made.cache.stores[GPUPOOLS].replace([], 10**15)  # the cluster is not at that version yet
            server.say(ERROR % 410, GPUPOOLS)
            await until(made.thread.ended.is_set, "kopf to give up")
            assert "restored from a backup" in caplog.text

    run(story)


def test_a_handler_that_is_not_called_is_not_waited_for_in_vain(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(informer, "PATIENCE", 0.5)
    monkeypatch.setattr(kopf_session.KopfSession, "hand_on", lambda *_: None)

    async def story(server: Server) -> None:
        server.put(RLHFJOBS, rlhfjob("run", 0))
        async with world(server) as made:
            await until(made.thread.ended.is_set, "kopf to give up")
            assert "kopf has called no handler of rlhfjobs" in caplog.text

    run(story)


def test_kopfs_own_index_is_not_used() -> None:
    """With one its start is quadratic in the number of objects."""
    assert not list(handlers.registry._indexing.get_all_handlers())
