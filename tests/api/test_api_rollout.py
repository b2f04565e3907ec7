"""spec.rollout and spec.lending: what is refused, by the models, by the API server and by the operator, and
what becomes of what is accepted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from api_cluster import GROUP, Json, install, jobs, refusal
from api_examples import JOB, POOL, changed, pool

from controller.api import convert
from controller.policy.actor_types import Lending, RolloutTerms
from deploy.local.plane import Plane

ENGINE: Json = {"name": "engine", "image": "engine:1", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
ROLLOUT: Json = {
    "template": {"spec": {"containers": [ENGINE]}},
    "gpusPerActor": 1,
    "actors": {"min": 2, "max": 6, "static": 3},
}
REF = {"ref": {"apiVersion": "batch/v1", "kind": "Job", "name": "mine"}}


def job(**more: Any) -> Json:
    return changed(JOB, "spec.rollout", {**ROLLOUT, **more})


def problem(obj: Json, **spec: Any) -> str:
    found = convert.desired(obj, pool(**spec)).problem
    return "" if found is None else ": ".join(found)


COUNTS: list[tuple[dict[str, int], str]] = [
    ({"min": 4, "max": 3, "static": 3}, "min is 4, max 3: expected at most max"),
    ({"min": 2, "max": 6, "static": 1}, "static is 1, expected from min, 2, to max, 6"),
    ({"min": 2, "max": 6, "static": 7}, "static is 7, expected from min, 2, to max, 6"),
]


@pytest.mark.parametrize(("actors", "said"), COUNTS)
def test_counts_that_cannot_be(actors: dict[str, int], said: str) -> None:
    assert said in problem(job(actors=actors))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("gpusPerActor", 0),
        ("slots", 0),
        ("engine", "Other"),
        ("dispatch", "Fastest"),
        ("whenIdle", "Never"),
        ("mode", "Off"),
        ("objective", {}),
        ("objective", {"weighted": {}, "cheapestWithin": {}}),
        ("objective", {"weighted": {"timePercent": 101}}),
        ("actors", {"min": 0, "max": 3, "static": 1}),
        ("actors", {"min": 1, "max": 65, "static": 1}),
    ],
)
def test_values_that_cannot_be(field: str, value: Any) -> None:
    assert f"spec.rollout.{field}" in problem(job(**{field: value}))


def test_a_workload_that_is_referred_to_has_no_actors() -> None:
    said = problem(changed(job(), "spec.workload", REF))
    assert "rollout: is not allowed with workload.ref" in said
    assert "workload.template, or leave rollout out" in said


@pytest.mark.parametrize("delegate", ["Kueue", "None"])
def test_a_pool_that_delegates_gives_no_actors(delegate: str) -> None:
    kueue = {"kueue": {"localQueue": "main"}} if delegate == "Kueue" else {}
    said = problem(job(), delegate=delegate, **kueue)
    assert said.startswith("RolloutNotDelegated: spec.rollout: is not allowed in GPUPool 'a100'")
    assert f"whose delegate is {delegate}" in said
    assert "use a pool with delegate Builtin, or leave rollout out" in said


def test_what_is_decided_by() -> None:
    found = convert.desired(job(), pool())
    assert found.problem is None
    assert found.rollout == RolloutTerms(base=2, gpus=1, recall_seconds=10.0, bind_seconds=300.0)
    assert found.gpus == 2 + 2
    shadow = convert.desired(job(mode="Shadow", whenIdle="Keep"), pool(lending={"recallSeconds": 30}))
    assert shadow.rollout == RolloutTerms(
        base=3, gpus=1, shadow=True, keeps=True, recall_seconds=30.0, bind_seconds=300.0
    )
    assert convert.desired(JOB, pool()).rollout is None
    assert convert.lending(pool()) == Lending(True, 10.0)
    assert convert.lending(pool(lending={"enabled": False, "recallSeconds": 3})) == Lending(False, 3.0)


def test_what_steps_are_planned_by() -> None:
    from controller.api.rlhfjob import RLHFJob

    def settings(*, shadow: bool = False, **more: Any) -> Any:
        spec = RLHFJob.model_validate(job(**more)).spec.rollout
        assert spec is not None
        return convert.rollout_settings(spec, shadow=shadow)

    found = settings()
    assert (found.min, found.max, found.static) == (2, 6, 3)
    assert (found.objective, found.within) == ("cheapestWithin", 0.1)
    weighted = settings(objective={"weighted": {"timePercent": 40}}, dispatch="Ranked", whenIdle="Release")
    assert (weighted.objective, weighted.time_weight) == ("weighted", 0.4)
    assert (weighted.dispatch, weighted.when_idle) == ("Ranked", "Release")
    kept = settings(shadow=True)
    assert (kept.min, kept.max, kept.static, kept.when_idle) == (3, 3, 3, "Keep")


# -- on a real API server ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def installed(plane: Plane) -> Plane:
    install(plane)
    return plane


def test_the_server_refuses_the_same_and_fills_in_the_rest(installed: Plane, namespace: str) -> None:
    client, path = installed.client(), jobs(namespace, query="dryRun=All")

    def said(obj: Json) -> str:
        return refusal(client, "POST", path, changed(obj, "metadata.namespace", namespace))

    for actors, words in COUNTS:
        assert f"rollout.actors.{words}" in said(job(actors=actors))
    assert "spec.rollout: is not allowed with workload.ref" in said(changed(job(), "spec.workload", REF))
    assert "rollout.objective has 2 members" in said(job(objective={"weighted": {}, "cheapestWithin": {}}))
    stored = client.post(jobs(namespace), changed(job(), "metadata.namespace", namespace))
    spec = stored["spec"]["rollout"]
    assert spec["template"] == ROLLOUT["template"], "fields that nobody here knows stay"
    assert (spec["mode"], spec["engine"], spec["slots"]) == ("Enforce", "Plain", 64)
    assert (spec["dispatch"], spec["whenIdle"]) == ("Auto", "Auto")
    assert spec["objective"] == {"cheapestWithin": {"percent": 10}}
    made = client.post(f"{GROUP}/gpupools", changed(POOL, "metadata.name", f"{namespace}"[:60]))
    assert made["spec"]["lending"] == {"enabled": True, "recallSeconds": 10}
    # While it holds GPUs its actors are what they are.
    status = {"status": {"admission": {"number": 1, "nodes": ["n1"], "time": "2026-01-01T00:00:00Z"}}}
    client.patch(jobs(namespace, "run") + "/status", status)
    now = client.get(jobs(namespace, "run"))
    fixed = "spec.rollout cannot change while the job holds GPUs"
    assert fixed in refusal(client, "PUT", jobs(namespace, "run"), changed(now, "spec.rollout.slots", 8))
    del now["spec"]["rollout"]
    assert fixed in refusal(client, "PUT", jobs(namespace, "run"), now)


def test_the_reference_names_all_of_it() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "use" / "api.md").read_text()
    for name in ("gpusPerActor", "whenIdle", "cheapestWithin", "recallSeconds", "heldGPUSeconds"):
        assert name in text
