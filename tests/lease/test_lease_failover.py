"""Two real operators and a real API server; the leader is killed, hung or cut off in the middle of a stop.

`pytest tests/lease/test_lease_failover.py -s` prints how long taking over took; EVALSTOP_TEST_LEASE=15 uses
the product's own timing instead of a shorter one.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections import defaultdict
from pathlib import Path

import pytest

from controller import names
from controller.api import convert
from controller.kube.resources import JOBS, LEASES, RLHFJOBS
from tests.support.fake_kubelet import FakeKubelet
from tests.support.operator_rig import Rig, eventually
from tests.support.replicas import Operator, Trainers, Wire, Witness, api_address, through

RISE_AND_FALL = [1.0, 2.0, 3.0, 4.0, 3.5, 3.0, 2.5]
LEASE = int(os.environ.get("EVALSTOP_TEST_LEASE", "6"))


SETTINGS = {
    "EVALSTOP_LEASE_SECONDS": str(LEASE),
    "EVALSTOP_LEASE_RENEW_SECONDS": f"{LEASE * 2 / 3:.2f}",
    "EVALSTOP_LEASE_RETRY_SECONDS": f"{LEASE * 2 / 15:.2f}",
}


@pytest.mark.parametrize(
    ("fault", "skews"),
    [("killed", (0.0, 0.0)), ("hung", (0.0, 0.0)), ("cut off", (600.0, -600.0))],
    ids=["killed", "hung", "cut-off-with-clocks-20-minutes-apart"],
)
def test_the_leader_fails_in_the_middle_of_a_stop(
    rig: Rig,
    kubelet: FakeKubelet,
    installed: Path,
    tmp_path: Path,
    fault: str,
    skews: tuple[float, float],
) -> None:
    wire = Wire(*api_address(installed))
    rig.names(["over", "next"])
    trainers = Trainers(rig.scores, rig.ports)
    first = Operator("first", through(wire, installed, tmp_path), tmp_path, SETTINGS, skews[0])
    second: list[Operator] = []

    async def stopping() -> bool:
        """The decision is written; its best checkpoint is being copied, which nobody answers yet."""
        access, _ = await rig.api.list(JOBS, rig.namespace, labels=f"{names.LABEL_OPERATION}=retain")
        return bool(access) and (await rig.record("over")).decision is not None

    async def story() -> None:
        async with rig, Witness(rig.api, rig.namespace, rig.pool_name) as witness:
            await eventually(lambda: first.says("leader"), what="the first to lead")
            second.append(Operator("second", installed, tmp_path, SETTINGS, skews[1]))
            await rig.make_pool()
            scrape = {"intervalSeconds": 5}
            await rig.make_job("over", replicas=2, scrape=scrape)
            await eventually(lambda: rig.is_true("over", "Running"))
            await rig.make_job("next", replicas=2, scrape=scrape)
            for job in ("over", "next"):
                found = await rig.api.get(RLHFJOBS, job, rig.namespace)
                trainers.uids[job] = found["metadata"]["uid"]
            rig.scores["over"] = RISE_AND_FALL[:4]
            await eventually(lambda: rig.is_true("over", "BestCheckpointSecured"))
            await eventually(lambda: second[0].says("standby"), what="the second to be ready")
            kubelet.slow_store.set()
            rig.scores["over"] = RISE_AND_FALL
            await eventually(stopping, what="the stop to be under way")

            began = time.monotonic()
            if fault == "killed":
                first.process.kill()
            elif fault == "hung":
                first.stop()
            else:
                wire.hold()
                kubelet.answer_late()  # the first one hears of it, and wants to go on
            await eventually(lambda: second[0].says("leader"), what="the second to lead")
            kubelet.answer_late()
            if fault == "hung":
                first.wake()
            await eventually(lambda: handed_over(rig), what="the stop to be carried out")
            if fault == "cut off":
                assert wire.kept, "nothing was on its way when the wire was cut"
                wire.heal()  # what the first one sent long ago arrives now
            assert await first.ended() == (-9 if fault == "killed" else 1)
            await check_the_end(rig, kubelet)
            took = check_the_record(rig, witness, began)
            print(f"\nleader {fault}: acted again after {took:.1f} s (lease {LEASE} s)")
            if fault != "killed":
                assert "was not renewed for" in first.log.read_text()
            second[0].process.terminate()
            assert await second[0].ended() == 0
            lease = await rig.api.get(LEASES, "evalstop-operator", "evalstop-system")
            assert "holderIdentity" not in lease["spec"], "given back: the next one need not wait"

    try:
        asyncio.run(story())
    except BaseException:
        for operator in (first, *second):
            print(f"--- {operator.log.name}\n{operator.log.read_text()[-6000:]}")
        raise
    finally:
        for operator in (first, *second):
            operator.close()
        wire.close()
        trainers.close()


async def handed_over(rig: Rig) -> bool:
    over = await rig.record("over")
    return (
        over.decision is not None
        and over.decision.handed_at is not None
        and await rig.is_true("next", "Running")
    )


async def check_the_end(rig: Rig, kubelet: FakeKubelet) -> None:
    over, following = await rig.record("over"), await rig.record("next")
    assert over.decision is not None
    assert over.decision.handed_to == f"{rig.namespace}/next"
    assert [kept.step for kept in over.retained] == [40]
    assert (over.attempt, following.attempt) == (1, 1)
    assert following.admission is not None
    assert following.admission.source == f"{rig.namespace}/over"
    assert kubelet.store.done("retain") == [40]
    assert len(await rig.pods("next")) == 2
    assert await rig.pods("over") == []


def check_the_record(rig: Rig, witness: Witness, began: float) -> float:
    """Nothing was done twice. Returns when the new term first wrote, in s since ``began``."""
    epochs: dict[str, list[int]] = defaultdict(list)
    for kind in ("RLHFJob", "GPUPool"):
        for seen in witness.of(kind):
            if "epoch" in seen.status:
                epochs[seen.name].append(seen.status["epoch"])
    terms: set[int] = set()
    assert {f"{rig.namespace}/over", f"{rig.namespace}/next", rig.pool_name} == set(epochs)
    for name, numbers in epochs.items():
        assert numbers == sorted(numbers), (
            f"{name}: a status of an earlier term after one of a later: {numbers}"
        )
        terms.update(numbers)
    assert len(terms) == 2, epochs
    assert max(terms) == min(terms) + 1
    suspended = [bool(seen.obj["spec"].get("suspend")) for seen in witness.of("Job", "over")]
    changes = [now for before, now in itertools.pairwise(suspended) if now != before]
    assert changes == [False, True], f"started once and suspended once, not {suspended}"
    records = [convert.record(seen.status) for seen in witness.of("RLHFJob", "over")]
    assert len({r.decision.at for r in records if r.decision is not None}) == 1, "the stop was decided once"
    records = [convert.record(seen.status) for seen in witness.of("RLHFJob", "next")]
    assert {r.admission.number for r in records if r.admission is not None} == {1}
    return min(s.at for s in witness.seen if s.status.get("epoch") == max(terms)) - began
