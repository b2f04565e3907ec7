"""Who speaks for a gang, as the operator finds out: pods in its cache, pages by address, plans, statuses."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest
from test_operator_watched import KEY, Loop, child, pod, pool, rlhfjob

from controller.api import convert
from controller.kube.cache import Cache
from controller.kube.resources import GPUPOOLS, JOBS, PODS, RLHFJOBS
from controller.metrics import GangScraper, Target
from controller.operator.process.metrics import Metrics
from controller.operator.reconcile.plan_cache import PlanCache
from controller.operator.reconcile.scrape_targets import ScrapeTargets
from controller.operator.state.cluster import ClusterState
from controller.policy.job import JobRecord, Page, ScrapeOutcome, ScrapeView
from controller.policy.types import Attempt, EvalPoint

NOW, SIZE = 1.9e9, 3


class Operator:
    """The operator's parts from the cache to the status, with the pages of a gang of three.

    ``pages``: by completion index, the life that answers there, with how many evals; the others refuse.
    """

    def __init__(self, speaker: Any = "Any", status: dict[str, Any] | None = None) -> None:
        self.pages: dict[int, tuple[str, int]] = {}
        self.asked: list[int] = []
        self.now, self.version = 100.0, 1000
        self.cache = Cache()
        self.cluster = ClusterState(self.cache, time.monotonic)
        self.plans = PlanCache(self.cluster, Metrics(), lambda: NOW)
        self.loop, self.targets = Loop(), ScrapeTargets(self.cluster, Metrics())
        self.gangs = GangScraper(self.scrape, self.targets.members, monotonic=lambda: self.now)
        self.targets.connect(self.loop, self.gangs)  # type: ignore[arg-type]
        self.cache.put(GPUPOOLS, pool())
        self.cache.put(JOBS, child())
        obj = rlhfjob()
        obj["spec"]["gang"]["replicas"] = SIZE
        obj["spec"]["scrape"] = {"speaker": speaker}
        obj["status"]["admission"]["nodes"] = [f"n{i}" for i in range(SIZE)]
        obj["status"] |= status or {}
        self.obj = obj
        self.cache.put(RLHFJOBS, obj)
        for index in range(SIZE):
            self.pod(index)

    def pod(self, index: int, uid: str = "", ip: str = "", **labels: str) -> None:
        """Put a member's pod into the cluster, in place of the one that was there."""
        self.version += 1
        made = pod(self.version)
        made["metadata"] |= {"name": f"train-{index}", "uid": uid or f"pod-{index}"}
        made["metadata"]["creationTimestamp"] = f"2026-10-01T00:00:{self.version - 1000:02d}Z"
        made["metadata"]["labels"] |= {"batch.kubernetes.io/job-completion-index": str(index), **labels}
        made["status"]["podIP"] = ip or f"10.0.0.{index}"
        self.cache.put(PODS, made)

    async def scrape(self, target: Target) -> ScrapeView:
        index = int(target.ip.rpartition(".")[2]) % 10
        self.asked.append(index)
        view = ScrapeView(ScrapeOutcome.UNREACHABLE, f"{target.url}: refused", at=NOW)
        if index in self.pages:
            life, evals = self.pages[index]
            attempt = Attempt(1, life)
            points = tuple(EvalPoint(10 * (i + 1), 0.1, attempt) for i in range(evals))
            view = ScrapeView(
                ScrapeOutcome.OK,
                at=NOW,
                metrics_seen=("gold_reward",),
                points=points,
                page=Page("uid", attempt),
            )
        return replace(view, pod=target.pod, pod_created=target.pod_created, member=target.member)

    def turn(self) -> JobRecord:
        """Scrape once, an interval later, plan and write; return what was written."""
        self.now += 15.0
        self.asked = []
        loaded = self.cluster.load(KEY)
        assert loaded is not None
        self.targets.follow(loaded)
        if (target := self.loop.targets.get(KEY)) is not None:
            self.targets.deliver(KEY, asyncio.run(self.gangs.scrape(target)))
        full = self.plans.newest_plan(KEY)
        assert full is not None
        self.version += 1
        self.obj = {**self.obj, "status": convert.status(full.plan.record, full.loaded.desired, NOW)}
        self.obj["metadata"] = {**self.obj["metadata"], "resourceVersion": str(self.version)}
        self.cache.put(RLHFJOBS, self.obj)
        self.cluster.took_in(full.loaded)
        return full.plan.record

    def told(self) -> tuple[str, str]:
        """Reason and message of MetricsAvailable after a turn."""
        found = self.turn().condition("MetricsAvailable")
        assert found is not None
        return found.reason, found.message


