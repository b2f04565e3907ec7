"""A webhook on Jobs that does not answer, on the real control plane: told on every job that it meets, for as
long as it lasts; then everything is made up for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from controller.kube.resources import Resource
from tests.support.fake_kubelet import FakeKubelet
from tests.support.operator_rig import Rig, eventually

WEBHOOKS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    namespaced=False,
)


@asynccontextmanager
async def nobody_answers(rig: Rig) -> AsyncIterator[None]:
    """Have the API server ask somebody about each Job of the test's namespace, where nobody listens."""
    asked = {
        "name": "jobs.evalstop.test",
        "clientConfig": {"url": "https://127.0.0.1:1/jobs"},
        "rules": [
            {
                "apiGroups": ["batch"],
                "apiVersions": ["v1"],
                "resources": ["jobs"],
                "operations": ["CREATE", "UPDATE"],
            }
        ],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": rig.namespace}},
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
    }
    made = await rig.api.create(WEBHOOKS, {"metadata": {"name": rig.namespace}, "webhooks": [asked]})
    try:
        yield
    finally:
        await rig.api.delete(WEBHOOKS, rig.namespace, None, made["metadata"]["uid"])


def test_a_webhook_that_does_not_answer_is_told_until_it_does(rig: Rig, kubelet: FakeKubelet) -> None:
    async def told(name: str, type_: str) -> Any:
        found = await rig.condition(name, type_)
        return found if found is not None and found[:2] == (False, "WebhookFails") else None

    async def gone(name: str) -> bool:
        return await rig.condition(name, "ActionsCarriedOut") is None

    async def story() -> None:
        async with rig:
            await rig.make_pool()
            await rig.make_job("over", scrape={"firstEvalSeconds": 10})
            async with rig.operator():
                await eventually(lambda: rig.is_true("over", "Running"), what="it to run")
                async with nobody_answers(rig):
                    # Nothing that runs needs the API server for a Job, until there is a best to be secured.
                    rig.scores["over"] = [0.2, 0.5, 0.4]
                    *_, said = await eventually(
                        lambda: told("over", "ActionsCarriedOut"), what="the access Job's failure to be told"
                    )
                    assert 'failed calling webhook "jobs.evalstop.test"' in said
                    await eventually(lambda: rig.is_true("over", "NeedsAttention"), what="a warning")
                    attention = await rig.condition("over", "NeedsAttention")
                    assert attention is not None
                    assert attention[1] == "Unsafe"
                    assert attention[2].startswith("WebhookFails: ")
                    # A new one is not started, and not "not looked at", either.
                    await rig.make_job("next")
                    *_, said = await eventually(lambda: told("next", "Accepted"), what="it on a new job")
                    assert "tried again" in said
                    await rig.patch("over", {"spec": {"runState": "Stopped"}})

                    async def stuck() -> bool:
                        found = await rig.condition("over", "NeedsAttention")
                        return found is not None and found[1] == "Stuck"

                    await eventually(stuck, what="the stop that is held up to be told")
                await eventually(lambda: gone("over"), 90, what="it to be over")
                await eventually(lambda: rig.is_true("over", "GPUsReleased"), what="the stop")
                await eventually(lambda: rig.is_true("next", "Running"), what="the new job to run")
                assert not await rig.is_true("over", "NeedsAttention")

    asyncio.run(story())


def test_the_next_leader_keeps_what_is_told(rig: Rig, kubelet: FakeKubelet) -> None:
    """It knows nothing yet of what is let through: a fault that lasts is not over with a new process."""

    async def since() -> float | None:
        found = (await rig.record("over")).condition("ActionsCarriedOut")
        return found.since if found is not None else None

    async def story() -> None:
        async with rig:
            await rig.make_pool()
            await rig.make_job("over")
            async with rig.operator():
                await eventually(lambda: rig.is_true("over", "Running"), what="it to run")
                async with nobody_answers(rig):
                    rig.scores["over"] = [0.2, 0.5, 0.4]
                    began = await eventually(since, what="it to be told")
            # (The webhook answers again, and nobody is there to see it.)
            async with nobody_answers(rig), rig.operator():
                rig.scores["over"] = [0.2, 0.5, 0.4, 0.45]

                async def took_in() -> bool:
                    return (await rig.record("over")).evals_seen == 4

                await eventually(took_in, what="the new leader's pass")
                assert await since() == began
            async with rig.operator():
                await eventually(lambda: rig.is_true("over", "BestCheckpointSecured"), what="the pin")

                async def over() -> bool:
                    return await since() is None

                await eventually(over, what="it to be over")

    asyncio.run(story())
