"""The CRDs on a real API server: what it accepts, fills in, refuses and shows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from api_cluster import GROUP, Json, install, jobs, refusal
from api_examples import DELETE, DESIRED, JOB, POOL, TEMPLATE, changed, full_record, pool

from controller.api.convert import desired, parse_pool, policy, record, status
from controller.policy.job.record import JobRecord
from controller.policy.queueing import POLICIES
from controller.policy.stopping import RULES
from deploy.local.errors import PlaneError
from deploy.local.plane import Plane


@pytest.fixture(scope="module")
def installed(plane: Plane) -> Plane:
    install(plane)
    return plane


def job(namespace: str, path: str = "metadata.labels", value: Any = None) -> Json:
    return changed(changed(JOB, "metadata.namespace", namespace), path, value)


def test_a_valid_job_is_accepted_and_filled_in(installed: Plane, namespace: str) -> None:
    bare = job(namespace, "spec.stopRule", {"kDeclines": {}})
    spec = installed.client().post(jobs(namespace), bare)["spec"]
    assert {"k": 3, "minDelta": "0.0"}.items() <= spec["stopRule"]["kDeclines"].items()
    assert spec["metrics"] == [{"name": "gold_reward", "direction": "Maximize", "role": "Primary"}]
    assert spec["scrape"] == {
        "path": "/metrics",
        "intervalSeconds": 15,
        "firstEvalSeconds": 1800,
        "speaker": "Any",
    }
    assert (spec["mode"], spec["runState"], spec["priority"]) == ("Enforce", "Run", 0)
    assert spec["checkpoints"]["retention"] == {"volumeClaim": {"claimName": "kept", "path": "/"}}
    assert (spec["checkpoints"]["keep"], spec["checkpoints"]["maxStepLag"]) == ("Best", 0)
    assert "resume" not in spec


def test_the_server_and_the_models_fill_in_the_same(installed: Plane, namespace: str) -> None:
    filled = installed.client().post(jobs(namespace), job(namespace))
    filled["metadata"] = {"name": "run", "namespace": "team"}
    assert desired(filled, pool()) == desired(JOB, pool())


@pytest.mark.parametrize("speaker", ["Any", 0, "role=learner", "app.kubernetes.io/component=head"])
def test_who_speaks_is_any_an_index_or_a_label(installed: Plane, namespace: str, speaker: Any) -> None:
    stored = installed.client().post(jobs(namespace), job(namespace, "spec.scrape", {"speaker": speaker}))
    assert stored["spec"]["scrape"]["speaker"] == speaker


def test_a_template_keeps_fields_nobody_here_knows(installed: Plane, namespace: str) -> None:
    template = changed(TEMPLATE, "spec.futureField", {"deep": [1, {"x": None, "y": "z"}]})
    stored = installed.client().post(jobs(namespace), job(namespace, "spec.workload.template", template))
    assert stored["spec"]["workload"]["template"]["spec"]["futureField"] == {
        "deep": [1, {"x": None, "y": "z"}]
    }


def test_an_unknown_field_is_pruned_or_refused(installed: Plane, namespace: str) -> None:
    client, odd = installed.client(), job(namespace, "spec.colour", "red")
    strict = refusal(client, "POST", jobs(namespace, query="fieldValidation=Strict"), odd)
    assert 'unknown field "spec.colour"' in strict
    assert "colour" not in client.post(jobs(namespace, query="fieldValidation=Ignore"), odd)["spec"]


K, DELTA, WARM = (
    "spec.stopRule.kDeclines.k",
    "spec.stopRule.kDeclines.minDelta",
    "spec.modifiers.0.warmUp.minEvals",
)
PLACES = "spec.checkpoints"
REF = {"apiVersion": "batch/v1", "kind": "Job", "name": "x"}
WORKER = {"name": "worker", "resources": {"limits": {"nvidia.com/gpu": "4", "memory": "300G"}}}
FAMILY = {
    "name": "dense",
    "template": {"spec": {"containers": [WORKER]}},
    "replicas": 2,
    "gpusPerReplica": 4,
    "deviceBytes": 80 * 10**9,
    "hostBytes": 200 * 10**9,
}
OFFERED = {"families": [FAMILY]}
SHARES = {"family": "dense", "stateBytes": 39 * 10**9}
STORE = {"objectStore": {"uri": "s3://bucket/run"}}
INSIDE = {"objectStore": {"uri": "s3://bucket/run/kept"}}

REFUSED: list[tuple[str, Any, list[str]]] = [
    (K, 0, [f"{K}: Invalid value: 0", "greater than or equal to 1"]),
    (K, 101, [f"{K}: Invalid value: 101", "less than or equal to 100"]),
    (K, 2.5, [f"{K}: Invalid value", "must be of type integer"]),
    (DELTA, "-0.01", [f'{DELTA}: Invalid value: "-0.01"', "minDelta is -0.01, expected a value >= 0"]),
    (DELTA, 0.01, [f"{DELTA}: Invalid value", "must be of type string"]),
    (DELTA, "NaN", [f'{DELTA}: Invalid value: "NaN"', "should match"]),
    (DELTA, "1e999", [f'{DELTA}: Invalid value: "1e999"', "should match"]),
    (
        WARM,
        2,
        [
            "spec.modifiers: Invalid value",
            "warmUp.minEvals: 2 is not allowed, expected at least stopRule.kDeclines.k = 3",
        ],
    ),
    (
        "spec.stopRule",
        {},
        ["spec.stopRule: Invalid value", "stopRule has 0 members, exactly one is needed of: kDeclines"],
    ),
    ("spec.stopRule", {name: {} for name in RULES}, [f"stopRule has {len(RULES)} members, exactly one"]),
    ("spec.modifiers.0", {}, ["spec.modifiers[0]: Invalid value", "modifier has 0 members"]),
    (
        "spec.workload",
        {},
        ["spec.workload: Invalid value", "workload has 0 members, exactly one is needed of: template, ref"],
    ),
    ("spec.workload.ref", REF, ["workload has 2 members, exactly one is needed of: template, ref"]),
    ("spec.metrics", [], ["spec.metrics", "should have at least 1 items"]),
    ("spec.metrics", [{"name": "a", "role": "Proxy"}], ["metrics need exactly one of role Primary, found 0"]),
    ("spec.metrics", [{"name": "a"}, {"name": "b"}], ["metrics need exactly one of role Primary, found 2"]),
    (
        "spec.metrics",
        [{"name": "a"}, *({"name": f"g{i}", "role": "Guardrail"} for i in range(4))],
        ["at most 3 of role Guardrail, found 4"],
    ),
    (
        "spec.metrics",
        [{"name": "a"}, *({"name": f"p{i}", "role": "Proxy"} for i in range(2))],
        ["at most one of role Proxy, found 2"],
    ),
    (
        "spec.metrics",
        [{"name": "a", "stopRule": {"scan": {}}}],
        ["metrics[].stopRule is for role Guardrail, a has role Primary"],
    ),
    (
        "spec.metrics",
        [{"name": "a"}, {"name": "b", "role": "Guardrail", "stopRule": {"kDeclines": {"k": 0}}}],
        ["stopRule.kDeclines.k: Invalid value: 0"],
    ),
    ("spec.modifiers", [{"confirm": {"margin": "-1"}}], ["margin is -1, expected a value >= 0"]),
    ("spec.modifiers", [{"confirm": {"unanswered": "Never"}}], ['Unsupported value: "Never"']),
    ("spec.modifiers", [{"graded": {"warnAt": "1.5"}}], ["warnAt is 1.5, expected a value >= 0 and <= 1"]),
    ("spec.metrics", [{"name": "a"}, {"name": "a", "role": "Proxy"}], ["Duplicate value", '"name":"a"']),
    (
        "spec.metrics.0.range",
        ["1", "0"],
        ["spec.metrics[0].range: Invalid value", "range is 1 to 0, expected the lowest score"],
    ),
    ("spec.metrics.0.range", ["0.5", ".5"], ["range is 0.5 to .5, expected the lowest score"]),
    ("spec.metrics.0.range", ["0"], ["spec.metrics[0].range: Invalid value", "at least 2 items"]),
    ("spec.metrics.0.range", ["0", "1", "2"], ["spec.metrics[0].range: Too many", "at most 2 items"]),
    ("spec.metrics.0.range", [0, 1], ["spec.metrics[0].range[0]: Invalid value", "must be of type string"]),
    (
        "spec.metrics.0.range",
        ["0", "Inf"],
        ['metrics[0].range[1]: Invalid value: "Inf"', "should match"],
    ),
    (
        "spec.metrics.0.prompts",
        0,
        ["metrics[0].prompts: Invalid value: 0", "greater than or equal to 1"],
    ),
    ("spec.metrics.0.prompts", -5, ["spec.metrics[0].prompts: Invalid value: -5"]),
    ("spec.metrics.0.prompts", 10**9, ["spec.metrics[0].prompts", "less than or equal to 1000000"]),
    ("spec.metrics.0.prompts", 12.5, ["spec.metrics[0].prompts", "must be of type integer"]),
    (
        "spec.metrics.0.preset",
        "accuracy",
        ['spec.metrics[0].preset: Unsupported value: "accuracy"', '"Accuracy", "WinRate", "PassAtK"'],
    ),
    (
        "spec.metrics",
        [{"name": "a", "preset": "Accuracy", "range": ["0", "1"]}],
        ["a has both preset and range: preset Accuracy stands for range 0 to 1, keep one of them"],
    ),
    (
        "spec.metrics",
        [{"name": "a"}, {"name": "b", "role": "Proxy", "prompts": 20}],
        ["preset, range and prompts are for metrics that are judged, b has role Proxy"],
    ),
    (
        "spec.metrics.0.direction",
        "Up",
        ["spec.metrics[0].direction: Unsupported value", '"Maximize", "Minimize"'],
    ),
    ("spec.scrape.speaker", 2, ["scrape.speaker is 2, gang.replicas 1: expected a completion index below"]),
    *(
        ("spec.scrape.speaker", value, [f"speaker is {value}, expected Any, a completion index (a number"])
        for value in (-1, 1024, "any", "0", "role", "role=", "a=b,c=d", "a=" + "b" * 64)
    ),
    ("spec.scrape.speaker", True, ["spec.scrape.speaker", "must be of type integer,string"]),
    ("spec.mode", True, ["spec.mode", "must be of type string"]),
    ("spec.mode", "On", ["spec.mode: Unsupported value", '"Enforce", "Shadow", "Off"']),
    ("spec.gang.replicas", 0, ["spec.gang.replicas: Invalid value: 0", "greater than or equal to 1"]),
    ("spec.gang.gpusPerReplica", DELETE, ["spec.gang.gpusPerReplica: Required value"]),
    ("spec.pool", "A_100", ["spec.pool: Invalid value", "should match"]),
    ("spec.priority", 10**9, ["spec.priority: Invalid value", "less than or equal to 1000000"]),
    (f"{PLACES}.layout", DELETE, [f"{PLACES}.layout: Required value"]),
    (f"{PLACES}.location", {}, ["place has 0 members, exactly one is needed of: volumeClaim, objectStore"]),
    (
        f"{PLACES}.retention.volumeClaim.claimName",
        "work",
        [f"{PLACES}.retention: Invalid value", "another volume claim than location", "both are work"],
    ),
    (f"{PLACES}.retention.volumeClaim.path", "/a/../b", ['path /a/../b has a step "." or ".."']),
    (
        f"{PLACES}.retention.volumeClaim.path",
        "a",
        [f"{PLACES}.retention.volumeClaim.path: Invalid value", "should match"],
    ),
    (
        PLACES,
        {"layout": "Plain", "location": STORE, "retention": INSIDE},
        [f"{PLACES}.retention: Invalid value", "must lie outside location", "s3://bucket/run/kept"],
    ),
    (
        f"{PLACES}.retention",
        {"objectStore": {"uri": "s3://key:secret@bucket/x"}},
        ["uri: Invalid value", "should match"],
    ),
    (
        f"{PLACES}.location",
        {"objectStore": {"uri": "s3://bucket/run/"}},
        ["uri: Invalid value", "should match"],
    ),
    (
        f"{PLACES}.location",
        {"objectStore": {"uri": "s3://bucket//run"}},
        ["uri: Invalid value", "should match"],
    ),
    *(
        (f"{PLACES}.location", {"objectStore": {"uri": uri}}, [told])
        for uri, told in (
            ("s3a://bucket/run", "expected a scheme of s3, gs or az"),
            ("gcs://bucket/run", "so that a bucket has one name"),
            ("http://169.254.169.254/latest", "expected a scheme of s3, gs or az"),
            ("https://store/run", "expected a scheme of s3, gs or az"),
            ("file:///retained/team", "uri: Invalid value"),
            ("memory://x/run", "expected a scheme of s3, gs or az"),
            ("s3://Bucket/run", "should match"),
            ("s3://bucket/r%75n", "should match"),
            ("s3://bucket:9000/run", "should match"),
        )
    ),
    (f"{PLACES}.location", {"objectStore": {"uri": "s3://bucket/./run"}}, ['has a step "." or ".."']),
    (f"{PLACES}.maxStepLag", -1, [f"{PLACES}.maxStepLag: Invalid value: -1", "greater than or equal to 0"]),
    (
        "spec.scrape.intervalSeconds",
        4,
        ["spec.scrape.intervalSeconds: Invalid value: 4", "greater than or equal to 5"],
    ),
    ("spec.scrape.port", 70000, ["spec.scrape.port: Invalid value: 70000", "less than or equal to 65535"]),
    ("spec.scrape.path", "http://elsewhere/", ["spec.scrape.path: Invalid value", "should match"]),
    (
        "spec.resume",
        {"id": "r", "from": "Step"},
        ["spec.resume: Invalid value", "resume.step is needed with from: Step"],
    ),
    (
        "spec.resume",
        {"id": "r", "step": 5},
        ["resume.step is needed with from: Step and only with it, from is Best"],
    ),
    ("spec.gang.gpusPerReplica", 0, ["gang.gpusPerReplica is 0, which is allowed with spec.sharing only"]),
    (
        "spec",
        {**JOB["spec"], "workload": {"ref": REF}, "sharing": SHARES},
        ["spec.sharing: is not allowed with workload.ref, whose pods get no token for their group"],
    ),
    ("spec.runState", "Paused", ["spec.runState: Unsupported value", '"Run", "Stopped"']),
    ("metadata.name", "x" * 41, ["has 41 characters, expected at most 40"]),
    ("metadata.name", "a.b", ["expected at most 40 of a-z, 0-9 and -, no dot"]),
]


@pytest.mark.parametrize(
    ("path", "value", "said"), REFUSED, ids=[f"{r[0]}-{n}" for n, r in enumerate(REFUSED)]
)
def test_a_bad_spec_is_refused_in_words(
    installed: Plane, default_namespace: str, path: str, value: Any, said: list[str]
) -> None:
    bad = job(default_namespace, path, value)
    words = refusal(installed.client(), "POST", jobs(default_namespace, query="dryRun=All"), bad)
    assert words
    for part in said:
        assert part in words


@pytest.mark.parametrize(
    ("path", "value", "said"), REFUSED, ids=[f"{r[0]}-{n}" for n, r in enumerate(REFUSED)]
)
def test_what_the_server_refuses_the_models_refuse_too(path: str, value: Any, said: list[str]) -> None:
    """So a job that came past an older schema is a problem in a condition, not a surprise in the operator."""
    assert desired(changed(JOB, path, value), pool()).problem is not None


@pytest.fixture(scope="module")
def default_namespace() -> str:
    """Dry runs leave nothing behind, so they share a namespace."""
    return "default"


POD = "spec.workload.template.spec.template.spec"
TEMPLATES: tuple[tuple[str, Any, str], ...] = (
    ("spec.gang.replicas", 3, "workload.template.spec.completions is 1, expected 3 as in gang.replicas"),
    ("spec.workload.template.spec.parallelism", 2, "template.spec.parallelism is 2, expected 1"),
    (
        f"{POD}.containers.0.resources",
        {"limits": {"nvidia.com/gpu": "3"}},
        "the containers of workload.template have 3 nvidia.com/gpu in their limits, expected",
    ),
    (
        f"{POD}.containers.0.resources",
        {"limits": {"nvidia.com/gpu": 3}},
        "the containers of workload.template have 3 nvidia.com/gpu in their limits, expected",
    ),
    ("spec.workload.template.spec.completions", "one", "must be of type integer"),
)


@pytest.mark.parametrize(("path", "value", "said"), TEMPLATES, ids=[str(row[1]) for row in TEMPLATES])
def test_a_dry_run_tells_of_a_template_that_is_not_the_gangs(
    installed: Plane, default_namespace: str, path: str, value: Any, said: str
) -> None:
    bad = job(default_namespace, path, value)
    assert said in refusal(installed.client(), "POST", jobs(default_namespace, query="dryRun=All"), bad)


@pytest.mark.parametrize("limits", [{}, {"nvidia.com/gpu": "1", "memory": "8Gi"}, {"nvidia.com/gpu": 1}])
def test_a_template_whose_gpus_are_the_gangs_or_are_counted_later_is_let_in(
    installed: Plane, default_namespace: str, limits: Any
) -> None:
    made = job(default_namespace, f"{POD}.containers.0.resources", {"limits": limits})
    made = changed(made, "spec.gang.gpusPerReplica", 1)
    installed.client().post(jobs(default_namespace, query="dryRun=All"), made)


def put_status(plane: Plane, namespace: str, new: Json) -> Json:
    client = plane.client()
    obj = client.get(jobs(namespace, "run"))
    obj["status"] = new
    path = jobs(namespace, "run") + "/status?fieldValidation=Strict"
    stored: Json = client.request("PUT", path, obj, 10.0)["status"]
    return stored


def accepted(**more: Any) -> Json:
    condition = {
        "type": "Accepted",
        "status": "True",
        "reason": "Valid",
        "message": "",
        "lastTransitionTime": "2026-11-21T09:00:00Z",
        "observedGeneration": 1,
    }
    return {"conditions": [condition], **more}


ADMISSION = {"number": 1, "nodes": ["n1"], "time": "2026-11-21T09:00:00Z"}
FIXED: list[tuple[str, Any, Json, str]] = [
    (
        "spec.workload.template.spec.backoffLimit",
        2,
        accepted(),
        "spec.workload cannot change once the job is accepted",
    ),
    (
        "spec.workload.template.spec.unknown",
        2,
        accepted(),
        "spec.workload cannot change once the job is accepted",
    ),
    ("spec.workload", {"ref": REF}, accepted(), "spec.workload cannot change once the job is accepted"),
    ("spec.gang.gpusPerReplica", 3, accepted(), "spec.gang cannot change once the job is accepted"),
    (
        "spec.checkpoints.location.volumeClaim.path",
        "/b",
        accepted(),
        "spec.checkpoints.location cannot change",
    ),
    ("spec.checkpoints.layout", "Verl", accepted(), "spec.checkpoints.layout cannot change"),
    (
        "spec.checkpoints.retention.volumeClaim.claimName",
        "b",
        accepted(),
        "spec.checkpoints.retention cannot change",
    ),
    ("spec.pool", "b", {"admission": ADMISSION}, "spec.pool cannot change while the job holds GPUs"),
    ("spec.sharing", SHARES, {"admission": ADMISSION}, "spec.sharing cannot change while the job holds GPUs"),
    ("spec.metrics.0.name", "b", {"evals": ["1 0.5 -"]}, "Primary metric cannot change once evals were read"),
    ("spec.metrics.0.direction", "Minimize", {"evals": ["1 0.5 -"]}, "Primary metric cannot change"),
]


def test_what_cannot_work_any_more_cannot_be_changed(installed: Plane, namespace: str) -> None:
    client = installed.client()
    client.post(jobs(namespace), job(namespace))
    for path, value, held, said in FIXED:
        put_status(installed, namespace, held)
        now = client.get(jobs(namespace, "run"))
        dry = jobs(namespace, "run", "dryRun=All")
        assert said in refusal(client, "PUT", dry, changed(now, path, value)), path
        put_status(installed, namespace, {})
        now = client.get(jobs(namespace, "run"))
        assert refusal(client, "PUT", dry, changed(now, path, value)) == "", f"{path} is free before"


def test_what_can_work_can_be_changed_at_any_time(installed: Plane, namespace: str) -> None:
    client = installed.client()
    client.post(jobs(namespace), job(namespace))
    put_status(installed, namespace, accepted(admission=ADMISSION, evals=["1 0.5 -"]))
    for path, value in (
        ("spec.stopRule.kDeclines.k", 2),
        ("spec.mode", "Shadow"),
        ("spec.runState", "Stopped"),
        ("spec.priority", 3),
        ("spec.metrics.0.range", ["-10.5", "1e3"]),
        ("spec.metrics.0.prompts", 1319),
        ("spec.checkpoints.maxStepLag", 100),
        ("spec.scrape.intervalSeconds", 30),
        ("spec.resume", {"id": "again"}),
    ):
        now = client.get(jobs(namespace, "run"))
        assert refusal(client, "PUT", jobs(namespace, "run"), changed(now, path, value)) == "", path


def test_a_layout_that_is_to_be_found_may_be_named_until_it_was(installed: Plane, namespace: str) -> None:
    client = installed.client()
    client.post(jobs(namespace), changed(job(namespace), "spec.checkpoints.layout", "Auto"))
    dry, found = jobs(namespace, "run", "dryRun=All"), {"name": "Verl", "by": "global_step_1/actor/x"}
    for held, said in ((accepted(), ""), (accepted(layout=found), "spec.checkpoints.layout cannot change")):
        put_status(installed, namespace, held)
        now = client.get(jobs(namespace, "run"))
        assert said in refusal(client, "PUT", dry, changed(now, "spec.checkpoints.layout", "Plain"))
        assert bool(said) == bool(
            refusal(client, "PUT", dry, changed(now, "spec.checkpoints.layout", "Plain"))
        )


def test_a_full_status_is_stored_as_it_is(installed: Plane, namespace: str) -> None:
    installed.client().post(jobs(namespace), job(namespace))
    full = full_record(condition_count=12, retained=4, message="m")
    assert record(put_status(installed, namespace, status(full, DESIRED, 0.0))) == full
    assert record(put_status(installed, namespace, {})) == JobRecord()


def test_status_and_spec_are_written_apart(installed: Plane, namespace: str) -> None:
    client = installed.client()
    created = client.post(jobs(namespace), {**job(namespace), "status": {"summary": "Stopped"}})
    assert "status" not in created
    put_status(installed, namespace, {"summary": "Queued"})
    now = client.get(jobs(namespace, "run"))
    assert now["metadata"]["generation"] == 1
    assert "summary" not in client.request("PUT", jobs(namespace, "run"), now | {"status": {}}, 10.0).get(
        "spec"
    )
    assert client.get(jobs(namespace, "run"))["status"] == {"summary": "Queued"}


def test_kubectl_says_how_it_is_going(installed: Plane, namespace: str, kubectl: Callable[..., str]) -> None:
    installed.client().post(jobs(namespace), job(namespace))
    empty = kubectl("get", "rj", "-n", namespace).splitlines()
    assert empty[0].split() == ["NAME", "STATE", "REASON", "STEP", "EVAL", "BEST", "STREAK", "GPUS", "AGE"]
    full = full_record(condition_count=11, retained=2, message="m")
    put_status(installed, namespace, status(full, DESIRED, 0.0))
    row = kubectl("get", "rlhfjobs", "-n", namespace, "--no-headers").split()
    assert row[:8] == ["run", "Stopped", "ExitCode", "123100", "-0.1235", "-0.1235", "3/3", "0/32"]
    wide = kubectl("get", "rlhfjobs", "-n", namespace, "-o", "wide").splitlines()
    named = dict(zip(wide[0].split(), wide[1].split(), strict=True))
    assert named["BESTSTEP"] == "120000"
    assert named["ATTEMPT"] == "12"
    assert (named["MODE"], named["RULE"], named["POOL"]) == ("Enforce", "kDeclines", "a100")
    assert named["STOPPED"] == "ConsecutiveDeclines"
    assert named["CHECKPOINT"] == "/retained/research-team/over-optimising-run-3b3f2a/1-9f2c41d0-120002"


def test_kubectl_explains_every_field(installed: Plane, kubectl: Callable[..., str]) -> None:
    text = kubectl("explain", "rlhfjob.spec.stopRule.kDeclines.minDelta")
    assert "A fall of this much or less is no decline" in text


@pytest.fixture
def pool_name(installed: Plane, namespace: str) -> Any:
    name = namespace[:50].strip("-")
    yield name
    refusal(installed.client(), "DELETE", f"{GROUP}/gpupools/{name}", {})


def test_a_pool_is_accepted_filled_in_and_shown(
    installed: Plane, pool_name: str, kubectl: Callable[..., str]
) -> None:
    client = installed.client()
    stored = client.post(f"{GROUP}/gpupools", changed(POOL, "metadata.name", pool_name))
    assert stored["spec"]["queuePolicy"] == {"fifo": {"backfill": "Disabled"}}
    patch = ("patch", "gpupool", pool_name, "--type", "merge", "--dry-run=server", "-o", "json", "-p")
    with pytest.raises(PlaneError, match="queuePolicy has 2 members"):
        kubectl(*patch, '{"spec":{"queuePolicy":{"las":{}}}}')
    told = 'queuePolicy":{"fifo":null,"las":{}}}}'  # docs/operate/queueing.md
    assert told in Path(__file__).parents[2].joinpath("docs", "operate", "queueing.md").read_text()
    assert [*json.loads(kubectl(*patch, '{"spec":{"' + told))["spec"]["queuePolicy"]] == ["las"]
    assert (stored["spec"]["modeCap"], stored["spec"]["reservationSeconds"]) == ("Enforce", 300)
    assert (stored["spec"]["maxWaitSeconds"], stored["spec"]["preemption"]) == (604800, {"graceSeconds": 300})
    assert stored["spec"]["allowedNamespaces"][0]["weight"] == 1
    for name in POLICIES:
        stored["spec"]["queuePolicy"] = {name: {}}
        stored = client.request("PUT", f"{GROUP}/gpupools/{pool_name}", stored, 10.0)
        found = parse_pool(stored)
        assert not isinstance(found, tuple), found
        assert policy(found).name == name
    stored["status"] = {"capacity": 8, "free": 2, "running": 3, "queued": 1}
    client.request("PUT", f"{GROUP}/gpupools/{pool_name}/status", stored, 10.0)
    assert kubectl("get", "gp", pool_name, "--no-headers").split()[:5] == [pool_name, "8", "2", "3", "1"]


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("spec.nodeSelector", [], "spec.nodeSelector"),
        ("spec.nodeSelector.0.key", "a b", "spec.nodeSelector[0].key: Invalid value"),
        ("spec.allowedNamespaces", [], "spec.allowedNamespaces"),
        ("spec.allowedNamespaces", [{"name": "a"}, {"name": "a"}], "Duplicate value"),
        ("spec.queuePolicy", {"lottery": {}}, "queuePolicy has 0 members, exactly one is needed of: fifo"),
        ("spec.queuePolicy.fifo", {"backfill": True}, "must be of type string"),
        ("spec.modeCap", "Never", '"Enforce", "Shadow", "Off"'),
        ("spec.reservationSeconds", 0, "greater than or equal to 1"),
        ("metadata.name", "a.b", "must be at most 63 characters without a dot"),
        (
            "spec",
            {**POOL["spec"], "delegate": "Kueue", "kueue": {"localQueue": "q"}, "sharing": OFFERED},
            "spec.sharing: is not allowed with delegate Kueue, only with Builtin",
        ),
        (
            "spec",
            {**POOL["spec"], "delegate": "None", "sharing": OFFERED},
            "spec.sharing: is not allowed with delegate None, only with Builtin",
        ),
    ],
)
def test_a_bad_pool_is_refused_in_words(installed: Plane, path: str, value: Any, said: str) -> None:
    bad = changed(POOL, path, value)
    assert said in refusal(installed.client(), "POST", f"{GROUP}/gpupools?dryRun=All", bad)


def test_the_stored_crd_is_well_formed(installed: Plane) -> None:
    """Conditions of the CRD itself: names accepted, established, and no complaint about its schema."""
    for name in ("rlhfjobs", "gpupools", "workergroups"):
        crd = installed.client().get(
            f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}.evalstop.dev"
        )
        found = {c["type"]: c["status"] for c in crd["status"]["conditions"]}
        assert found["Established"] == found["NamesAccepted"] == "True"
        assert "NonStructuralSchema" not in found
        # `kubectl apply` keeps it in an annotation, and those of an object have 256 KiB together.
        assert len(json.dumps(crd["spec"])) < 256 * 1024 * 5 // 8
