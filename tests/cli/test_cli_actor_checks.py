"""What `evalstop check` says of rollout actors: their template, and the room that their pool has for them."""

from __future__ import annotations

import asyncio
import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli_shell import Shell

from controller.cli import actor_checks
from controller.policy.actor_types import RolloutTerms
from tests.support import cli_world as w

SIZES = [{"nodes": 2, "gpus": 4}, {"nodes": 1, "gpus": 8}]
ENGINE: dict[str, Any] = {"name": "engine", "image": "e", "resources": {"limits": {"nvidia.com/gpu": "2"}}}
ROLLOUT: dict[str, Any] = {
    "template": {"spec": {"containers": [ENGINE]}},
    "gpusPerActor": 2,
    "actors": {"min": 1, "max": 3, "static": 2},
}


@pytest.mark.parametrize(
    ("replicas", "gpus", "terms", "most", "level", "said"),
    [
        (1, 8, RolloutTerms(4, 2), 4, "ok", "4 actors of 2 GPUs fit beside the gang when the pool is free"),
        (1, 8, RolloutTerms(2, 2), 9, "ok", "of the 9 of spec.rollout.actors.max never more than 4"),
        (1, 8, RolloutTerms(5, 2), 5, "WRONG", "actors.min: 1 x 8 GPUs with 5 actors of 2 never fit"),
        (1, 8, RolloutTerms(5, 2), 5, "WRONG", "at most 4 is right"),
        (1, 8, RolloutTerms(5, 2, shadow=True), 5, "WRONG", "actors.static, as with mode Shadow: "),
        (1, 8, RolloutTerms(1, 8), 1, "WRONG", "at most 0 is right"),  # the one node for it has the gang
        (1, 1, RolloutTerms(1, 16), 1, "WRONG", "gpusPerActor: 16 is more than the 8 GPUs"),
        (1, 1, RolloutTerms(1, 16), 1, "WRONG", "at most 8 is right"),
        # On what is left of each node, and the large one.
        (2, 3, RolloutTerms(4, 2), 4, "ok", "4 actors of 2"),
    ],
)
def test_whether_a_pool_could_ever_hold_them(
    replicas: int, gpus: int, terms: RolloutTerms, most: int, level: str, said: str
) -> None:
    (found,) = actor_checks.room(SIZES, replicas, gpus, terms, most)
    assert (found.level, found.about) == (level, "actors")
    assert said in found.text
    assert bool(found.cure.line) == (level == "WRONG")


def job(**rollout: Any) -> dict[str, Any]:
    made = copy.deepcopy(w.job("checked", "ns", "p"))
    made["spec"]["rollout"] = {**ROLLOUT, **rollout}
    return made


@pytest.mark.parametrize(
    ("rollout", "said"),
    [
        ({"template": {"spec": {"containers": []}}}, "spec.rollout.template.spec.containers: empty"),
        ({"gpusPerActor": 4}, "2 in all, expected 4 as in spec.rollout.gpusPerActor"),
        (
            {"template": {"spec": {"containers": [{k: v for k, v in ENGINE.items() if k != "image"}]}}},
            "spec.rollout.template.spec.containers[0].image: a pod needs one",
        ),
    ],
)
def test_a_template_that_cannot_be_is_told_without_asking_the_server(
    rollout: dict[str, Any], said: str
) -> None:
    async def told() -> list[Any]:
        manifest = job(**rollout)
        terms = RolloutTerms(1, manifest["spec"]["rollout"]["gpusPerActor"])
        return [one async for one in actor_checks.template(None, manifest, terms)]  # type: ignore[arg-type]

    (found,) = asyncio.run(told())
    assert (found.level, said in found.text) == ("WRONG", True), found


@pytest.mark.cluster
def test_on_a_cluster(shell: Shell, tmp_path: Path) -> None:
    """With the rights of whoever checks: nobody but the operator makes actors' Jobs."""

    def told(manifest: dict[str, Any], code: int) -> str:
        manifest["metadata"]["namespace"] = shell.namespace
        manifest["spec"]["pool"] = shell.pool
        container = manifest["spec"]["workload"]["template"]["spec"]["template"]["spec"]["containers"][0]
        container["resources"] = {"limits": {"nvidia.com/gpu": 2}}
        file = tmp_path / "job.yaml"
        file.write_text(yaml.safe_dump(manifest))
        return str(shell("check", "-f", str(file), code=code).stdout)

    out = told(job(), 1)
    assert "an actor's Job would be taken (dry run)" in out
    wrong = copy.deepcopy(ROLLOUT["template"])
    wrong["spec"]["containers"][0]["name"] = "No Name"
    out = " ".join(told(job(template=wrong), 1).split())
    assert "spec.rollout.template: " in out
    assert "No Name" in out
