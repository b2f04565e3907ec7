"""Specs to the brain's wishes: what is right arrives, what is wrong becomes a problem that says what."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
from api_examples import DELETE, JOB, POOL, TEMPLATE, changed, pool
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.api.codec import encode
from controller.api.convert import StatusError, desired, parse_pool, policy, reservations
from controller.api.status import PoolStatus
from controller.policy.job.evals import ingest
from controller.policy.job.record import JobRecord
from controller.policy.job.rule_in_use import RuleInUse
from controller.policy.job.types import (
    Direction,
    ProxyMetric,
    ResumeFrom,
    ResumeRequest,
    RunState,
    ScrapeOutcome,
    ScrapeView,
)
from controller.policy.stopping import DEFAULT_MODIFIERS, DEFAULT_RULE, RULES, make_rule
from controller.policy.stopping.gate import GateParams
from controller.policy.stopping.kdeclines import KDeclinesParams
from controller.policy.types import (
    NOTHING_DECLARED,
    EvalPoint,
    EvalScale,
    Mode,
    PolicySpec,
    Reservation,
    Verb,
)


def test_a_valid_spec_arrives_whole() -> None:
    obj = changed(JOB, "metadata.uid", "u-1")
    obj = changed(obj, "metadata.generation", 4)
    obj = changed(obj, "spec.resume", {"id": "r1", "from": "Step", "step": 400})
    obj = changed(
        obj, "spec.metrics", [{"name": "kl", "role": "Guardrail"}, {"name": "loss", "direction": "Minimize"}]
    )
    found = desired(obj, pool())
    assert found.problem is None
    assert (found.key, found.uid, found.generation) == ("team/run", "u-1", 4)
    assert (found.metric, found.direction) == ("loss", Direction.MINIMIZE)
    assert (found.replicas, found.gpus_per_replica) == (1, 2)
    assert found.rule.name == "kDeclines"
    assert {"k": 3, "min_delta": 0.01}.items() <= found.rule.params.items()
    assert found.modifiers == (PolicySpec("warmUp", {"min_evals": 4}),)
    assert make_rule(found.rule, found.modifiers)
    assert (found.mode, found.run_state, found.deleting) == (Mode.ENFORCE, RunState.RUN, False)
    assert found.resume == ResumeRequest("r1", ResumeFrom.STEP, 400)
    assert found.workload_ref == ""


def test_defaults_are_those_of_the_schema() -> None:
    obj = changed(changed(JOB, "spec.stopRule", {"kDeclines": {}}), "spec.modifiers", DELETE)
    found = desired(obj, pool())
    assert found.problem is None
    assert found.rule.name == "kDeclines"
    assert make_rule(found.rule).params == KDeclinesParams()
    assert [m.name for m in found.modifiers] == [m.name for m in DEFAULT_MODIFIERS]
    assert make_rule(found.rule, found.modifiers).params == GateParams()
    assert desired(changed(obj, "spec.modifiers", []), pool()).modifiers == ()
    unnamed = desired(changed(obj, "spec.stopRule", DELETE), pool())
    assert make_rule(unnamed.rule).params == make_rule(DEFAULT_RULE).params
    assert (found.max_step_lag, found.resume) == (0, None)


# row 7
def test_a_job_that_names_no_rule_is_not_stopped_by_one_bad_eval() -> None:
    """A scorer that was down for one eval; stopped at it by `scan` alone, and with patience at the next."""
    obj = changed(changed(JOB, "spec.stopRule", DELETE), "spec.modifiers", DELETE)
    use = RuleInUse.of(desired(obj, pool()))
    found = JobRecord()
    scores = [0.52, 0.47, 0.5, 0.55, 0.49, 0.51, 0.46, 0.53, 0.0, 0.5, 0.52]
    points = tuple(EvalPoint(i, s, stderr=0.05) for i, s in enumerate(scores))
    for number in range(1, len(points) + 1):
        scrape = ScrapeView(ScrapeOutcome.OK, metrics_seen=("gold_reward",), points=points[:number])
        found = ingest(found, use, scrape)
        assert found.rule is not None
        assert found.rule.verdict is not None
        assert found.rule.verdict.verb is Verb.CONTINUE
    assert found.best is not None
    assert (found.best.step, found.best.score) == (3, 0.55)


def test_guardrails_share_the_budget_of_false_alarms() -> None:
    """Three judged metrics: each rule that has an alpha gets a third of it, whoever named the rule."""
    metrics = [
        {"name": "gold"},
        {"name": "safety", "role": "Guardrail"},
        {"name": "toxicity", "role": "Guardrail", "direction": "Minimize", "stopRule": {"drawdown": {}}},
        {"name": "reward", "role": "Proxy", "direction": "Minimize"},
    ]
    obj = changed(changed(JOB, "spec.metrics", metrics), "spec.stopRule", {"glr": {"alpha": "0.06"}})
    found = desired(changed(obj, "spec.modifiers", DELETE), pool())
    assert found.problem is None
    assert found.rule.params["alpha"] == pytest.approx(0.02)
    safety, toxicity = found.guardrails
    assert (safety.metric, safety.direction, safety.rule) == ("safety", Direction.MAXIMIZE, found.rule)
    assert (toxicity.rule.name, toxicity.direction) == ("drawdown", Direction.MINIMIZE)
    assert "alpha" not in toxicity.rule.params
    assert found.proxy == ProxyMetric("reward", Direction.MINIMIZE)
    alone = desired(changed(obj, "spec.metrics", metrics[:1]), pool())
    assert alone.rule.params["alpha"] == pytest.approx(0.06)
    assert (alone.guardrails, alone.proxy) == ((), None)


def test_range_and_prompts_are_those_of_each_judged_metric() -> None:
    metrics = [
        {"name": "loss", "direction": "Minimize", "range": ["-2.5", "1e1"], "prompts": 512},
        {"name": "safety", "role": "Guardrail", "preset": "WinRate"},
        {"name": "length", "role": "Guardrail"},
    ]
    found = desired(changed(JOB, "spec.metrics", metrics), pool())
    assert found.problem is None
    assert found.scale == EvalScale(512, (-2.5, 10.0))
    assert [g.scale for g in found.guardrails] == [EvalScale(None, (0.0, 1.0)), NOTHING_DECLARED]


@pytest.mark.parametrize(
    ("rule", "modifiers", "said"),
    [
        (
            {"scan": {}},
            [{"graded": {"warnAt": "0.9", "demoteAt": "0.5"}}],
            "graded.demoteAt: 0.5 .*warn_at = 0.9",
        ),
        (
            {"lossPlateau": {}},
            [{"graded": {}}],
            r"spec\.modifiers\.graded: .*lossPlateau.*rises towards its threshold",
        ),
    ],
)
def test_grades_that_cannot_be_are_a_problem(rule: dict, modifiers: list, said: str) -> None:
    found = desired(changed(changed(JOB, "spec.stopRule", rule), "spec.modifiers", modifiers), pool())
    assert found.problem is not None
    assert found.problem.reason == "InvalidStopRule"
    assert re.search(said, found.problem.message)


def test_a_reference_is_named() -> None:
    ref = {"apiVersion": "batch/v1", "kind": "Job", "name": "mine"}
    assert desired(changed(JOB, "spec.workload", {"ref": ref}), pool()).workload_ref == "batch/v1 Job mine"


def test_deletion_shows_also_on_a_bad_spec() -> None:
    obj = changed(changed(JOB, "metadata.deletionTimestamp", "2026-11-21T09:00:00Z"), "spec.gang", 3)
    found = desired(obj, pool())
    assert found.deleting
    assert found.problem is not None
    assert found.mode is Mode.OFF


@pytest.mark.parametrize(
    ("asked", "cap", "got"),
    [
        ("Enforce", "Enforce", Mode.ENFORCE),
        ("Enforce", "Shadow", Mode.SHADOW),
        ("Shadow", "Off", Mode.OFF),
        ("Off", "Enforce", Mode.OFF),
    ],
)
def test_the_pool_caps_the_mode(asked: str, cap: str, got: Mode) -> None:
    found = desired(changed(JOB, "spec.mode", asked), pool(modeCap=cap))
    assert found.mode is got
    assert found.capped_off is (asked != "Off" and cap == "Off")


K, DELTA = "spec.stopRule.kDeclines.k", "spec.stopRule.kDeclines.minDelta"
KEPT = "spec.checkpoints.retention.volumeClaim.claimName"
REF = {"apiVersion": "batch/v1", "kind": "Job", "name": "x"}
UNION = "exactly one is needed of: "

# (path, value, what the message says)
INVALID: list[tuple[str, Any, str]] = [
    (K, 0, f"{K}: is 0: expected 1 or more"),
    (K, "3", "is '3': expected a whole number"),
    (DELTA, 0.1, f'{DELTA}: is 0.1: expected text: write it in quotes, "0.1"'),
    (DELTA, "much", "is 'much': expected text like ^"),
    ("spec.stopRule", {}, f"0 members, {UNION}kDeclines"),
    ("spec.stopRule", {name: {} for name in RULES}, f"{len(RULES)} members, {UNION}kDeclines"),
    ("spec.stopRule", {"guess": {}}, "spec.stopRule.guess"),
    ("spec.modifiers", [{}], "spec.modifiers[0]: 0 members"),
    ("spec.workload", {}, f"0 members, {UNION}template, ref"),
    ("spec.workload.ref", REF, f"2 members, {UNION}template, ref"),
    ("spec.metrics", [], "spec.metrics"),
    ("spec.metrics", [{"name": "a", "range": {"lowest": "0"}}], 'expected a list, as in ["0", "1"]'),
    ("spec.metrics", {"name": "a"}, "expected a list"),
    ("spec.metrics", [{"name": "a", "role": "Proxy"}], "exactly one of role Primary is needed, found 0"),
    ("spec.metrics", [{"name": "a"}, {"name": "b"}], "found 2"),
    (KEPT, "work", "another volume claim than location"),
    ("spec.checkpoints.location.objectStore", {"uri": "s3://b/x"}, "2 members"),
    ("spec.checkpoints.layout", "Mine", "'Plain', 'HuggingFace'"),
    ("spec.gang.gpusPerReplica", 0, "expected at least 1"),
    ("spec.gang.replicas", True, "expected a whole number"),
    ("spec.resume", {"id": "a", "from": "Step"}, "step is needed with from: Step"),
    ("spec.resume", {"id": "a", "step": 3}, "only with it, from is Best"),
    ("spec.colour", "red", "spec.colour"),
    ("spec.pool", DELETE, "spec.pool: is needed"),
    ("spec", DELETE, "spec: is needed"),
    ("spec", None, "spec"),
    ("metadata.name", "x" * 41, "at most 40 characters"),
]
REFUSED: list[tuple[str, Any, str, str]] = [
    (
        K,
        5,
        "InvalidStopRule",
        "spec.modifiers.warmUp.minEvals: 4 is not allowed, expected at least kDeclines.k = 5",
    ),
    (DELTA, "-0.1", "InvalidStopRule", f"{DELTA}: -0.1 is not allowed, expected a value >= 0"),
    ("spec.priority", 11, "PriorityTooHigh", "spec.priority: 11 is above the ceiling of GPUPool 'a100'"),
    ("metadata.namespace", "other", "NamespaceNotAllowed", "does not allow namespace 'other', only: team"),
]
BAD = [(path, value, "InvalidSpec", said) for path, value, said in INVALID] + REFUSED


@pytest.mark.parametrize(
    ("path", "value", "reason", "said"), BAD, ids=[f"{b[0]}-{n}" for n, b in enumerate(BAD)]
)
def test_a_bad_spec_is_a_problem_in_words(path: str, value: Any, reason: str, said: str) -> None:
    found = desired(changed(JOB, path, value), pool())
    assert found.problem is not None
    assert found.problem.reason == reason
    assert said in found.problem.message
    assert len(found.problem.message) < 400


def test_a_missing_pool_is_a_problem() -> None:
    assert desired(JOB, None).problem == ("PoolNotFound", "spec.pool: there is no GPUPool 'a100'")


def test_trainers_must_not_mount_what_is_kept() -> None:
    template = copy.deepcopy(TEMPLATE)
    template["spec"]["template"]["spec"]["volumes"] = [
        {"name": "a", "persistentVolumeClaim": {"claimName": "work"}},
        {"name": "b", "persistentVolumeClaim": {"claimName": "kept"}},
    ]
    found = desired(changed(JOB, "spec.workload.template", template), pool())
    assert found.problem is not None
    assert found.problem.reason == "RetentionReachable"
    assert "'kept' is mounted by pods of spec.workload.template" in found.problem.message
    del template["spec"]["template"]["spec"]["volumes"][1]
    assert desired(changed(JOB, "spec.workload.template", template), pool()).problem is None


STORES = [
    ("s3://b/run", "s3://b/kept", True),
    ("s3://b/run", "s3://b/run", False),
    ("s3://b/run", "s3://b/run/kept", False),
    ("s3://b/all/run", "s3://b/all", False),
    ("s3://b/run", "s3://b/run-kept", True),
]


@pytest.mark.parametrize(("location", "retention", "fine"), STORES)
def test_object_stores_lie_apart(location: str, retention: str, fine: bool) -> None:
    obj = changed(JOB, "spec.checkpoints.location", {"objectStore": {"uri": location}})
    obj = changed(obj, "spec.checkpoints.retention", {"objectStore": {"uri": retention}})
    assert (desired(obj, pool()).problem is None) is fine


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text("abXY1-", min_size=1, max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


def paths(node: Any, prefix: str = "") -> list[str]:
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [p for k, v in items for p in (f"{prefix}{k}", *paths(v, f"{prefix}{k}."))]


@given(st.data())
@settings(max_examples=150)
def test_no_spec_raises(data: st.DataObject) -> None:
    """Whatever stands in a spec, there is a `Desired`, and without a problem its rule can be made."""
    obj = JOB
    for _ in range(data.draw(st.integers(1, 3))):
        candidates = [p for p in paths(obj) if p.startswith("spec")]
        obj = changed(
            obj, data.draw(st.sampled_from(candidates or ["spec"])), data.draw(JUNK | st.just(DELETE))
        )
        if "spec" not in obj:
            break
    found = desired(obj, pool())
    if found.problem is None:
        make_rule(found.rule, found.modifiers)
        assert found.replicas >= 1
        assert found.gpus_per_replica >= 1


def test_pools_read_as_models() -> None:
    found = parse_pool(POOL)
    assert not isinstance(found, tuple)
    assert policy(found) == PolicySpec("fifo", {"backfill": False, "max_wait": 604800.0})
    assert [(label.key, label.value) for label in found.spec.node_selector] == [("gpu", "a100")]
    assert (found.ceiling("team"), found.ceiling("other")) == (10, None)


def test_namespaces_have_weights() -> None:
    found = pool(allowedNamespaces=[{"name": "*"}, {"name": "vip", "maxPriority": 1, "weight": 5}])
    assert [found.weight(name) for name in ("vip", "other")] == [5, 1]


@pytest.mark.parametrize(
    ("chosen", "params"),
    [
        ({"fifo": {}}, {"backfill": False}),
        ({"srtf": {}}, {}),
        ({"srtfEst": {}}, {}),
        (
            {"las": {"firstThreshold": "60", "secondThreshold": "6e2"}},
            {"first_threshold": 60.0, "second_threshold": 600.0, "variant": "Plain"},
        ),
        ({"slaq": {"epoch": "30"}}, {"epoch": 30.0}),
        ({"fairShare": {"preempt": "Enabled"}}, {"preempt": True, "epoch": 600.0}),
    ],
)
def test_every_queue_policy_can_be_chosen(chosen: dict[str, Any], params: dict[str, Any]) -> None:
    found = pool(queuePolicy=chosen, maxWaitSeconds=3600)
    (name,) = chosen
    assert policy(found) == PolicySpec(name, {**params, "max_wait": 3600.0})


def test_thresholds_out_of_order_are_named_as_users_write_them() -> None:
    found = parse_pool(changed(POOL, "spec.queuePolicy", {"las": {"secondThreshold": "5"}}))
    assert isinstance(found, tuple)
    assert found[0] == "InvalidSpec"
    assert found[1].startswith("spec.queuePolicy.las.secondThreshold: 5.0 is not allowed, expected at least")


def test_srtf_needs_what_only_users_know() -> None:
    clairvoyant = pool(queuePolicy={"srtf": {}})
    problem = desired(JOB, clairvoyant).problem
    assert problem is not None
    assert problem.reason == "DurationMissing"
    assert "spec.expectedDurationSeconds: not set, and GPUPool 'a100' queues by srtf" in problem.message
    stated = changed(JOB, "spec.expectedDurationSeconds", 7200)
    found = desired(stated, clairvoyant)
    assert (found.problem, found.expected_seconds) == (None, 7200.0)
    assert desired(JOB, pool(queuePolicy={"srtfEst": {}})).problem is None


def test_the_grace_of_preemption_is_the_pool_s() -> None:
    assert desired(JOB, pool()).preempt_grace == 300.0
    assert desired(JOB, pool(preemption={"graceSeconds": 20})).preempt_grace == 20.0


def test_the_pool_says_how_often_a_page_is_read_at_most() -> None:
    often = changed(JOB, "spec.scrape", {"intervalSeconds": 5})
    assert desired(often, pool()).scrape_interval == 5.0
    assert desired(often, pool(minScrapeIntervalSeconds=30)).scrape_interval == 30.0
    seldom = changed(JOB, "spec.scrape", {"intervalSeconds": 60})
    assert desired(seldom, pool(minScrapeIntervalSeconds=30)).scrape_interval == 60.0


def test_a_template_of_any_form_is_read_without_an_error() -> None:
    """Which form it must have is told before its workload is made (tests/workloads)."""
    queued = pool(delegate="Kueue", kueue={"localQueue": "team"})
    for spoilt in ("abc", [], 5, {"labels": "abc"}, {"labels": {"kueue.x-k8s.io/queue-name": 5}}):
        found = desired(changed(JOB, "spec.workload.template.metadata", spoilt), queued)
        assert found.queue == "team"


def test_every_namespace_is_a_fallback() -> None:
    open_pool = pool(allowedNamespaces=[{"name": "*"}, {"name": "vip", "maxPriority": 100}])
    assert (open_pool.ceiling("vip"), open_pool.ceiling("anyone")) == (100, 0)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("spec.nodeSelector", [], "spec.nodeSelector"),
        ("spec.queuePolicy", {"fifo": {}, "other": {}}, "other"),
        ("spec.queuePolicy", {"fifo": {"backfill": "Perhaps"}}, "'Enabled' or 'Disabled'"),
        ("spec.reservationSeconds", 0, "expected 1 or more"),
        ("metadata.name", "a.b", "metadata.name"),
    ],
)
def test_a_bad_pool_is_a_problem_in_words(path: str, value: Any, said: str) -> None:
    found = parse_pool(changed(POOL, path, value))
    assert isinstance(found, tuple)
    assert found[0] == "InvalidSpec"
    assert said in found[1]


def test_switches_are_words() -> None:
    assert policy(pool(queuePolicy={"fifo": {"backfill": "Enabled"}})) == PolicySpec(
        "fifo", {"backfill": True, "max_wait": 604800.0}
    )


@given(
    st.lists(
        st.builds(
            Reservation,
            st.just("a/b"),
            st.just("c/d"),
            st.just(("n1", "n1")),
            st.floats(min_value=1, max_value=4e9),
        ),
        max_size=3,
    ).map(tuple)
)
def test_holds_read_back_exactly(found: tuple[Reservation, ...]) -> None:
    assert reservations(encode(PoolStatus(reservations=found))) == found


def test_spoilt_holds_are_named() -> None:
    assert reservations(None) == reservations({}) == ()
    with pytest.raises(StatusError, match=r"status\.reservations"):
        reservations({"reservations": [{"source": "a/b"}]})
