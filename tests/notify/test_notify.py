"""Who gets told what: ids that stay, at least once, and a receiver that hangs delays nobody."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from controller.api.record import record as read_record
from controller.environ import SettingsError
from controller.kube.resources import RLHFJOBS
from controller.notify import process
from controller.notify.cloud_event import cloud_event
from controller.notify.delivery import Receiver, Receivers
from controller.notify.happenings import KINDS, happenings
from controller.notify.notifier import Notifier
from controller.notify.settings import Settings, addresses, describe
from controller.policy.job import Condition, JobRecord, Outcome, StopOutcome
from controller.policy.job.record import Best
from controller.policy.types import Mode
from tests.support.dashboard_world import (
    job_object,
    judged,
    over_optimising,
    pool_object,
    stopped,
    until_stop,
    with_record,
)

NOW = 1_800_000_000.0
POOL = pool_object()
ROOT = Path(__file__).resolve().parents[2]


def halted(mode: Mode = Mode.ENFORCE, name: str = "halted") -> dict[str, Any]:
    obj = job_object("team", name, created=NOW - 9000, mode=str(mode))
    record = judged(obj, until_stop(obj, over_optimising(104), POOL), NOW - 60, POOL)
    return with_record(obj, stopped(record, NOW - 50, mode=mode), POOL)


def told(record: JobRecord) -> list[tuple[str, str]]:
    return [(one.kind, one.reason) for one in happenings("uid", record, NOW)]


# -- what has happened --------------------


def test_each_kind_is_read_from_a_status_and_has_one_id_for_ever() -> None:
    record = read_record(halted()["status"])
    assert told(record) == [("stopped", "ConsecutiveDeclines")]
    first, later = (happenings("uid", record, at) for at in (NOW, NOW + 1e6))
    assert [one.id for one in first] == [one.id for one in later]
    assert happenings("other", record, NOW)[0].id != first[0].id
    shadow = read_record(halted(Mode.SHADOW)["status"])
    assert ("wouldStop", "ConsecutiveDeclines") in told(shadow)
    was = StopOutcome(NOW - 900, Mode.SHADOW, 100, Best(80, 0.5), evals=8)
    for verdict in Outcome:
        found = told(JobRecord(outcome=replace(was, verdict=verdict)))
        assert found == ([] if verdict is Outcome.OPEN else [("outcome", str(verdict))])
    resumed = Condition("Resumed", True, "Resumed", "goes on from the checkpoint of step 40", NOW - 5, 1)
    assert told(JobRecord(conditions=(resumed,), resume_id="a", queued_at=NOW - 5)) == [
        ("resumed", "Resumed")
    ]
    recovered = Condition("NeedsAttention", False, "Recovered", "nothing needs a hand any more", NOW - 5, 1)
    assert told(JobRecord(conditions=(recovered,))) == [("recovered", "Recovered")]


def test_a_mark_is_told_when_it_is_a_warning_and_not_before() -> None:
    missing = Condition("MetricsAvailable", False, "MetricMissing", "no eval of 'gold'", NOW - 30, 1)
    failed = Condition("Failed", True, "BackoffLimitExceeded", "exit code 1", NOW - 20, 1)
    (mark,) = [one for one in happenings("uid", JobRecord(conditions=(failed,)), NOW) if one.kind == "marked"]
    assert (mark.more["mark"], mark.reason) == ("Failed", "Failed")
    assert mark.more["cure"]
    quiet = replace(missing, reason="Unreachable")
    assert told(JobRecord(conditions=(quiet,))) == []


def test_an_event_is_a_cloud_event_and_strangers_words_are_made_fit() -> None:
    record = read_record(halted()["status"])
    (one,) = happenings("uid", record, NOW)
    one = one._replace(message="\x1b[31m<b>\n last words " + "x" * 2000)
    event = cloud_event(
        one,
        namespace="team",
        name="halted",
        uid="uid",
        pool="research",
        source="/here",
        link="https://board/",
    )
    assert {k: event[k] for k in ("specversion", "source", "type", "subject", "id")} == {
        "specversion": "1.0",
        "source": "/here",
        "type": "dev.evalstop.rlhfjob.stopped",
        "subject": "team/halted",
        "id": one.id,
    }
    assert event["time"].endswith("Z")
    assert event["data"]["link"] == "https://board/jobs/team/halted"
    assert "\x1b" not in event["data"]["message"]
    assert len(event["data"]["message"]) <= 600
    assert (event["data"]["step"], event["data"]["bestStep"]) == (170, 130)


def test_what_happened_is_told_once_and_again_after_a_start() -> None:
    sent: list[dict[str, Any]] = []
    notifier = Notifier(Settings(), sent.append, lambda: NOW)
    obj = halted()
    notifier.replace(RLHFJOBS, [obj], "1")
    notifier.take(RLHFJOBS, obj, False)
    notifier.look()
    assert [one["type"] for one in sent] == ["dev.evalstop.rlhfjob.stopped"]
    again: list[dict[str, Any]] = []
    Notifier(Settings(), again.append, lambda: NOW).replace(RLHFJOBS, [obj], "1")
    assert [one["id"] for one in again] == [one["id"] for one in sent]
    late: list[dict[str, Any]] = []
    Notifier(Settings(again_seconds=10.0), late.append, lambda: NOW).replace(RLHFJOBS, [obj], "1")
    assert late == []
    few: list[dict[str, Any]] = []
    Notifier(Settings(kinds="marked, outcome"), few.append, lambda: NOW).replace(RLHFJOBS, [obj], "1")
    assert few == []


def test_one_unreadable_status_keeps_nobody_else_from_being_told() -> None:
    sent: list[dict[str, Any]] = []
    notifier = Notifier(Settings(), sent.append, lambda: NOW)
    broken = halted(name="broken")
    broken["status"]["best"] = "nonsense"
    notifier.replace(RLHFJOBS, [broken, halted()], "1")
    assert [one["subject"] for one in sent] == ["team/halted"]


# -- receivers --------------------


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def receiver(handler: Handler) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/hook", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        yield f"http://127.0.0.1:{port}/hook"
    finally:
        await runner.cleanup()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(45):
        while not true():  # noqa: ASYNC110 -- what is waited for tells nobody
            await asyncio.sleep(0.01)


async def no_pause(seconds: float) -> None:
    await asyncio.sleep(0)


def event(number: int) -> dict[str, Any]:
    return {"id": f"id-{number}", "type": "dev.evalstop.rlhfjob.stopped", "data": {}}


def test_a_receiver_that_hangs_delays_no_other_and_nobody_who_puts() -> None:
    async def story() -> None:
        got: list[str] = []
        hanging = asyncio.Event()

        async def well(request: web.Request) -> web.StreamResponse:
            assert request.content_type == "application/cloudevents+json"
            assert request.headers["Authorization"] == "Bearer t0ken"
            got.append((await request.json())["id"])
            return web.Response(status=204)

        async def hangs(request: web.Request) -> web.StreamResponse:
            await hanging.wait()
            return web.Response()

        async with receiver(well) as good, receiver(hangs) as bad, aiohttp.ClientSession() as session:
            made = [Receiver(url, session, lambda: {"Authorization": "Bearer t0ken"}) for url in (bad, good)]
            receivers = Receivers(made)
            async with receivers.running():
                for n in range(200):
                    receivers.put(event(n))
                    receivers.put(event(n))  # told twice by the watch: delivered once
                await until(lambda: len(got) == 200)
                assert sorted(got) == sorted(f"id-{n}" for n in range(200))
                assert (made[0].delivered, made[0].waiting) == (0, 200)
                hanging.set()
                await until(lambda: made[0].delivered == 200)

    asyncio.run(story())


def test_receivers_of_one_host_are_told_apart_by_their_line() -> None:
    """/readyz named five of them by the host alone, for the rest of an address may be secret."""

    async def story() -> list[str]:
        async with aiohttp.ClientSession() as session:
            made = [Receiver(f"http://127.0.0.1:9/{name}", session, dict) for name in ("secret", "other")]
            notifier: Any = SimpleNamespace(watch=None)
            return process._health(notifier, made).notes()

    first, second = asyncio.run(story())
    assert first == "receiver 1, 127.0.0.1: 0 delivered, 0 wait, 0 refused"
    assert second.startswith("receiver 2, 127.0.0.1: ")


@pytest.mark.parametrize("fault", [401, 403, 500, 503, 429, "reset"])
def test_what_was_not_taken_is_sent_again_until_it_is(fault: Any) -> None:
    async def story() -> None:
        tries: list[str] = []

        async def moody(request: web.Request) -> web.StreamResponse:
            tries.append((await request.json())["id"])
            if len(tries) <= 5:
                if fault == "reset":
                    assert request.transport is not None
                    request.transport.abort()
                return web.Response(status=500 if fault == "reset" else fault)
            return web.Response()

        async with receiver(moody) as url, aiohttp.ClientSession() as session:
            one = Receiver(url, session, dict, no_pause)
            async with Receivers([one]).running():
                one.put(event(1))
                await until(lambda: one.delivered == 1)
                assert set(tries) == {"id-1"}
                assert len(tries) == 6
                assert one.trouble == ""

    asyncio.run(story())


@pytest.mark.parametrize("status", [400, 404, 302])
def test_what_is_refused_for_good_is_not_sent_again(status: int) -> None:
    async def story() -> None:
        asked: list[str] = []

        async def no(request: web.Request) -> web.StreamResponse:
            asked.append((await request.json())["id"])
            return web.Response(status=status, headers={"Location": "/elsewhere"} if status == 302 else {})

        async with receiver(no) as url, aiohttp.ClientSession() as session:
            one = Receiver(url, session, dict, no_pause)
            async with Receivers([one]).running():
                one.put(event(1))
                one.put(event(2))
                await until(lambda: one.refused == 2)
                assert sorted(asked) == ["id-1", "id-2"]
                notifier: Any = SimpleNamespace(watch=None)
                (line,) = process._health(notifier, [one]).notes()
                assert line.endswith(f"2 refused (HTTP {status}, the last one)")

    asyncio.run(story())


def test_too_many_that_wait_cost_the_oldest_and_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.notify.delivery.WAITING_MAX", 3)

    async def story() -> None:
        async with aiohttp.ClientSession() as session:
            one = Receiver("http://127.0.0.1:9/", session, dict)
            for n in range(5):
                one.put(event(n))
            assert (one.waiting, one.dropped) == (3, 2)

    asyncio.run(story())


# -- settings --------------------


def test_addresses_come_from_a_file_and_are_never_shown(tmp_path: Path) -> None:
    file = tmp_path / "urls"
    settings = Settings(url_file=str(file))
    for text, said in (
        ("# nobody\n", "0 addresses, expected 1 to 8"),
        ("ftp://host/s3cret\n", "line 1: expected an address such as https://host/path"),
        ("https://host/a\n\nhttp://[s3cret\n", "line 3: expected an address"),
    ):
        file.write_text(text)
        with pytest.raises(SettingsError) as error:
            addresses(settings)
        assert said in str(error.value)
        assert "s3cret" not in str(error.value)
    file.write_text("# two\nhttps://a.example/hook\n http://b.example/ \n")
    assert addresses(settings) == ["https://a.example/hook", "http://b.example/"]
    with pytest.raises(SettingsError, match="KINDS: 'stop' is not one of marked"):
        Settings.from_environ({"EVALSTOP_NOTIFY_KINDS": "stop"})


def test_the_page_names_every_setting_and_kind() -> None:
    page = (ROOT / "docs" / "operate" / "notifications.md").read_text()
    for name, default, _ in describe():
        assert f"| `{name}` | `{default or ' '}` |" in page or (not default and f"| `{name}` |" in page), name
    assert all(f"`{kind}`" in page for kind in KINDS)
    example = page.split("```json")[1].split("```")[0]
    assert set(json.loads(example)) == {
        "specversion", "id", "source", "type", "subject", "time", "datacontenttype", "data",
    }  # fmt: skip
