"""Statuses that the API server refuses for good: whoever looks at such a run is told, and none looks well."""

from __future__ import annotations

import asyncio
import copy
import json
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from controller import names
from controller.cli import cluster
from controller.cli.main import app
from controller.kube import unwritten_statuses
from controller.kube.cache import Cache
from controller.kube.client import Api
from controller.kube.connect import connect
from controller.kube.errors import ApiError, from_response
from controller.kube.lease import NAMED_BYTES, Timing, UnwrittenNote, unwritten
from controller.kube.packed import Packed
from controller.kube.resources import GPUPOOLS, RLHFJOBS
from controller.kube.unwritten_statuses import LAPSED, LASTING, UnwrittenStatuses
from controller.operator.engine import Engine
from controller.operator.process.leader_election import Leadership
from deploy.local.plane import Plane
from tests.support.operator_rig import SETTINGS, Rig, eventually

FIELD = 'strict decoding error: unknown field "status.guardrails"'
AT = 1_790_000_000.0


def thing(name: str, uid: str = "1", version: str = "1") -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "demo", "uid": uid, "resourceVersion": version}}


def answered(status: int, reason: str = "", message: str = FIELD) -> ApiError:
    body = json.dumps({"kind": "Status", "reason": reason, "message": message}).encode()
    return from_response(status, body, {}) if status else ApiError(0, "Timeout", "no answer")


def test_what_is_refused_for_long_is_told_and_nothing_that_comes_and_goes() -> None:
    no, long = answered(422, "Invalid"), LASTING + 30
    one = f"0 the status of RLHFJob demo/a ({no})"
    for story, told in (
        ([(0, no), (1, no), (2, no)], one),
        ([(0, no), (60, no)], ""),  # two tries
        ([(61 - LASTING, no), (61, no), (62, no), (63, no)], ""),  # not for long
        ([(0, no), (1, no), (2, no), (3, None)], ""),
        ([(0, no), (1, no), (2, None), (3, no), (4, no)], ""),
        ([(0, no), (1, answered(409)), (2, no), (3, no)], one),
        *([[(n, answered(status)) for n in range(9)], ""] for status in (0, 401, 404, 409, 429)),
        *(
            [[(n, answered(code)) for n in range(9)], one.replace(str(no), str(answered(code)))]
            for code in (400, 403, 413, 500)
        ),
        ([(-LAPSED, no), (1 - LAPSED, no), (2 - LAPSED, no)], ""),  # tried no more
        ([(0, no), (1, no), (2, no), (3, "gone")], ""),
        ([(0, no), (1, no), (2, no), (3, "anew")], ""),
    ):  # fmt: skip
        cache, clock = Cache(), SimpleNamespace(now=0.0)
        seen = UnwrittenStatuses(cache, lambda c=clock: c.now, lambda c=clock: AT + c.now)  # type: ignore[misc]
        cache.put(RLHFJOBS, thing("a"))
        for at, answer in story:
            clock.now = at
            if answer in ("gone", "anew"):
                cache.drop(RLHFJOBS, thing("a", version="2"))
                if answer == "anew":
                    cache.put(RLHFJOBS, thing("a", "2", "3"))
            elif answer is None:
                seen.wrote(RLHFJOBS, thing("a"))
            else:
                seen.refused(RLHFJOBS, thing("a"), answer)
        clock.now = long
        found = seen.lasting()
        said = "" if found is None else f"{found.since - AT:g} {found.which()} ({found.why})"
        assert said == told, story
        assert seen.keys(RLHFJOBS) == (["demo/a"] if told else [])
        assert seen.keys(GPUPOOLS) == []


