"""What the operator tells a job of its peers, from the statuses of the pool's other RLHFJobs."""

from __future__ import annotations

from typing import Any

import pytest

from controller.api.record import status
from controller.kube.cache import Cache
from controller.kube.resources import GPUPOOLS, RLHFJOBS
from controller.operator.state.cluster import ClusterState
from controller.policy import decision_log
from controller.policy.job.evals import ingest
from controller.policy.job.plan import plan_job
from controller.policy.job.record import JobRecord
from controller.policy.job.rule_in_use import RuleInUse
from controller.policy.job.types import Desired, ScrapeOutcome, ScrapeView
from controller.policy.types import Attempt, EvalPoint, PeersAt, PolicySpec, Verb

LIFE = Attempt(1, "100")
POOL = {
    "apiVersion": "evalstop.dev/v1alpha1",
    "kind": "GPUPool",
    "metadata": {"name": "p", "uid": "pool", "generation": 1, "resourceVersion": "1"},
    "spec": {"nodeSelector": [{"key": "gpu", "value": "a100"}], "allowedNamespaces": [{"name": "*"}]},
}
CONTAINER = {"name": "trainer", "image": "trainer:1"}
TEMPLATE = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "spec": {
        "completions": 1,
        "parallelism": 1,
        "completionMode": "Indexed",
        "template": {"spec": {"restartPolicy": "Never", "containers": [CONTAINER]}},
    },
}
CHECKPOINTS = {
    "location": {"volumeClaim": {"claimName": "work", "path": "/checkpoints"}},
    "layout": "Plain",
    "retention": {"volumeClaim": {"claimName": "kept"}},
}
MEDIAN = {"medianOfPeers": {"minPeers": 2, "grace": 2}}


class Rig:
    """A world whose cache is filled by hand."""

    def __init__(self) -> None:
        self.cache = Cache()
        self.world = ClusterState(self.cache, lambda: 0.0)
        self.version = 1
        self.cache.put(GPUPOOLS, POOL)

    def job(self, name: str, scores: list[float], **changes: Any) -> str:
        """An RLHFJob with evals at steps 10, 20, …; returns its key."""
        evals = tuple(EvalPoint(10 * (i + 1), s, LIFE) for i, s in enumerate(scores))
        record = JobRecord(evals=evals, evals_seen=len(evals), evaluator=changes.pop("evaluator", ""))
        namespace = changes.pop("namespace", "team")
        desired = Desired(f"{namespace}/{name}", name, 1, "gold", 1, 1, PolicySpec("kDeclines"))
        metric = changes.pop("metric", {"name": "gold"})
        spec = {
            "pool": "p",
            "gang": {"replicas": 1, "gpusPerReplica": 1},
            "workload": {"template": TEMPLATE},
            "metrics": [metric],
            "checkpoints": CHECKPOINTS,
            **changes,
        }
        self.version += 1
        self.cache.put(
            RLHFJOBS,
            {
                "apiVersion": "evalstop.dev/v1alpha1",
                "kind": "RLHFJob",
                "metadata": {
                    "namespace": namespace,
                    "name": name,
                    "uid": name,
                    "generation": self.version,
                    "resourceVersion": str(self.version),
                },
                "spec": spec,
                "status": status(record, desired, 0.0),
            },
        )
        return desired.key

    def shows(self, key: str, scores: list[float]) -> ScrapeView:
        points = tuple(EvalPoint(10 * (i + 1), s, LIFE) for i, s in enumerate(scores))
        view = ScrapeView(ScrapeOutcome.OK, at=1.0, metrics_seen=("gold",), points=points)
        self.world.scraped(key, view)
        return view

    def told(self, key: str) -> tuple[PeersAt, ...]:
        loaded = self.world.load(key)
        assert loaded is not None
        assert loaded.desired.problem is None
        return loaded.observed.fleet.peers


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_job_that_is_behind_its_peers_is_to_be_stopped(rig: Rig) -> None:
    rig.job("b", [0.5, 0.7, 0.9])
    rig.job("c", [0.4, 0.6, 0.8])
    key = rig.job("a", [0.1, 0.2], stopRule=MEDIAN, modifiers=[])
    view = rig.shows(key, [0.1, 0.2, 0.3])
    loaded = rig.world.load(key)
    assert loaded is not None
    assert loaded.observed.fleet.peers == (PeersAt(30, 2, pytest.approx(0.65)),)
    use = RuleInUse.of(loaded.desired, loaded.observed.fleet)
    rule = ingest(loaded.record, use, view).rule
    assert rule is not None
    assert rule.verdict is not None
    assert (rule.verdict.verb, rule.verdict.reason) == (Verb.STOP, "BelowPeers")
    planned = plan_job(loaded.desired, loaded.observed, loaded.record, 2.0)
    line = decision_log.job_line(loaded.desired, loaded.observed, loaded.record, 2.0, planned)
    assert all(replayed.same for replayed in decision_log.replay([line]))


