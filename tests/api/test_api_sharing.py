"""spec.sharing of GPUPool and RLHFJob: what is refused, by the models and by the operator, and what becomes
of what is accepted."""

from __future__ import annotations

from typing import Any

import pytest
from api_cluster import Json
from api_examples import JOB, POOL, changed, pool

from controller.api import convert
from controller.api.sharing_terms import sharing, sharing_kind
from controller.policy.group_types import ResidencyTerms
from controller.policy.types import Problem

GB = 10**9
WORKER: Json = {
    "name": "worker",
    "image": "family:1",
    "resources": {"limits": {"nvidia.com/gpu": "4", "memory": "300G"}},
}
FAMILY: Json = {
    "name": "dense",
    "template": {"spec": {"containers": [WORKER]}},
    "replicas": 2,
    "gpusPerReplica": 4,
    "deviceBytes": 80 * GB,
    "residualBytes": 2 * GB,
    "hostBytes": 200 * GB,
}
OFFERED: Json = {"families": [FAMILY]}
ASKED: Json = {"family": "dense", "stateBytes": 39 * GB}
REF = {"ref": {"apiVersion": "batch/v1", "kind": "Job", "name": "mine"}}


def job(**more: Any) -> Json:
    return changed(JOB, "spec.sharing", {**ASKED, **more})


def problem(obj: Json, **spec: Any) -> str:
    found = convert.desired(obj, pool(**spec)).problem
    return "" if found is None else ": ".join(found)


def test_wish_and_offer_become_terms() -> None:
    obj = job(maxSlowdownPercent=20)
    found = convert.desired(obj, pool(sharing=OFFERED))
    assert found.problem is None
    assert found.sharing == ResidencyTerms("dense", 39 * GB, 20, sharing_kind(obj, "dense"))
    offered = sharing(pool(sharing={**OFFERED, "placement": "Pack", "maxResidents": 2}))
    assert offered is not None
    assert (offered.placement, offered.max_residents, offered.max_duty_percent) == ("Pack", 2, 80)
    (terms,) = offered.families
    assert (terms.workers, terms.host_bytes) == ((2, 4), 200 * GB)


def test_pool_without_sharing_offers_none() -> None:
    assert sharing(pool()) is None
    assert problem(job()).startswith("SharingNotOffered: spec.sharing: GPUPool")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"family": "other"}, "FamilyNotFound: spec.sharing.family: "),
        ({"family": "other"}, "has no family 'other'; it has: dense"),
        ({"stateBytes": 81 * GB}, "StateTooLarge: spec.sharing.stateBytes: 81000000000 is more"),
        ({"stateBytes": 81 * GB}, "at most 80000000000 is right"),
        ({"stateBytes": 0}, "spec.sharing.stateBytes"),
        ({"maxSlowdownPercent": -1}, "spec.sharing.maxSlowdownPercent"),
    ],
)
def test_wishes_that_cannot_be(asked: Json, said: str) -> None:
    assert said in problem(job(**asked), sharing=OFFERED)


def test_a_workload_that_is_referred_to_has_no_residency() -> None:
    said = problem(changed(job(), "spec.workload", REF), sharing=OFFERED)
    assert "sharing: is not allowed with workload.ref" in said


def test_gang_without_gpus_needs_a_residency() -> None:
    bare = changed(JOB, "spec.gang.gpusPerReplica", 0)
    assert "gang.gpusPerReplica: 0 is allowed with sharing only, expected at least 1" in problem(bare)
    assert not problem(changed(job(), "spec.gang.gpusPerReplica", 0), sharing=OFFERED)


@pytest.mark.parametrize("delegate", ["None", "Kueue"])
def test_only_the_pools_own_queue_gives_residencies(delegate: str) -> None:
    spec = {**POOL["spec"], "delegate": delegate, "sharing": OFFERED}
    if delegate == "Kueue":
        spec["kueue"] = {"localQueue": "q"}
    found = convert.parse_pool({**POOL, "spec": spec})
    assert isinstance(found, Problem)
    assert f"sharing: is not allowed with delegate {delegate}, only with Builtin" in found.message


def test_kind_is_of_what_would_change_a_jobs_turns() -> None:
    kinds = {
        sharing_kind(JOB, "dense"),
        sharing_kind(JOB, "other"),
        sharing_kind(changed(JOB, "metadata.namespace", "elsewhere"), "dense"),
        sharing_kind(changed(JOB, "metadata.labels", {"model": "7b"}), "dense"),
    }
    assert len(kinds) == 4
    assert sharing_kind(changed(JOB, "metadata.name", "another"), "dense") in kinds
