"""Rollout actors end to end: a real control plane and kube-scheduler, operator, trainer, engines and sidecars
as the processes that they are."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from rollouts_cluster import Dies, Jobs, Json, Observer, Operator, local_digest, rollout, running
from rollouts_world import counted

from deploy.local.nodes import Nodes
from deploy.local.plane import Plane
from tests.support import given_cluster
from tests.support.rig_fixtures import installed

__all__ = ["installed"]

pytestmark = pytest.mark.timeout(300)

GIVEN = ["--steps", "6", "--seed", "11", "--eval-every", "100", "--rollout-most", "48"]
TRAIN = [
    "python",
    "-m",
    "examples.trainer",
    *GIVEN,
    "--port",
    "0",
    "--rollouts",
    "pods",
    "--step-seconds",
    "5",
]
WAITS = ["sleep", "600"]
RECALL = 3  # s


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, int]:
    return local_digest(tmp_path_factory.mktemp("alone"), [*GIVEN, "--port", "0"])


@pytest.fixture(scope="module")
def gpu_nodes(plane: Plane) -> Iterator[Nodes]:
    """Two nodes of two GPUs in a pool of their own."""
    if given_cluster.given() is not None:
        pytest.skip("pods as local processes: a cluster with kubelets of its own runs none")
    nodes = Nodes(
        plane, 2, 2, labels={"pool": "rollouts"}, provision=False, prefix="roll-", process="roll-nodes"
    )
    with nodes:
        yield nodes


@pytest.fixture
def dies(namespace: str) -> Dies | None:
    """Its operator dies only where a test says so."""
    return None


@pytest.fixture
def jobs(
    plane: Plane, installed: Path, gpu_nodes: Nodes, namespace: str, tmp_path: Path, dies: Dies | None
) -> Iterator[Jobs]:
    with running(Operator(tmp_path, installed, dies=dies)) as operator:
        found = Jobs(plane, namespace, "rollouts", operator)
        found.make_pool(lending={"recallSeconds": RECALL})
        yield found
        plane.kubectl("-n", namespace, "delete", "rlhfjobs", "--all", "--wait=true")
        found.until(lambda: not found.pods(), "all pods are gone")
        plane.kubectl("delete", "gpupool", "rollouts")
        found.until(lambda: not _tainted(plane), "the pool's taint is gone")


def _tainted(plane: Plane) -> bool:
    text = plane.kubectl("get", "nodes", "-l", "pool=rollouts", "-o", "jsonpath={.items[*].spec.taints}")
    return "evalstop.dev/pool" in text


def test_actors_come_and_one_is_recalled_for_a_gang(jobs: Jobs, alone: tuple[str, int]) -> None:
    watch = Observer(jobs)
    watch.start()
    # Three in each step, planned or not: how soon they come is not to depend on what the machine is at.
    fastest = {"weighted": {"timePercent": 100}}
    jobs.make("run", TRAIN, rollout(static=3, whenIdle="Keep", objective=fastest))
    jobs.until(lambda: jobs.condition("run", "Running")[0] == "True", "the gang and its base actor run")
    assert len(jobs.status("run")["actors"]) >= 1
    jobs.until(lambda: len(jobs.actors("run", ready=True)) == 3, "spare actors come")
    assert jobs.pool_status()["actors"] == 3
    jobs.make("next", WAITS)
    jobs.until(
        lambda: any(a.get("state") == "Recalled" for a in jobs.status("run").get("actors", ())),
        "a spare actor is recalled for the gang that waits",
    )
    jobs.until(lambda: jobs.condition("next", "Running")[0] == "True", "the gang has its GPU", 60)
    assert not jobs.status("run").get("preemptions")
    jobs.until(lambda: jobs.condition("run", "Completed")[0] == "True", "the run is done", 200)
    jobs.until(lambda: jobs.condition("run", "GPUsReleased")[0] == "True", "its actors are gone with it")
    assert jobs.actors("run") == []
    watch.stop()
    assert watch.looks > 20
    assert max(watch.most.values()) <= 2, "no GPU was requested twice"
    assert jobs.digest("run") == alone
    account = jobs.status("run")["rollout"]
    assert account["plan"]["step"] >= 6, "one plan for each step"
    rows = account["recent"]
    numbers = [row["step"] for row in rows]
    assert numbers == sorted({*numbers}), "each once, in their order"
    assert len(rows) >= 3, "a step that ends before the one before it is written has no row"
    assert all(float(row["seconds"]) > 0 for row in rows)
    assert any(row.get("plannedActors") and row.get("reason") for row in rows)
    # Times in statuses of pods are whole seconds, and a look takes a moment.
    assert float(account["heldGPUSeconds"]) == pytest.approx(
        watch.gpu_seconds, rel=0.03, abs=1.5 * watch.actors
    )


def test_the_operator_killed_in_a_step_and_started_again(
    jobs: Jobs, alone: tuple[str, int], tmp_path: Path
) -> None:
    """And weights come to its actors by a volume: none is pushed."""
    shared = tmp_path / "weights"
    shared.mkdir()
    jobs.make("run", [*TRAIN, "--rollout-weights", "/weights"], rollout(), shared)
    jobs.until(lambda: jobs.actors("run", ready=True), "the base actor is ready")
    jobs.until(lambda: jobs.status("run").get("rollout", {}).get("plan"), "a step is planned")
    jobs.operator.kill()
    entries = {a["number"] for a in jobs.status("run").get("actors", ())}
    assert set(jobs.actors("run")) <= entries, "no pod of an actor without an entry"
    jobs.operator.start()
    jobs.until(lambda: jobs.condition("run", "Completed")[0] == "True", "the run is done", 200)
    assert [file.name for file in shared.iterdir()] == ["step-6.bin"], "no older ones"
    jobs.until(lambda: jobs.condition("run", "GPUsReleased")[0] == "True", "its actors are gone with it")
    assert jobs.actors("run") == []
    assert jobs.digest("run") == alone


class TestAnOperatorKilledAtItsWrites:
    """All actors come and go with every step, and each life of the operator dies at its first write.

    ``WIDE_KILLS=1`` has more ways to die: right before every other write, and at later ones.
    """

    STEPS = 4
    GIVEN = ("--steps", str(STEPS), *GIVEN[2:])
    WIDE = ((1, "both"), (2, "after"), (3, "both"))

    @pytest.fixture(params=[(1, "after"), *(WIDE if os.environ.get("WIDE_KILLS") else ())])
    def dies(self, namespace: str, request: pytest.FixtureRequest) -> Dies:
        return Dies((namespace, "/gpupools/rollouts", "/nodes/roll-"), *request.param)

    def test_no_response_is_lost_or_doubled(self, jobs: Jobs, dies: Dies, tmp_path: Path) -> None:
        shared = tmp_path / "shared"
        shared.mkdir()
        command = [*TRAIN[:3], *self.GIVEN, *TRAIN[3 + len(GIVEN) :]]
        jobs.make(
            "run",
            [*command, "--rollouts-record", "/weights/steps.jsonl"],
            rollout(static=3, whenIdle="Release"),
            shared,
        )
        alone = local_digest(tmp_path, [*self.GIVEN, "--port", "0"])
        jobs.until(lambda: jobs.condition("run", "Completed")[0] == "True", "the run is done", 200)
        jobs.until(lambda: jobs.condition("run", "GPUsReleased")[0] == "True", "its actors are gone with it")
        assert jobs.digest("run") == alone
        steps = [json.loads(line) for line in (shared / "steps.jsonl").read_text().splitlines()]
        assert [step["step"] for step in steps] == list(range(1, self.STEPS + 1)), "none again, none left out"
        for step in steps:
            assert [len(row) for row in step["lengths"]] == [4] * 16, "each response once"
            assert step["tokens"] == sum(map(sum, step["lengths"]))
            assert step["counts"]["tokens"] == step["tokens"], "each token was taken once, from an actor"
            assert not step["counts"].keys() & {"local", "faulty", "distrusted"}, step["counts"]
            if "lost" not in step["counts"] and (tokens := counted(step)) is not None:
                assert tokens == step["tokens"]
        status = jobs.status("run")
        assert not status.get("actors")
        assert not status.get("preemptions")
        assert status["attempt"] == 1
        self.check_deaths(jobs.operator.deaths(), status["actorStarts"], dies)

    def check_deaths(self, deaths: list[Json], starts: int, dies: Dies) -> None:
        """It died by every kind of write that a job with actors costs."""
        died = Counter(
            (one["method"], one["component"] or _kind(one["path"]), one["moment"]) for one in deaths
        )
        print(died)
        moments = ("before", "after") if dies.ends == "both" else ("after",)
        assert starts >= 3, "a base actor and spare ones"
        if dies.at == 1:
            for moment in moments:
                for verb, what in (
                    ("PATCH", "rlhfjobs/status"),
                    ("PATCH", "gpupools/status"),
                    ("POST", "workload"),
                    ("POST", "run"),
                    ("POST", "actor"),
                    ("DELETE", "jobs"),
                ):
                    assert died[verb, what, moment], f"never died {moment} {verb} {what}: {died}"
        assert died.total() >= 20 // dies.at, died


def _kind(path: str) -> str:
    """``/apis/…/rlhfjobs/run/status`` -> ``rlhfjobs/status``."""
    parts = path.split("/")
    return f"{parts[-3]}/status" if parts[-1] == "status" else parts[-2]