def test_of_a_gang_of_which_index_1_speaks_its_evals_are_read_and_no_other_is_asked_any_more() -> None:
    op = Operator()
    op.pages = {1: ("aa", 2)}
    record = op.turn()
    assert sorted(op.asked) == [0, 1, 2]
    assert [e.step for e in record.evals] == [10, 20]
    assert (record.lives[-1].pod, record.lives[-1].member) == ("pod-1", 1)
    op.pages = {1: ("aa", 3)}
    assert len(op.turn().evals) == 3
    assert op.asked == [1]
    op.turn()
    assert op.asked == [1]


def test_a_restart_of_the_operator_asks_the_one_first_that_spoke() -> None:
    op = Operator()
    op.pages = {2: ("aa", 2)}
    op.turn()
    again = Operator(status=op.obj["status"])
    again.pages = {2: ("aa", 3)}
    assert len(again.turn().evals) == 3
    assert again.asked[0] == 2
    again.turn()
    assert again.asked == [2]


def test_a_restarted_pod_is_asked_first_in_the_place_of_the_one_that_spoke() -> None:
    op = Operator()
    op.pages = {1: ("aa", 2)}
    op.turn()
    op.pod(1, uid="pod-1b", ip="10.0.0.11")
    op.pages = {1: ("bb", 0)}
    record = op.turn()
    assert op.asked[0] == 1
    assert record.lives[-1].attempt == Attempt(1, "bb")
    assert record.lives[-1].pod == "pod-1b"


def test_two_that_speak_are_named_and_neither_is_believed() -> None:
    op = Operator()
    op.pages = {0: ("aa", 2), 2: ("bb", 3)}
    reason, message = op.told()
    assert reason == "SeveralSpeakers"
    assert "pods train-0 (index 0) and train-2 (index 2)" in message
    assert op.turn().evals == ()
    del op.pages[0]
    record = op.turn()
    assert len(record.evals) == 3
    assert record.condition("MetricsAvailable").status  # type: ignore[union-attr]


def test_a_speaker_that_moves_is_followed_though_its_pod_is_older() -> None:
    op = Operator()
    op.pod(2, uid="pod-2b")  # made after the others
    op.pages = {2: ("aa", 2)}
    op.turn()
    op.pages = {}
    reason, message = op.told()
    assert reason == "Unreachable"
    assert (
        "of 3 members with an address none answers as this run; http://10.0.0.2:9400/metrics: refused"
        in message
    )
    op.pages = {0: ("bb", 0)}
    record = op.turn()
    assert record.lives[-1].attempt == Attempt(1, "bb")
    assert record.lives[-1].member == 0
    op.turn()
    assert op.asked == [0]


def test_only_the_index_that_the_spec_names_is_asked() -> None:
    op = Operator(speaker=2)
    op.pages = {0: ("aa", 2), 2: ("bb", 3)}
    assert len(op.turn().evals) == 3
    assert op.asked == [2]
    del op.pages[2]
    assert op.told()[0] == "Unreachable"
    assert op.asked == [2]


def test_only_the_pod_with_the_label_is_asked_and_two_that_have_it_are_named() -> None:
    op = Operator(speaker="role=head")
    assert op.told() == ("NoPods", "no pod with label role=head has an address yet")
    op.pod(1, role="head")
    op.pages = {0: ("aa", 2), 1: ("bb", 3)}
    assert len(op.turn().evals) == 3
    assert op.asked == [1]
    op.pod(2, role="head")
    reason, message = op.told()
    assert (reason, op.asked) == ("SeveralSpeakers", [])
    assert "label role=head is on pods train-1 (index 1) and train-2 (index 2)" in message


@pytest.mark.parametrize(("speaker", "said"), [("some", "'some': expected Any"), (3, "gang.replicas 3")])
def test_what_nobody_may_write_is_refused_by_name(speaker: Any, said: str) -> None:
    op = Operator(speaker=speaker)
    accepted = op.turn().condition("Accepted")
    assert accepted is not None
    assert not accepted.status
    assert "scrape" in accepted.message
    assert said in accepted.message
    assert op.asked == []
