"""What is followed stays true when a watch breaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from controller.cli import watching
from controller.cli.failure import Exit, Failure
from controller.kube.errors import Gone, Refused, Unavailable
from controller.kube.resources import RLHFJOBS

Object = dict[str, Any]
DOWN = Unavailable(0, "ConnectionBroken", "connection refused")


def job(name: str, version: int) -> Object:
    return {"metadata": {"namespace": "team", "name": name, "resourceVersion": str(version)}}


class WatchServer:
    """Answers in order; a list of events that ends with an error breaks off with it."""

    def __init__(self, watches: list[list[Any]], lists: list[Any]) -> None:
        self.watches, self.lists, self.asked = watches, lists, [""]

    async def watch(self, resource: Any, version: str, **_: Any) -> AsyncIterator[Object]:
        self.asked.append(version)
        for event in self.watches.pop(0) if self.watches else [Refused(403, "Forbidden", "the end")]:
            if isinstance(event, Exception):
                raise event
            yield {"type": event[0], "object": event[1]}

    async def list(self, *_: Any, **__: Any) -> tuple[list[Object], str]:
        found = self.lists.pop(0)
        if isinstance(found, Exception):
            raise found
        return found, "50"


def followed(server: WatchServer, monkeypatch: pytest.MonkeyPatch) -> tuple[list[tuple[str, str]], Exit]:
    monkeypatch.setattr(watching, "PAUSES", (0.0,) * 5)
    seen: list[tuple[str, str]] = []

    async def run() -> None:
        there = [job("a", 1), job("b", 2)]
        async for kind, obj in watching.follow(server, RLHFJOBS, "team", "", "2", there):  # type: ignore[arg-type]
            seen.append((kind, obj["metadata"]["name"]))

    with pytest.raises(Failure) as failed:
        asyncio.run(run())
    return seen, failed.value.code


def test_what_went_while_nobody_watched_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    server = WatchServer(
        [[("ADDED", job("c", 3)), Gone(410, "Expired", "too old")]], [[job("a", 1), job("c", 9), job("d", 8)]]
    )
    seen, code = followed(server, monkeypatch)
    assert seen == [("ADDED", "c"), ("DELETED", "b"), ("MODIFIED", "c"), ("ADDED", "d")]
    assert server.asked[1:] == ["2", "50"], "it goes on from the new list"
    assert code is Exit.FORBIDDEN


def test_a_server_that_is_away_for_a_moment_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, code = followed(WatchServer([[DOWN], []], [DOWN, DOWN, [job("a", 1)]]), monkeypatch)
    assert (seen, code) == ([("DELETED", "b")], Exit.FORBIDDEN)


def test_one_that_stays_away_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, code = followed(WatchServer([[DOWN]], [DOWN] * 5), monkeypatch)
    assert (seen, code) == ([], Exit.UNREACHABLE)