def test_a_job_that_is_minimized_sees_its_peers_the_other_way_up(rig: Rig) -> None:
    down = {"name": "gold", "direction": "Minimize"}
    rig.job("b", [0.5, 0.7], metric=down)
    rig.job("c", [0.9, 0.9])  # the same name the other way up is another metric
    key = rig.job("a", [], stopRule=MEDIAN, modifiers=[], metric=down)
    rig.shows(key, [0.1, 0.2])
    assert rig.told(key) == (PeersAt(10, 1, pytest.approx(-0.5)), PeersAt(20, 1, pytest.approx(-0.6)))


@pytest.mark.parametrize("scope", ["Namespace", "Pool"])
def test_attack_three_fake_peers_of_another_namespace(rig: Rig, scope: str) -> None:
    """Whatever the pool's scope: being below them would stop a run."""
    pool = {**POOL, "spec": {**POOL["spec"], "fleet": {"scope": scope}}}
    pool["metadata"] = {**POOL["metadata"], "generation": 2, "resourceVersion": "2"}
    rig.cache.put(GPUPOOLS, pool)
    for n in range(3):
        rig.job(f"fake{n}", [0.99] * 4, namespace=f"mallory-{n}")
    key = rig.job("a", [0.1, 0.2], stopRule=MEDIAN, modifiers=[])
    view = rig.shows(key, [0.1, 0.2, 0.3])
    assert rig.told(key) == ()
    loaded = rig.world.load(key)
    assert loaded is not None
    rule = ingest(loaded.record, RuleInUse.of(loaded.desired, loaded.observed.fleet), view).rule
    assert rule is not None
    assert rule.verdict is not None
    assert (rule.verdict.verb, rule.verdict.reason) == (Verb.CONTINUE, "TooFewPeers")
    rig.job("own", [0.5, 0.7, 0.9])
    assert rig.told(key) == (PeersAt(30, 1, pytest.approx(0.7)),)


def test_peers_are_of_the_same_metric_and_evaluator_and_have_come_as_far(rig: Rig) -> None:
    rig.job("b", [0.5, 0.7])
    rig.job("metric", [0.9] * 9, metric={"name": "other"})
    rig.job("evaluator", [0.9] * 9, evaluator="v2")
    rig.job("behind", [0.9])
    key = rig.job("a", [0.1], stopRule=MEDIAN, modifiers=[])
    rig.shows(key, [0.1, 0.2, 0.3])
    assert rig.told(key) == (PeersAt(20, 1, pytest.approx(0.6)),)


def test_a_peer_that_goes_on_or_is_deleted_is_seen_as_it_is_now(rig: Rig) -> None:
    key = rig.job("a", [0.1], stopRule=MEDIAN, modifiers=[])
    rig.shows(key, [0.1, 0.2])
    other = rig.job("b", [0.5])
    assert rig.told(key) == ()
    rig.job("b", [0.5, 0.7])
    assert rig.told(key) == (PeersAt(20, 1, pytest.approx(0.6)),)
    gone = dict(rig.cache.get(RLHFJOBS, other) or {})
    rig.cache.drop(RLHFJOBS, {**gone, "metadata": {**gone["metadata"], "resourceVersion": "99"}})
    rig.world.forget(other)
    assert rig.told(key) == ()


def test_jobs_whose_rules_do_not_look_at_peers_are_told_of_none(rig: Rig) -> None:
    rig.job("b", [0.5, 0.7])
    key = rig.job("a", [0.1], stopRule={"kDeclines": {}}, modifiers=[])
    rig.shows(key, [0.1, 0.2])
    assert rig.told(key) == ()


def test_a_job_without_news_asks_nobody(rig: Rig) -> None:
    rig.job("b", [0.5, 0.7])
    key = rig.job("a", [0.1, 0.2], stopRule=MEDIAN, modifiers=[])
    assert rig.told(key) == ()  # not scraped yet
    rig.shows(key, [0.1, 0.2])
    assert rig.told(key) == ()
