"""An access Job whose pod the cluster refuses is told as a refusal, in the cluster's words.

It was told as nothing for ten minutes, and then as a Job that did not move.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from controller.kube.errors import Unavailable
from controller.kube.resources import EVENTS, Resource
from controller.operator.state import event_looks
from controller.operator.state.access_refusals import AccessRefusals, newest_words, refusal
from controller.operator.state.event_looks import FIRST, MOST
from controller.policy.job.record import Operation
from controller.policy.job.types import AccessView
from tests.support.fake_kubelet import FakeKubelet
from tests.support.operator_rig import Rig, eventually

QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")
VIEW = AccessView("secure-40-7", Operation.SECURE, finished=False)
QUOTA = 'pods "run-secure-40-7-0f2a1-x8" is forbidden: exceeded quota: small, requested: pods=1'
POD_SECURITY = (
    'pods "run-x" is forbidden: violates PodSecurity "restricted:latest": runAsUser=0 (pod must not set '
    "runAsUser=0)"
)


def event(message: str, at: str = "2026-11-24T00:00:00Z") -> dict[str, Any]:
    return {"reason": "FailedCreate", "message": message, "lastTimestamp": at}


class Known:
    """An operator's knowledge of refusals, over Events of the test's own; its time is turned by hand."""

    def __init__(self) -> None:
        self.now, self.events = 1000.0, [event(QUOTA)]
        self.asked: list[tuple[str | None, str]] = []
        self.touched: list[str] = []
        self.broken = False
        self.refusals = AccessRefusals(self, self.touched.append, lambda: self.now)  # type: ignore[arg-type]

    async def list(
        self, resource: Resource, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> tuple[list[dict[str, Any]], str]:
        assert resource == EVENTS
        self.asked.append((namespace, fields))
        if self.broken:
            raise Unavailable(0, "ConnectionBroken", "no answer")
        return self.events, "1"

    def view(self, uid: str = "job-1", view: AccessView = VIEW, pods: int = 0) -> AccessView:
        job = {"metadata": {"uid": uid, "namespace": "ns"}}
        return self.refusals.of("ns/run", view, job, [{}] * pods)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        asyncio.run(self.refusals.look_due())


def test_events_are_listed_of_one_job_alone_and_only_once_its_pod_should_be_there() -> None:
    known = Known()
    assert known.view() == VIEW
    known.wait(FIRST - 0.1)
    assert known.asked == []
    known.wait(0.2)
    assert known.asked == [("ns", "involvedObject.uid=job-1,reason=FailedCreate")]
    assert known.touched == ["ns/run"]
    told = known.view()
    assert (told.finished, told.hindered) == (False, "AccessJobRefused")
    assert told.message == f"the cluster refuses its access Job's pod: {QUOTA}"
    for _ in range(100):
        known.wait(MOST / 10)
        known.view()
    assert len(known.asked) < 20
    assert known.touched == ["ns/run"], "the same words are told once"


@pytest.mark.parametrize("ended", ["a pod", "an end", "another Job", "nobody speaks of it"])
def test_of_a_job_that_no_longer_waits_for_its_pod_nothing_is_listed(ended: str) -> None:
    known = Known()
    known.view()
    if ended == "another Job":
        known.view("job-2")
    elif ended == "nobody speaks of it":
        known.now += 10 * MOST + 1
    else:
        known.view(view=AccessView("secure-40-7", Operation.SECURE, finished=ended == "an end"), pods=1)
    known.wait(FIRST)
    assert [fields for _, fields in known.asked if "job-1" in fields] == []
    assert known.view("job-3") == VIEW


def test_events_that_cannot_be_listed_hinder_nothing() -> None:
    known = Known()
    known.view()
    known.broken = True
    known.wait(FIRST)
    assert known.view() == VIEW
    known.broken = False
    known.wait(2 * FIRST)
    assert known.view().hindered == "AccessJobRefused"


def test_no_event_means_nothing() -> None:
    known = Known()
    known.events = []
    known.view()
    known.wait(FIRST)
    assert known.view() == VIEW
    assert known.touched == []


def test_a_trainer_whose_pods_are_refused_is_told_of_it_until_they_are_there() -> None:
    known = Known()
    job = {"metadata": {"uid": "w", "namespace": "ns"}, "status": {"startTime": "2026-11-24T00:00:00Z"}}

    def told(pods: int) -> str | None:
        return known.refusals.of_trainer("ns/run", job, pods, 2)

    assert told(2) is None
    known.wait(FIRST)
    assert known.asked == [], "it has its pods"
    assert told(1) is None
    known.wait(FIRST)
    assert told(1) == QUOTA, "a gang of which one pod is refused"
    assert known.touched == ["ns/run"]
    assert told(2) is None
    job["status"]["startTime"] = "2026-11-24T00:05:00Z"
    assert told(0) is None
    known.wait(FIRST)
    assert told(0) is None, "the Event is of an earlier start"
    known.events.append(event("new", "2026-11-24T00:05:00Z"))
    known.wait(2 * FIRST)
    assert told(0) == "new"


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (QUOTA, "AccessJobRefused"),
        (POD_SECURITY, "UserRefused"),
        ('pods "x" is forbidden: violates PodSecurity "baseline:latest": seLinuxOptions', "AccessJobRefused"),
        ('admission webhook "runAsUser.example" denied the request: no', "AccessJobRefused"),
    ],
)
def test_a_refused_user_is_told_from_other_refusals(message: str, reason: str) -> None:
    assert refusal(newest_words([event(message)])) == (
        reason,
        f"the cluster refuses its access Job's pod: {message}",
    )


def test_the_newest_event_counts_cleaned_and_bounded() -> None:
    old = event("old", "2026-11-24T00:00:00Z")
    new = event("new \x1b[31mred\nline" + "x" * 5000, "2026-11-24T00:00:01Z")
    _, message = refusal(newest_words([new, old]))
    assert "new \N{REPLACEMENT CHARACTER}[31mred line" in message
    assert len(message) <= 1024
    assert message.isprintable()


def test_a_quota_that_refuses_the_pod_is_named_and_the_pod_comes_once_it_is_gone(
    rig: Rig, kubelet: FakeKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Event is that of a real Job controller."""
    monkeypatch.setattr(event_looks, "FIRST", 0.5)
    monkeypatch.setattr(event_looks, "GRAIN", 0.2)

    async def story() -> None:
        async with rig:
            await rig.make_pool()
            await rig.make_job("run")
            async with rig.operator():
                await eventually(lambda: rig.is_true("run", "Running"), what="the trainer's pods")
                body = {"apiVersion": "v1", "kind": "ResourceQuota", "spec": {"hard": {"pods": "0"}}}
                metadata = {"name": "none-left", "namespace": rig.namespace}
                quota = await rig.api.create(QUOTAS, {**body, "metadata": metadata})
                await rig.make_job("late")
                rig.scores["run"] = [1.0, 2.0, 3.0]
                await eventually(
                    lambda: rig.has_reason("run", "BestCheckpointSecured", "AccessJobRefused"),
                    what="the refusal to be told",
                )
                found = await rig.condition("run", "BestCheckpointSecured")
                assert found is not None
                assert "the cluster refuses its access Job's pod" in found[2]
                assert "forbidden" in found[2]
                assert "quota" in found[2]

                async def late_refused() -> bool:
                    trouble = (await rig.record("late")).pod_trouble
                    return (
                        trouble is not None and trouble.waits == "FailedCreate" and "quota" in trouble.message
                    )

                await eventually(late_refused, what="the trainer's refusal to be told")
                await rig.api.delete(QUOTAS, "none-left", rig.namespace, quota["metadata"]["uid"])
                await eventually(
                    lambda: rig.is_true("run", "BestCheckpointSecured"), 90.0, "the pod to come by itself"
                )

    asyncio.run(story())