def test_who_is_refused_is_told_without_unpacking_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each renewal of the Lease unpacked all of them: a second, with 5,000."""
    cache, clock = Cache(), SimpleNamespace(now=0.0)
    seen = UnwrittenStatuses(cache, lambda: clock.now, lambda: AT + clock.now)
    for name in "abc":
        cache.put(RLHFJOBS, thing(name))
        for clock.now in (0.0, 1.0, 2.0):
            seen.refused(RLHFJOBS, thing(name), answered(422, "Invalid"))
    cache.put(RLHFJOBS, thing("b", version="2"))
    cache.drop(RLHFJOBS, thing("c", version="2"))
    cache.put(RLHFJOBS, thing("c", "2", "3"))
    opened, unpack = list[str](), Packed.open

    def watched(packed: Packed) -> dict[str, Any]:
        opened.append(packed.key)
        return unpack(packed)

    monkeypatch.setattr(Packed, "open", watched)
    clock.now = LASTING + 2
    for _ in range(3):
        assert seen.keys(RLHFJOBS) == ["demo/a", "demo/b"]
    assert opened == ["demo/b", "demo/c"], "what has changed, once"


def test_a_lease_tells_of_them_in_few_bytes_and_what_cannot_be_read_is_nothing() -> None:
    one = UnwrittenNote.of(AT, ["RLHFJob/demo/a"], f"Invalid (422): {FIELD}")
    few = UnwrittenNote.of(AT, ["GPUPool/a100", "RLHFJob/demo/a"], "two\nlines \x1b[31mof it")
    many = UnwrittenNote.of(AT, [f"RLHFJob/demo/{n:0>250}" for n in range(90)], "x" * 900)
    assert (many.number, len(many.named)) == (90, 2)
    assert len(many.written().encode()) < NAMED_BYTES + 300
    assert many.which(1).endswith("0 and 89 more")
    assert few.which() == "the statuses of GPUPool a100, RLHFJob demo/a"
    assert few.why == "two lines \N{REPLACEMENT CHARACTER}[31mof it"
    assert few.among({"RLHFJob/demo/a", "RLHFJob/demo/b"}) == few._replace(
        number=1, named=("RLHFJob/demo/a",), why=""
    )
    assert few.among({"GPUPool/a100"}) == few._replace(number=1, named=("GPUPool/a100",))
    assert few.among({"RLHFJob/demo/b"}) is None
    for written, read in (
        *((note.written(), note) for note in (one, few, many)),
        ("yesterday 1 RLHFJob/demo/a no", None),
        ("2026-11-28T00:43:47Z some RLHFJob/demo/a no", None),
        ("2026-11-28T00:43:47Z 1 RLHFJob/demo/a", None),
        ("", None),
    ):
        assert unwritten({"metadata": {"annotations": {names.ANNOTATION_UNWRITTEN: written}}}) == read
    assert unwritten({"metadata": {}}) is None


CRD = "rlhfjobs.evalstop.dev"
TOLD = "the API server has refused the status of RLHFJob {key} for "
LOOKING = ["list"], ["get", "run"], ["why", "run"], ["top", "--once"], ["doctor", "run"], ["doctor"]


def test_a_status_that_the_definition_does_not_know_is_told_until_it_does(
    plane: Plane, rig: Rig, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator was upgraded without crds/: runs fell for good, and all looked read and well."""
    monkeypatch.setattr(unwritten_statuses, "LASTING", 3.0)
    # Where commands look for the Lease. No other module may see this: some are loaded by the commands.
    monkeypatch.setattr(cluster, "names", SimpleNamespace(**vars(names) | {"NAMESPACE": namespace}))
    told = TOLD.format(key=f"{namespace}/run")
    whole = json.loads(plane.kubectl("get", "crd", CRD, "-o", "json"))
    older = copy.deepcopy(whole)
    [version] = older["spec"]["versions"]
    del version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]["secured"]
    for obj in (whole, older):
        del obj["metadata"]["resourceVersion"]

    async def defined(obj: dict[str, Any]) -> None:
        await asyncio.to_thread(plane.kubectl, "replace", "-f", "-", stdin=json.dumps(obj))

    async def said(words: list[str]) -> str:
        environ = {"KUBECONFIG": str(plane.kubeconfig), "COLUMNS": "200"}
        more = ["--operator-namespace", namespace] if words == ["doctor"] else []
        done = await asyncio.to_thread(CliRunner().invoke, app, [*words, *more, "-n", namespace], env=environ)
        return " ".join(done.output.split())

    async def story() -> None:
        async with rig:
            await rig.make_pool()
            api = Api(await connect({"KUBECONFIG": str(plane.kubeconfig)}), 5.0)
            term = Leadership(api, namespace, names.OPERATOR, "operator-0", Timing(15, 10.0, 0.3))
            engine = Engine(SETTINGS, rig._connection, scrape=rig._scrape, term=term)
            stop = asyncio.Event()
            running = asyncio.create_task(engine.run(stop))
            try:
                await rig.make_job("run", mode="Enforce")
                await eventually(lambda: rig.is_true("run", "Running"), what="it to run")
                for words in LOOKING:
                    assert told not in await said(words)
                await defined(older)
                rig.scores["run"] = [0.2, 0.5, 0.4]
                await eventually(lambda: _has(said(["list"]), told), what="list to tell", every=1.0)
                for words in LOOKING:
                    text = await said(words)
                    assert told in text, (words, text)
                    assert 'unknown field "status.secured"' in text, (words, text)
                for words in (["doctor"], ["doctor", "run"]):
                    assert "nothing wrong" not in await said(words)
                    assert "--force-conflicts -f crds" in await said(words)
                notes = " ".join(engine.health.notes())
                assert "the status of 1 object is refused, since " in notes
                assert "evalstop_failing_jobs 1.0" in engine.metrics.text().decode()
                assert (await rig.record("run")).secured is None
                await defined(whole)
                await eventually(lambda: _secured(rig), 120.0, "the write after it")
                await eventually(lambda: _has(said(["list"]), told, False), what="quiet", every=1.0)
                for words in LOOKING:
                    assert told not in await said(words)
                assert "evalstop_failing_jobs 0.0" in engine.metrics.text().decode()
            finally:
                await defined(whole)
                stop.set()
                assert await running == 0

    asyncio.run(story())


async def _has(said: Any, words: str, wanted: bool = True) -> bool:
    return (words in await said) is wanted


async def _secured(rig: Rig) -> bool:
    return (await rig.record("run")).secured is not None
