"""Terms on a real API server: it refuses what an earlier one writes, and the writer stops acting."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from controller.kube.cache import Cache
from controller.kube.client import Api
from controller.kube.connect import connect
from controller.kube.errors import NotLeading, Refused
from controller.kube.lease import Timing, served
from controller.kube.resources import GPUPOOLS, LEASES, RLHFJOBS, Resource
from controller.operator.process.leader_election import Leadership, LeadershipLost, Unopposed
from controller.operator.process.metrics import Metrics
from controller.operator.reconcile.status_writer import StatusWriter
from controller.operator.state.cluster import ClusterState
from deploy.local.plane import Plane
from tests.support.operator_rig import Rig, eventually

# Looks often; its term is as long as the product's, for a machine that is held up loses a short one.
FAST = Timing(15, 10.0, 0.2)


class FixedTerm(Unopposed):
    def __init__(self, epoch: int | None) -> None:
        self.epoch = epoch
        self.told: list[str] = []

    def note_later_term(self, why: str) -> None:
        self.told.append(why)


@pytest.mark.parametrize("resource", [RLHFJOBS, GPUPOOLS], ids=str)
def test_the_api_server_refuses_what_an_earlier_term_writes(rig: Rig, resource: Resource) -> None:
    async def story() -> None:
        async with rig:
            pool = await rig.make_pool()
            obj = pool if resource is GPUPOOLS else await rig.make_job("run")
            name, namespace = obj["metadata"]["name"], obj["metadata"].get("namespace")

            async def write(status: dict[str, Any] | None) -> dict[str, Any]:
                return await rig.api.merge_patch(
                    resource, name, {"status": status}, namespace, subresource="status"
                )

            async def refused(status: dict[str, Any] | None) -> None:
                with pytest.raises(Refused) as told:
                    await write(status)
                assert told.value.status == 422
                assert "status.epoch: must be at least 7, the term of office" in told.value.message

            await write({"observedGeneration": 1})  # of an operator without election
            await write({"epoch": 5})
            await write({"epoch": 7})
            await write({"epoch": 7, "observedGeneration": 2})
            await write({"observedGeneration": 3})  # without election again: the number stays
            await refused({"epoch": 6})
            await refused({"epoch": 6, "observedGeneration": 4})
            await refused({"epoch": None})
            await refused(None)
            found = await rig.api.get(resource, name, namespace)
            assert (found["status"]["epoch"], found["status"]["observedGeneration"]) == (7, 3)
            labelled = {"metadata": {"labels": {"a": "b"}}}
            await rig.api.merge_patch(resource, name, labelled, namespace)  # no status write: nobody's term

    asyncio.run(story())


def test_a_writer_of_an_earlier_term_is_told_and_one_without_a_term_leaves_the_number(rig: Rig) -> None:
    async def story() -> None:
        async with rig:
            metrics, cache = Metrics(), Cache()
            world = ClusterState(cache, lambda: 0.0)

            async def write(term: FixedTerm, capacity: int) -> bool:
                obj = await rig.api.get(GPUPOOLS, rig.pool_name)
                wanted = {**(obj.get("status") or {}), "capacity": capacity}
                return await StatusWriter(rig.api, cache, world, metrics, term).pool(obj, wanted)

            async def epoch() -> int | None:
                found = await rig.api.get(GPUPOOLS, rig.pool_name)
                number: int | None = found["status"].get("epoch")
                return number

            await rig.make_pool()
            assert await write(FixedTerm(3), 8)
            assert await epoch() == 3
            assert not await write(FixedTerm(4), 8), "a new term alone is no reason to write"
            assert await epoch() == 3
            new = FixedTerm(4)
            await StatusWriter(rig.api, cache, world, metrics, new).stamp(
                await rig.api.get(GPUPOOLS, rig.pool_name)
            )
            assert await epoch() == 4
            assert await write(FixedTerm(None), 16)
            assert await epoch() == 4
            old = FixedTerm(3)
            with pytest.raises(Refused):
                await write(old, 24)
            assert len(old.told) == 1
            assert old.told[0].startswith(f"GPUPool {rig.pool_name}: ")
            assert new.told == []

    asyncio.run(story())


async def candidate(kubeconfig: Path, name: str, namespace: str, serves: tuple[str, ...] = ()) -> Leadership:
    api = Api(await connect({"KUBECONFIG": str(kubeconfig)}), FAST.deadline / 2)
    return Leadership(api, namespace, "election", name, FAST, serves=serves)


def test_the_lease_tells_which_namespaces_its_holder_serves(plane: Plane, namespace: str) -> None:
    async def story() -> None:
        told = []
        for name, serves in (("one", ("demo", "lab")), ("two", ()), ("three", ("lab",))):
            leads = await candidate(plane.kubeconfig, name, namespace, serves)
            task = asyncio.create_task(leads.run())
            await asyncio.wait_for(leads.begin(), 30)
            told.append(served(await leads._api.get(LEASES, "election", namespace)))
            task.cancel()
            await leads.release()
        assert told == [{"demo", "lab"}, None, {"lab"}]

    asyncio.run(story())


def test_one_leads_gives_back_and_another_goes_on_on_a_real_server(plane: Plane, namespace: str) -> None:
    async def story() -> None:
        first, second = [await candidate(plane.kubeconfig, name, namespace) for name in ("one", "two")]
        tasks = [asyncio.create_task(first.run())]
        await asyncio.wait_for(first.begin(), 30)
        first.check()
        tasks.append(asyncio.create_task(second.run()))

        async def standby() -> bool:
            return second.problem() is None

        await eventually(standby, what="the second to stand by")
        assert second.role() == f"standby: one holds Lease {namespace}/election"
        with pytest.raises(NotLeading, match=f"Lease {namespace}/election is not this process's"):
            second.check()
        found = await first._api.get(LEASES, "election", namespace)
        spec = found["spec"]
        assert (spec["holderIdentity"], spec["leaseDurationSeconds"], spec["leaseTransitions"]) == (
            "one",
            FAST.duration,
            1,
        )
        tasks[0].cancel()
        await first.release()
        await asyncio.wait_for(second.begin(), 30)
        assert (first.leads, second.leads, second.epoch) == (False, True, 2)
        await second._api.delete(LEASES, "election", namespace, found["metadata"]["uid"])
        with pytest.raises(LeadershipLost, match="it was deleted"):
            await asyncio.wait_for(tasks[1], 30)
        assert not second.leads
        await second.release()

    asyncio.run(story())


def test_without_rights_to_leases_it_says_so(plane: Plane, installed: Path, namespace: str) -> None:
    """The operator's role is for its own namespace; in this one it has no rights."""

    async def story() -> None:
        term = await candidate(installed, "one", namespace)
        task = asyncio.create_task(term.run())

        async def told() -> bool:
            return "no right to" in (term.problem() or "")

        await eventually(told, what="the problem to be told")
        problem = term.problem() or ""
        assert f"no right to Lease {namespace}/election" in problem
        assert 'cannot get resource "leases"' in problem
        assert "apply Role evalstop-leader (get, create, patch)" in problem
        assert not term.leads
        assert not task.done(), "rights may come"
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await term.release()

    asyncio.run(story())
