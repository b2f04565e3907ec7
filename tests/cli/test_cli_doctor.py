"""Doctor: what is wrong with an installation, a job, a trainer's page; and the command that mends it."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import reasons_written
import yaml
from typer.testing import CliRunner

from controller import names
from controller.api.crd import RESOURCES, root_schema
from controller.cli import explanation, job_view, remedies
from controller.cli.doctor import command, installation
from controller.cli.doctor import job as checks
from controller.cli.doctor.findings import Finding, Level, gather, note, ok, unknown, wrong
from controller.cli.doctor.pods import trouble
from controller.cli.main import app
from controller.cli.terminal import Terminal
from controller.kube.errors import ApiError, NotFound, Refused
from controller.kube.resources import GPUPOOLS, PODS
from controller.policy.job import Cure, Member
from controller.policy.job import conditions as c
from controller.policy.job.cures import CURES, EXAMINING, NEEDS_NOBODY
from controller.policy.job.record import Claim, InFlight, LifeRecord, Operation, RunProgress, StepCounts
from controller.policy.types import Attempt
from deploy.local.plane import Plane
from tests.support import cli_world as w
from tests.support.fresh_namespace import fresh_namespace
from tests.support.waiting import wait_until

LATER = w.START + 1e6  # s: whatever may become a warning is one

PART_OF = "app.kubernetes.io/part-of"
POD = {"restartPolicy": "Never", "containers": [{"name": "t", "image": "x"}]}
GOOD = b"""\
rlhf_run_info{uid="uid-run",attempt="1-9f2c41d0"} 1
rlhf_eval_score{metric="gold_reward",step="20",attempt="1-9f2c41d0"} 0.41
rlhf_eval_score_stderr{metric="gold_reward",step="20",attempt="1-9f2c41d0"} 0.01
rlhf_checkpoint_step 20
rlhf_total_steps 400
rlhf_request_served 0
"""


@pytest.mark.parametrize(
    ("cure", "lines"),
    [
        (Cure("lower it, or take another pool of those that are there"),
         ["→ lower it, or take another", "  pool of those that are there"]),
        (Cure("ask for less", "kubectl edit rlhfjob a-long-name -n a-namespace"),
         ["→ ask for less:", "  kubectl edit rlhfjob a-long-name -n a-namespace"]),
        (Cure("", "kubectl edit rlhfjob a-long-name -n a-namespace"),
         ["→ kubectl edit rlhfjob a-long-name -n a-namespace"]),
        (Cure("ask for less", "kubectl edit"), ["→ ask for less: kubectl edit"]),
    ],
)  # fmt: skip
def test_a_cure_is_folded_and_its_command_stays_whole(cure: Cure, lines: list[str]) -> None:
    found = Finding(Level.WRONG, "a", "b", cure)
    narrow = command.page([found], Terminal(width=40))
    assert narrow[1:-2] == [f"{'':9}{line}" for line in lines]
    assert command.page([found], Terminal())[1:-2] == [f"{'':9}→ {cure.line}"], "no screen: nothing is folded"


def test_a_run_on_a_node_that_takes_no_new_pods_is_told() -> None:
    class OneNode:
        def __init__(self, answer: Any, status: Any) -> None:
            self.answer, self.status = answer, status

        async def get(self, resource: Any, name: str) -> Any:
            assert (resource.plural, name) == ("nodes", "node-1")
            if isinstance(self.answer, Exception):
                raise self.answer
            return {"metadata": {"name": name}, "spec": self.answer, "status": self.status}

    run = job_view.read(w.whole("run", w.running()))

    def told(answer: Any, level: Level = Level.NOTE, **ready: str) -> list[str]:
        one = OneNode(answer, {"conditions": [{"type": "Ready", "status": "True"} | ready]})
        found = asyncio.run(gather("pods", checks.nodes(one, run)))  # type: ignore[arg-type]
        return texts(found, level)

    assert told({}) == []
    assert told(Refused(403, "Forbidden", "no")) == []
    assert told(NotFound(404, "NotFound", "no")) == ["its node node-1 is gone"]
    assert [one.partition(":")[0] for one in told({"unschedulable": True})] == ["its node node-1 is cordoned"]
    silent = {"status": "Unknown", "reason": "NodeStatusUnknown", "message": "Kubelet stopped posting it."}
    (text,) = told({"unschedulable": True}, Level.WRONG, **silent)
    assert text.startswith("its node node-1 is not ready (NodeStatusUnknown: Kubelet stopped posting it): ")
    planned = replace(run.record.admission, nodes=("node-1",), bound_nodes=())
    run = replace(run, record=replace(run.record, admission=planned))
    assert told({"unschedulable": True}) == [
        "node-1, the node planned for it, is cordoned: no pod of it gets there"
    ]


def test_a_pod_that_failed_and_was_replaced_is_not_what_is_wrong() -> None:
    """A Job keeps its failed pods: a run that has gone on since would be called wrong to its end."""

    def pod(name: str, minute: int, phase: str, index: str = "0") -> dict[str, Any]:
        code = {"terminated": {"exitCode": 3, "reason": "Error"}} if phase == "Failed" else {"running": {}}
        return {
            "metadata": {
                "name": name,
                "creationTimestamp": f"2026-01-01T00:0{minute}:00Z",
                "annotations": {"batch.kubernetes.io/job-completion-index": index},
                "ownerReferences": [{"kind": "Job", "name": "run", "uid": "u", "controller": True}],
            },
            "status": {"phase": phase, "containerStatuses": [{"name": "t", "state": code}]},
        }

    class Pods:
        def __init__(self, *pods: dict[str, Any]) -> None:
            self.pods = list(pods)

        async def list(self, resource: Any, *_: Any, **__: Any) -> tuple[list[Any], str]:
            return (self.pods if resource is PODS else []), ""

        async def get(self, *_: Any) -> Any:
            raise Refused(403, "Forbidden", "no")

    run = job_view.read(w.whole("run", w.running()))

    def told(*pods: dict[str, Any]) -> tuple[list[str], list[str]]:
        found = asyncio.run(gather("pods", checks.pods(Pods(*pods), run)))  # type: ignore[arg-type]
        return texts(found, Level.WRONG), texts(found, Level.NOTE)

    failed = pod("run-0-a", 1, "Failed")
    sick = "run-0-a: ended with exit code 3, Error"
    assert told(failed, pod("run-0-b", 2, "Running")) == ([], [f"{sick}; another pod has taken its place"])
    assert sick in told(failed, pod("run-0-b", 2, "Failed"))[0]  # nothing has gone on
    assert sick in told(failed, pod("run-1-b", 2, "Running", "1"))[0]
    assert sick in told(failed)[0]


def texts(found: list[Finding], level: Level) -> list[str]:
    return [finding.text for finding in found if finding.level is level]


def page_of(body: bytes, **spec: Any) -> list[Finding]:
    obj = w.whole("run", w.running())
    obj["spec"] |= spec
    return list(checks.examined(job_view.read(obj), body))


# -- trainers' pages ----------------------------------------------------------------------------------------


def test_a_page_as_it_should_be() -> None:
    assert page_of(GOOD) == [ok("metrics", "1 eval of 'gold_reward' on the page, the newest at step 20")]


def page_with(scores: list[float]) -> bytes:
    """As `GOOD`, with these scores and no standard error."""
    head, *rest = [line for line in GOOD.splitlines() if b"eval_score" not in line]
    evals = [
        b'rlhf_eval_score{metric="gold_reward",step="%d",attempt="1-9f2c41d0"} %r' % (n, score)
        for n, score in enumerate(scores)
    ]
    return b"\n".join([head, *evals, *rest, b""])


def metric(**more: Any) -> list[dict[str, Any]]:
    return [{"name": "gold_reward", "role": "Primary", **more}]


SHARES = [7 / 40, 9 / 40, 13 / 40, 21 / 40]


@pytest.mark.parametrize(
    ("declared", "lacks", "cures"),
    [
        (
            {},
            ["rlhf_eval_score_stderr", "number of prompts", "range of scores"],
            ["preset: Accuracy", "prompts: 40"],
        ),
        ({"prompts": 40}, ["rlhf_eval_score_stderr", "range of scores"], ["preset: Accuracy"]),
        (
            {"preset": "WinRate"},
            ["rlhf_eval_score_stderr", "number of prompts"],
            ["prompts: 40, if it is so"],
        ),
    ],
)
def test_the_number_that_would_make_the_rule_see_is_named_and_proposed(
    declared: dict[str, Any], lacks: list[str], cures: list[str]
) -> None:
    found = page_of(page_with(SHARES), metrics=metric(**declared))
    (finding,) = [f for f in found if f.level is Level.NOTE]
    assert finding.text.startswith(f"the noise of an eval is not known (no {lacks[0]} above 0, no {lacks[1]}")
    assert all(f"no {part}" in finding.text for part in lacks)
    assert all(part in finding.cure.line for part in cures)
    assert ("prompts" in finding.cure.line) == ("number of prompts" in lacks)


def test_nothing_is_missing_where_prompts_and_their_range_are_named() -> None:
    found = page_of(page_with(SHARES), metrics=metric(prompts=40, preset="Accuracy"))
    assert [f.level for f in found] == [Level.OK]


def test_no_number_of_prompts_is_proposed_where_scores_show_none() -> None:
    found = page_of(
        page_with([0.1234567, 0.7654321, 0.3141593, 0.2718282]), metrics=metric(preset="Accuracy")
    )
    (finding,) = [f for f in found if f.level is Level.NOTE]
    assert finding.cure.line == "add to the Primary of spec.metrics prompts: how many an eval has"


def test_a_primary_that_is_no_eval_is_told() -> None:
    batches = [0.1, 0.9, 0.3, 0.8, 0.05, 0.7, 0.2, 0.95, 0.15, 0.6]
    found = page_of(page_with(batches), metrics=metric(prompts=1000, preset="Accuracy"))
    (said,) = texts(found, Level.WRONG)
    assert "'gold_reward' scatters by 0." in said
    assert "name a score on held-out prompts as Primary" in said


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"<html>hello</html>", "NotPrometheus"),
        (GOOD.replace(b',attempt="1-9f2c41d0"', b""), "has no label attempt"),
        (b"", "no rlhf_eval_score with metric='gold_reward' (Primary); names there: none"),
        (GOOD.replace(b"gold_reward", b"reward"), "names there: reward"),
        (
            GOOD.replace(b',attempt="1-9f2c41d0"', b""),
            "NotByContract: rlhf_eval_score{",
        ),
        (
            GOOD + b'rlhf_eval_score{metric="gold_reward",step="20",attempt="1-9f2c41d0"} 0.99\n',
            "count for nothing",
        ),
        (GOOD.replace(b"0.41", b"NaN"), "scores must be finite"),
        (b"x 1\n" * 2_000_000, "at most"),
    ],
)
def test_pages_that_break_the_contract(body: bytes, said: str) -> None:
    found = page_of(body)
    assert any(said in text for text in texts(found, Level.WRONG)), found
    assert all(f.cure.line for f in found if f.level is Level.WRONG)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (GOOD.replace(b"uid-run", b"stranger"), "ForeignPage: the page is of RLHFJob uid 'stranger'"),
        (GOOD.replace(b"1-9f2c41d0", b"7-9f2c41d0"), "OtherAttempt: the page is of attempt 7, expected 1"),
    ],
)
def test_a_strangers_page_is_not_called_well(body: bytes, said: str) -> None:
    (found,) = page_of(body)
    assert found.level is Level.WRONG
    assert said in found.text
    assert found.cure.line


def test_a_page_without_a_usable_eval_or_an_identity_is_not_called_well() -> None:
    empty = GOOD + b'rlhf_eval_samples{metric="gold_reward",step="20",attempt="1-9f2c41d0"} 0\n'
    found = page_of(empty)
    assert texts(found, Level.OK) == []
    assert any("no eval of 'gold_reward' on the page counts" in text for text in texts(found, Level.WRONG))
    nameless = page_of(GOOD.partition(b"\n")[2], mode="Enforce")
    assert any("Enforce stops nobody" in text for text in texts(nameless, Level.WRONG))


def test_what_a_page_lacks_is_told_with_what_it_costs() -> None:
    bare = b'rlhf_eval_score{metric="gold_reward",step="20",attempt="1-9f2c41d0"} 0.41\n'
    told = texts(page_of(bare), Level.NOTE)
    for name in ("rlhf_checkpoint_step", "rlhf_total_steps", "rlhf_request_served", "rlhf_eval_score_stderr"):
        assert any(name in text for text in told)


def test_a_rule_that_looks_at_what_no_eval_has() -> None:
    found = page_of(GOOD, modifiers=[{"divergence": {}}])
    assert any("which no eval has" in text for text in texts(found, Level.WRONG))
    with_proxy = GOOD + b'rlhf_eval_proxy_reward{metric="gold_reward",step="20",attempt="1-9f2c41d0"} 1\n'
    assert texts(page_of(with_proxy, modifiers=[{"divergence": {}}]), Level.WRONG) == []


def test_a_guardrail_that_is_not_exported() -> None:
    metrics = [{"name": "gold_reward"}, {"name": "safety", "role": "Guardrail"}]
    assert any("metric='safety' (further)" in t for t in texts(page_of(GOOD, metrics=metrics), Level.WRONG))


# -- conditions, pods, schemas ------------------------------------------------------------------------------


def test_conditions_that_ask_for_something() -> None:
    job = job_view.read(w.whole("refused", w.refused()))
    found = list(checks.conditions(job, LATER))
    assert [f.level for f in found] == [Level.WRONG]
    assert found[0].cure.command.startswith("kubectl patch rlhfjob refused -n team ")
    strange = replace(w.ACCEPTED, status=False, reason="SomethingNew", message="spec.x: no")
    found = list(
        checks.conditions(job_view.read(w.whole("odd", replace(w.refused(), conditions=(strange,)))), LATER)
    )
    assert found == [wrong("Refused", "SomethingNew: spec.x: no", found[0].cure)]
    assert "kubectl edit rlhfjob odd" in found[0].cure.line, "a refusal is never passed over"
    fine = list(checks.conditions(job_view.read(w.whole("healthy", w.running())), LATER))
    assert [f.level for f in fine] == [Level.OK]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (c.METRICS, "ForeignPage"),
        (c.METRICS, "OtherAttempt"),
        (c.METRICS, "NoNewEvals"),
        (c.METRICS, "PageTooLarge"),
        (c.TERMINATION, "PageWithoutIdentity"),
        (c.SECURED, "BestCheckpointLost"),
        (c.RETAINED, "RetentionGivenUp"),
    ],
)
def test_troubles_of_the_page_and_the_checkpoints_ask_for_something(kind: str, reason: str) -> None:
    others = tuple(known for known in w.running().conditions if known.type != kind)
    told = w.condition(kind, False, reason, "it is so")
    job = job_view.read(w.whole("run", replace(w.running(), conditions=(*others, told))))
    (found,) = checks.conditions(job, LATER)
    assert found.level is Level.WRONG
    assert found.cure.line
    assert "gang" not in found.cure.line, "that is what TooLarge of a gang says"
    assert [(x.reason, x.message) for x in remedies.marks(job, LATER)] == [(reason, "it is so")]


@pytest.mark.parametrize("reason", sorted(CURES))
def test_doctor_does_not_send_to_itself(reason: str) -> None:
    job = job_view.read(w.whole("run", w.running()))
    assert "evalstop doctor run" not in remedies.cure(job, reason, examining=True).line


def test_what_names_doctor_elsewhere_has_another_word_in_it() -> None:
    named = {reason for reason, found in CURES.items() if "evalstop doctor{job}" in found.command}
    assert named == set(EXAMINING)


@pytest.mark.parametrize("ended", [{"finished": "Completed"}, {"admission": None}])
def test_a_run_without_a_trainer_is_asked_for_no_metrics(ended: dict[str, Any]) -> None:
    told = w.condition(c.METRICS, False, "NoPods", "no pod of completion index 0 has an address yet")
    conditions = (*(known for known in w.running().conditions if known.type != c.METRICS), told)
    runs = job_view.read(w.whole("run", replace(w.running(), conditions=conditions)))
    assert [found.level for found in checks.conditions(runs, LATER)] == [Level.WRONG]
    assert [(x.reason, x.message) for x in remedies.marks(runs, LATER)] == [("NoPods", told.message)]
    over = job_view.read(w.whole("run", replace(w.running(), conditions=conditions, **ended)))
    assert [found.level for found in checks.conditions(over, LATER)] == [Level.OK]
    assert remedies.marks(over, LATER) == ()


@pytest.mark.parametrize(
    ("reads", "error", "level", "said"),
    [
        (
            True,
            Refused(400, "BadRequest", "address not allowed"),
            Level.OK,
            "the operator reads them: 6 evals",
        ),
        (False, Refused(400, "BadRequest", "address not allowed"), Level.UNKNOWN, "address not allowed"),
        (True, Refused(400, "HTTP400", "no such page"), Level.WRONG, "answers 400: no such page"),
        (True, Refused(403, "Forbidden", "no right"), Level.UNKNOWN, "may not be read"),
    ],
)
def test_a_page_that_the_api_server_does_not_ask_for_is_not_the_trainers_fault(
    reads: bool, error: Refused, level: Level, said: str
) -> None:
    others = tuple(known for known in w.running().conditions if known.type != c.METRICS)
    metrics = w.condition(c.METRICS, reads, "Scraped" if reads else "Timeout", "so it is")
    record = replace(w.running(), conditions=(*others, metrics))
    pod = {"metadata": {"name": "run-0"}, "status": {"podIP": "127.1.2.3"}}
    found = checks._unread(job_view.read(w.whole("run", record)), pod, 9400, "/metrics", error, "")
    assert found.level is level
    assert said in found.text
    assert bool(found.cure.line) == (level is not Level.OK)


def test_a_page_on_a_node_that_is_not_ready_is_not_the_trainers_fault() -> None:
    """The finding on the node says what there is to do; this one sent people to the trainer."""
    away = [{"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "True"}]
    pod = {"metadata": {"name": "run-0"}, "status": {"phase": "Running", "conditions": away}}
    error = Refused(503, "ServiceUnavailable", "no route to host")
    found = checks._unread(job_view.read(w.whole("run", w.running())), pod, 9400, "/metrics", error, "")
    assert found.level is Level.NOTE
    assert found.text == "there is no page to read: the node of pod run-0 is not ready"


class Pages:
    """An API server that passes on the pages of pods, by their names; others refuse."""

    def __init__(self, pages: dict[str, bytes]) -> None:
        self.pages, self.asked = pages, list[str]()

    async def raw(self, method: str, path: str) -> bytes:
        name = path.partition("/pods/")[2].partition(":")[0]
        self.asked.append(name)
        if name not in self.pages:
            raise Refused(503, "ServiceUnavailable", "connection refused")
        return self.pages[name]


OTHER = GOOD.replace(b"9f2c41d0", b"77777777")  # of another process
MUTE = GOOD.partition(b"\n")[2]  # without rlhf_run_info


@pytest.mark.parametrize(
    ("speaker", "pages", "asked", "level", "said"),
    [
        ("Any", {"run-1": GOOD}, 3, Level.OK, "run-1 (index 1), of 3 that were asked"),
        ("Any", {"run-0": GOOD, "run-2": OTHER}, 3, Level.WRONG, "SeveralSpeakers: pods run-0 (index 0) and"),
        ("Any", {"run-1": MUTE}, 3, Level.WRONG, "NoSpeaker: the page of pod run-1 does not say whose it is"),
        ("Any", {}, 3, Level.WRONG, "run-0:9400/metrics does not answer"),
        (2, {"run-2": GOOD}, 1, Level.OK, "1 eval of 'gold_reward' on the page"),
        (2, {"run-0": GOOD}, 1, Level.WRONG, "run-2:9400/metrics does not answer"),
        ("role=head", {"run-1": GOOD}, 1, Level.OK, "1 eval of 'gold_reward' on the page"),
        ("role=tail", {}, 0, Level.WRONG, "no pod with label role=tail has an address yet"),
    ],
)
def test_who_speaks_is_found_as_the_operator_finds_it(
    speaker: Any, pages: dict[str, bytes], asked: int, level: Level, said: str
) -> None:
    whole = w.whole("run", w.running())
    whole["spec"]["scrape"] = {"speaker": speaker, "port": 9400}
    members = [Member(f"uid-{i}", f"run-{i}", i, labels={"role": "head"} if i == 1 else {}) for i in range(3)]
    pods = {m.pod: (m, {"metadata": {"name": m.name}, "status": {}}) for m in members}
    api = Pages(pages)

    async def look() -> list[Finding]:
        return [found async for found in checks._pages(api, job_view.read(whole), pods, 0.0)]  # type: ignore[arg-type]

    found = asyncio.run(look())
    assert len(api.asked) == asked
    assert any(f.level is level and said in f.text for f in found), found
    assert all(f.cure.line for f in found if f.level is Level.WRONG)


def test_each_reason_that_the_operator_writes_has_a_cure_or_needs_nobody() -> None:
    """The list is made from the source (`reasons_written`): a new reason without a cure is named here."""
    reasons = reasons_written.written()
    assert {"ForeignPage", "AccessNameTaken", "BestCheckpointLost", "PageTooLarge"} <= set(reasons)
    assert len(reasons) > 100
    known = set(CURES) | NEEDS_NOBODY
    assert {code: where for code, where in reasons.items() if code not in known} == {}
    assert not set(CURES) & NEEDS_NOBODY
    assert not NEEDS_NOBODY - set(reasons), "nobody writes these any more"


def test_an_end_that_nobody_saw_and_a_gang_in_parts_ask_for_something() -> None:
    unknown = w.condition(c.FAILED, True, "EndUnknown", "its Job is gone, and was not seen to end")
    lost = replace(w.running(), admission=None, finished="Failed", conditions=(w.ACCEPTED, unknown))
    (found,) = checks.conditions(job := job_view.read(w.whole("lost", lost)), LATER)
    assert found.level is Level.WRONG
    assert "evalstop resume lost -n team --from latest" in found.cure.line
    assert [(x.reason, x.message) for x in remedies.marks(job, LATER)] == [("EndUnknown", unknown.message)]
    failed = w.condition(c.FAILED, True, "Failed", "BackoffLimitExceeded")
    ended = job_view.read(w.whole("f", replace(lost, conditions=(w.ACCEPTED, failed))))
    (found,) = checks.conditions(ended, LATER)
    assert (found.level, found.about) == (Level.WRONG, "Failed")
    assert found.cure.command == "kubectl describe job -n team f"
    parts = w.condition(c.RUNNING, False, "MembersEnded", "members 0 of 2 ended well")
    waits = replace(w.running(), admission=None, conditions=(w.ACCEPTED, parts))
    (found,) = checks.conditions(job := job_view.read(w.whole("parts", waits)), LATER)
    assert found.level is Level.WRONG
    assert [(x.reason, x.message) for x in remedies.marks(job, LATER)] == [("MembersEnded", parts.message)]


def test_a_time_to_live_is_named() -> None:
    noted = replace(w.ACCEPTED, message="the spec can be carried out; x.ttlSecondsAfterFinished is left out")
    (found,) = checks.conditions(
        job_view.read(w.whole("run", replace(w.running(), conditions=(noted,)))), LATER
    )
    assert found.level is Level.NOTE
    assert "ttlSecondsAfterFinished" in found.text


def test_a_spec_that_the_operator_has_not_seen() -> None:
    obj = w.whole("healthy", w.running())
    obj["metadata"]["generation"] = 5

    async def look() -> list[Finding]:
        return [f async for f in checks.spec(job_view.read(obj), LATER)]

    assert "generation 1 of the spec, the newest is 5" in texts(asyncio.run(look()), Level.WRONG)[0]


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({"phase": "Running"}, ""),
        ({"containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}, ""),
        (
            {"containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no"}}}]},
            "p: ImagePullBackOff, no",
        ),
        (
            {"containerStatuses": [{"state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]},
            "p: ended with exit code 137, OOMKilled",
        ),
        (
            {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]},
            "p: Unschedulable",
        ),
        ({"phase": "Failed", "reason": "Evicted"}, "p: Failed, Evicted"),
    ],
)
def test_pods_in_the_clusters_words(status: dict[str, Any], said: str) -> None:
    assert trouble({"metadata": {"name": "p"}, "status": status}) == said


def test_schemas_differ_by_fields_and_by_words() -> None:
    resource = next(r for r in RESOURCES if r.kind == "RLHFJob")
    schema = json.loads(json.dumps(root_schema(resource.model)))
    ours = set(installation.words(schema))
    assert {"spec.checkpoints.pins", "spec.mode=Shadow", "status.retained[].digest"} <= ours
    assert not any(path.startswith("metadata") for path in ours)
    del schema["properties"]["spec"]["properties"]["checkpoints"]["properties"]["pins"]
    schema["properties"]["spec"]["properties"]["mode"]["enum"].remove("Shadow")
    assert ours - set(installation.words(schema)) == {"spec.checkpoints.pins", "spec.mode=Shadow"}


def test_a_check_that_may_not_look_says_so_and_the_others_go_on() -> None:
    async def check() -> Any:
        yield ok("a", "fine")
        raise Refused(403, "Forbidden", "pods is forbidden")

    found = asyncio.run(gather("a", check()))
    assert [f.level for f in found] == [Level.OK, Level.UNKNOWN]
    assert "pods is forbidden" in found[1].text


def test_a_cluster_without_an_operator() -> None:
    class Empty:
        async def list(self, *_: Any, **__: Any) -> tuple[list[Any], str]:
            return [], "1"

        async def get(self, *_: Any) -> Any:
            raise ApiError(403, "Forbidden", "leases is forbidden")

    found = asyncio.run(gather("operator", installation.operator(Empty(), "evalstop-system")))  # type: ignore[arg-type]
    assert [f.level for f in found] == [Level.WRONG]
    assert "there is no Deployment" in found[0].text
    assert "kubectl apply" in found[0].cure.line


@pytest.mark.parametrize("at_work", [True, False])
def test_an_operator_and_a_scheduler_of_no_deployment(at_work: bool) -> None:
    """As in the demos, which run both as processes of this machine."""

    class Outside:
        renewals = 0

        async def list(self, resource: Any, *_: Any, fields: str = "", **__: Any) -> tuple[list[Any], str]:
            if resource is GPUPOOLS:
                conditions = w.pool_status()["conditions"]
                spec = {"schedulerName": "evalstop-scheduler"}
                return [{"metadata": {"name": "p"}, "spec": spec, "status": {"conditions": conditions}}], "1"
            if resource is PODS and fields == "spec.schedulerName=evalstop-scheduler":
                waits = {"metadata": {"namespace": "n", "name": "waits"}, "spec": {}}
                placed = {"metadata": {"namespace": "n", "name": "placed"}, "spec": {"nodeName": "a"}}
                return [waits, placed] if at_work else [waits], "1"
            return [], "1"

        async def get(self, *_: Any) -> Any:
            self.renewals += at_work
            return {
                "metadata": {"resourceVersion": str(self.renewals)},
                "spec": {"holderIdentity": "here", "leaseDurationSeconds": 0.1},
            }

    api: Any = Outside()
    found = asyncio.run(gather("operator", installation.operator(api, "evalstop-system")))
    pools = asyncio.run(gather("pools", installation.pools(api, "evalstop-system")))
    if at_work:
        assert [f.level for f in found] == [Level.NOTE, Level.OK]
        assert "here leads" in found[1].text
        assert "it has placed pod n/placed" in pools[-1].text
    else:
        assert "there is no Deployment" in found[0].text
        assert "which is not installed" in pools[-1].text
    assert (Level.WRONG in {f.level for f in [*found, *pools]}) is not at_work


def test_the_page_counts_and_shows_each_cure_under_its_finding() -> None:
    found = [
        ok("a", "fine"),
        note("b", "so"),
        unknown("c", "who knows"),
        wrong("d", "bad", "do this\nthen that"),
    ]
    lines = command.page(found, Terminal(unicode=False))
    assert lines == [
        "ok       a: fine",
        "note     b: so",
        "unknown  c: who knows",
        "WRONG    d: bad",
        "         -> do this",
        "         -> then that",
        "",
        "4 findings, 1 wrong, 1 could not be looked at",
    ]


# -- on a real cluster --------------------------------------------------------------------------------------


class Clinic:
    """A namespace with an installation of its own, a pool and jobs; `clinic("over")` is doctor's findings."""

    def __init__(self, plane: Plane, namespace: str, pool: str) -> None:
        self.plane, self.namespace, self.pool = plane, namespace, pool

    def __call__(self, *arguments: str, code: int | None = None) -> list[dict[str, str]]:
        given = ["doctor", *arguments, "-n", self.namespace, "-o", "json"]
        given += [] if arguments else ["--operator-namespace", self.namespace]
        result = CliRunner().invoke(app, given, env={"KUBECONFIG": str(self.plane.kubeconfig)})
        assert result.exit_code in ((0, 1) if code is None else (code,)), result.output
        found = json.loads(result.stdout)
        assert found["wrong"] == sum(1 for f in found["findings"] if f["level"] == "wrong")
        assert (result.exit_code == 1) == (found["wrong"] > 0)
        return list(found["findings"])

    def wrong(self, *arguments: str) -> str:
        return "\n".join(
            f"{f['about']}: {f['text']} -> {f['cure']['command'] or f['cure']['text']}"
            for f in self(*arguments)
            if f["level"] == "wrong"
        )


@pytest.fixture(scope="module")
def clinic(plane: Plane) -> Iterator[Clinic]:
    w.install(plane)
    with fresh_namespace(plane, "doctor") as namespace:
        pool = f"pool-{namespace[-6:]}"
        w.fill(plane, namespace, pool)
        yield Clinic(plane, namespace, pool)
        plane.client().delete(f"{w.GROUP}/gpupools/{pool}")


@pytest.mark.cluster
def test_what_is_well_on_a_real_cluster(clinic: Clinic) -> None:
    # The API server publishes a kind's fields a moment after it serves the kind.
    crd = "CRD rlhfjobs.evalstop.dev"
    wait_until(lambda: {f["about"]: f["level"] for f in clinic()}.get(crd) == "ok", "the kinds are published")
    found = clinic()
    about = {f["about"]: f for f in found}
    assert about["API server"]["level"] == "ok"
    assert about["CRD rlhfjobs.evalstop.dev"]["level"] == "ok"
    assert about[f"pool {clinic.pool}"]["level"] == "ok"
    assert about["your rights"]["level"] == "ok"


@pytest.mark.cluster
def test_an_operator_that_is_not_ready_and_its_lease(clinic: Clinic) -> None:
    """A Deployment whose pods find no node, and a Lease that nobody, then somebody, renews."""
    admin, ns = clinic.plane.client(), clinic.namespace
    labels = {"app.kubernetes.io/name": "evalstop-operator"}
    template = {
        "metadata": {"labels": labels},
        "spec": {
            "nodeSelector": {"no-such": "node"},
            "containers": [
                {"name": "operator", "image": "x", "ports": [{"name": "http", "containerPort": 8080}]}
            ],
        },
    }
    deployment = {
        "metadata": {"name": "evalstop-operator", "labels": {**labels, PART_OF: "evalstop"}},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
    }  # fmt: skip
    admin.post(f"/apis/apps/v1/namespaces/{ns}/deployments", deployment)
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{ns}/leases"
    admin.post(
        leases,
        {
            "metadata": {"name": "evalstop-operator"},
            "spec": {"holderIdentity": "pod-a_uid", "leaseDurationSeconds": 1, "leaseTransitions": 4},
        },
    )
    wait_until(lambda: "Unschedulable" in clinic.wrong(), "the pod was refused a node")
    told = clinic.wrong()
    assert f"{ns}/evalstop-operator: 0 of 1 replica ready" in told
    assert "pod-a_uid has not renewed its Lease for 1 s" in told
    assert f"ServiceAccount {ns}/default lacks get/list/watch/patch rlhfjobs.evalstop.dev, " in told
    assert "-> kubectl apply -f deploy/manifests/rbac.yaml" in told
    over = threading.Event()

    def renew() -> None:
        count = 0
        while not over.wait(0.1):
            count += 1
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime()) + f".{count % 10**6:06}Z"
            with contextlib.suppress(Exception):
                admin.patch(
                    f"{leases}/evalstop-operator", {"spec": {"renewTime": stamp, "leaseDurationSeconds": 9}}
                )

    lease = clinic.plane.client()
    thread = threading.Thread(target=renew)
    thread.start()
    try:
        # From then on a look at it takes 9 s, not the 1 s in which a first renewal may not come.
        wait_until(lambda: lease.get(f"{leases}/evalstop-operator")["spec"].get("renewTime"), "it is renewed")
        assert {"pod-a_uid leads, term 4"} <= {f["text"] for f in clinic()}
    finally:
        over.set()
        thread.join()
        admin.delete(f"/apis/apps/v1/namespaces/{ns}/deployments/evalstop-operator")
        admin.delete(f"{leases}/evalstop-operator")


@pytest.mark.cluster
def test_rights_that_somebody_took_away_are_named_by_the_api_servers_own_word(clinic: Clinic) -> None:
    """An extender under the manifests' role, then under that role without some of it."""
    admin, ns = clinic.plane.client(), clinic.namespace
    labels = {"app.kubernetes.io/name": "evalstop-extender"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "e", "image": "x"}]}}
    deployment = {
        "metadata": {"name": "evalstop-extender", "labels": {**labels, PART_OF: "evalstop"}},
        "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template},
    }  # fmt: skip
    documents = list(yaml.safe_load_all((w.ROOT / "deploy" / "extender" / "rbac.yaml").read_text()))
    role, own = (next(d for d in documents if d["kind"] == kind) for kind in ("ClusterRole", "Role"))
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    role = {"metadata": {"name": ns}, "rules": role["rules"]}
    binding = {
        "metadata": {"name": ns},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": ns},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": ns}],
    }

    def told() -> dict[str, str]:
        (found,) = (f for f in clinic() if f["about"] == "extender's rights")
        return found

    admin.post(f"/apis/apps/v1/namespaces/{ns}/deployments", deployment)
    try:
        admin.post(f"{rbac}/clusterroles", role)
        admin.post(f"{rbac}/clusterrolebindings", binding)
        admin.post(f"{rbac}/namespaces/{ns}/roles", {"metadata": {"name": ns}, "rules": own["rules"]})
        mine = {**binding, "roleRef": {**binding["roleRef"], "kind": "Role"}}
        admin.post(f"{rbac}/namespaces/{ns}/rolebindings", mine)
        wait_until(lambda: told()["level"] == "ok", "the binding counts")
        lesser = [
            {**rule, "verbs": ["list"] if "nodes" in rule["resources"] else rule["verbs"]}
            for rule in role["rules"]
        ]
        admin.patch(f"{rbac}/clusterroles/{ns}", {"rules": lesser})
        admin.patch(f"{rbac}/namespaces/{ns}/roles/{ns}", {"rules": []})
        wait_until(lambda: "evalstop-wake" in told()["text"], "the lesser roles count")
        found = told()
        lacks = "watch nodes, watch pods, patch csistoragecapacities.storage.k8s.io evalstop-wake"
        assert found["text"] == f"ServiceAccount {ns}/default lacks {lacks} (in its own namespace)"
        assert found["cure"]["command"] == "kubectl apply -f deploy/extender/rbac.yaml"
    finally:
        admin.delete(f"/apis/apps/v1/namespaces/{ns}/deployments/evalstop-extender")
        admin.delete(f"{rbac}/clusterrolebindings/{ns}")
        admin.delete(f"{rbac}/clusterroles/{ns}")


@pytest.mark.cluster
def test_pools_that_say_what_is_wrong_with_them(clinic: Clinic) -> None:
    admin, path = clinic.plane.client(), f"{w.GROUP}/gpupools/{clinic.pool}"
    condition = {
        "type": "Ready", "status": "False", "reason": "NoUsableNodes", "message": "no node matches",
        "lastTransitionTime": "2025-11-13T02:13:20Z",
    }  # fmt: skip
    admin.patch(f"{path}/status", {"status": {"conditions": [condition]}})
    admin.patch(path, {"spec": {"schedulerName": "evalstop-scheduler"}})
    try:
        told = clinic.wrong()
        assert f"pool {clinic.pool}: NoUsableNodes: no node matches" in told
        assert "which is not installed" in told
    finally:
        admin.patch(f"{path}/status", {"status": {"conditions": w.pool_status()["conditions"]}})
        admin.patch(path, {"spec": {"schedulerName": ""}})


@pytest.mark.cluster
def test_checkpoints_claims_and_access_jobs(clinic: Clinic) -> None:
    admin, ns = clinic.plane.client(), clinic.namespace
    told = clinic.wrong("over")
    assert "claim work: spec.checkpoints.location: there is no such claim" in told
    claim = {
        "metadata": {"name": "work", "finalizers": ["evalstop.dev/test"]},
        "spec": {"accessModes": ["ReadWriteOncePod"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    admin.post(f"/api/v1/namespaces/{ns}/persistentvolumeclaims", claim)
    assert "no access Job can mount it beside the trainer" in clinic.wrong("over")
    path = f"/api/v1/namespaces/{ns}/persistentvolumeclaims/work"
    admin.delete(path)  # it stays, Terminating, as one that pods have mounted
    told = clinic.wrong("over")
    assert "claim work: location: it is being deleted: no pod may mount it any more" in told
    assert "persistentVolumeReclaimPolicy" in told
    admin.patch(path, {"metadata": {"finalizers": None}})
    record = replace(w.running(), secured=None, access=InFlight(Operation.SECURE, 120, 3, tries=2))
    why = replace(w.ACCEPTED, type=c.SECURED, status=False, reason="OutOfSpace", message="/work: full")
    w.write(clinic.plane, ns, "healthy", replace(record, conditions=(*record.conditions, why)))
    access = {
        "metadata": {
            "name": "healthy-secure-120-3",
            "labels": {
                "evalstop.dev/job": "healthy",
                "evalstop.dev/component": "access",
                "evalstop.dev/operation": "secure",
            },
        },
        "spec": {
            "suspend": True,
            "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "a", "image": "x"}]}},
        },
    }  # fmt: skip
    admin.post(f"/apis/batch/v1/namespaces/{ns}/jobs", access)
    event = {
        "metadata": {"name": "quota.1", "namespace": ns},
        "involvedObject": {
            "kind": "Job",
            "namespace": ns,
            "name": "healthy-secure-120-3",
            "apiVersion": "batch/v1",
        },
        "reason": "FailedCreate",
        "message": "pods is forbidden: exceeded quota: small",
        "type": "Warning",
    }
    admin.post(f"/api/v1/namespaces/{ns}/events", event)
    told = clinic.wrong("healthy")
    assert f"OutOfSpace: /work: full -> kubectl get pvc -n {ns}" in told
    assert "none is in safety, the best eval is at step 120" in told
    assert "secure of step 120 failed 2 times" in told
    assert "quota: the cluster refuses pods of Job healthy-secure-120-3" in told
    assert f"kubectl describe quota -n {ns}" in told
    other = replace(why, reason="StepsDisagree", message="evals count 130, checkpoints 520")
    counts = StepCounts(Attempt(1, "a"), disagree=True)
    record = replace(record, step_counts=counts, conditions=(*record.conditions, other))
    w.write(clinic.plane, ns, "healthy", record)
    told = clinic.wrong("healthy")
    assert "StepsDisagree: evals count 130, checkpoints 520 -> have the trainer count" in told
    assert "none is in safety" not in told, "the mark says it, with what helps"
    w.write(clinic.plane, ns, "healthy", w.running(proxy=True))


def own_address() -> str:
    """An address of this machine that is not its loopback: the API server proxies to no other."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("10.255.255.255", 1))  # sends nothing
        return str(probe.getsockname()[0])


class Trainer(http.server.BaseHTTPRequestHandler):
    page = GOOD

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/metrics" else 404)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(self.page)))
        self.end_headers()
        self.wfile.write(self.page)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.cluster
def test_a_trainers_metrics_are_read_through_the_api_server(clinic: Clinic) -> None:
    admin, ns = clinic.plane.client(), clinic.namespace
    # One that an earlier test left says after five minutes that nobody reads the page any more.
    clinic.plane.kubectl(
        "delete", "lease", names.OPERATOR, "-n", names.NAMESPACE, "--ignore-not-found", "--wait=false"
    )
    address = own_address()
    uid = admin.get(f"{w.GROUP}/namespaces/{ns}/rlhfjobs/healthy")["metadata"]["uid"]
    Trainer.page = GOOD.replace(b"uid-run", uid.encode())
    server = http.server.ThreadingHTTPServer((address, 0), Trainer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = server.server_address[1]
    try:
        owner = {"apiVersion": "evalstop.dev/v1alpha1", "kind": "RLHFJob", "name": "healthy", "uid": uid}
        labels = {"evalstop.dev/job": "healthy"}
        child = admin.post(
            f"/apis/batch/v1/namespaces/{ns}/jobs",
            {
                "metadata": {
                    "name": "healthy", "labels": labels, "ownerReferences": [{**owner, "controller": True}]
                },
                "spec": {"managedBy": "test.evalstop.dev/nobody", "template": {"spec": POD}},
            },
        )  # fmt: skip
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "healthy", "uid": child["metadata"]["uid"]}
        admin.post(
            f"/api/v1/namespaces/{ns}/pods",
            {
                "metadata": {
                    "name": "healthy-0", "labels": labels, "ownerReferences": [{**owner, "controller": True}]
                },
                "spec": {
                    "nodeName": "nowhere",
                    "containers": [
                        {"name": "t", "image": "x", "ports": [{"name": "metrics", "containerPort": port}]}
                    ],
                },
            },
        )  # fmt: skip
        running = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}
        admin.patch(f"/api/v1/namespaces/{ns}/pods/healthy-0/status", {"status": running})
        about = [f for f in clinic("healthy") if f["about"] == "metrics"]
        assert [f["level"] for f in about] == ["ok"], about
        local = {"podIP": "127.0.0.9", "podIPs": [{"ip": "127.0.0.9"}]}  # as pods of a local plane have
        admin.patch(f"/api/v1/namespaces/{ns}/pods/healthy-0/status", {"status": local})
        (about,) = (f for f in clinic("healthy") if f["about"] == "metrics")
        assert about["level"] == "ok"
        assert about["text"].endswith(f"does not ask http://127.0.0.9:{port}/metrics: address not allowed")
        admin.patch(f"/api/v1/namespaces/{ns}/pods/healthy-0/status", {"status": running})
        Trainer.page = b"<html>hello</html>"
        assert "NotPrometheus" in clinic.wrong("healthy")
        admin.patch(f"{w.GROUP}/namespaces/{ns}/rlhfjobs/healthy", {"spec": {"scrape": {"path": "/m"}}})
        assert f"healthy-0:{port}/m answers 404" in clinic.wrong("healthy")
        server.shutdown()
        server.server_close()
        assert f"healthy-0:{port}/m does not answer" in clinic.wrong("healthy")
        admin.patch(f"{w.GROUP}/namespaces/{ns}/rlhfjobs/healthy", {"spec": {"mode": "Off"}})
        about = [f for f in clinic("healthy") if f["about"] == "metrics"]
        assert [f["level"] for f in about] == ["note", "note"], about
        assert f"healthy-0:{port}/m does not answer" in about[1]["text"]
    finally:
        Trainer.page = GOOD
        server.shutdown()
        server.server_close()


@pytest.mark.cluster
def test_two_installations_in_one_cluster(clinic: Clinic) -> None:
    admin = clinic.plane.client()
    labels = {"app.kubernetes.io/name": "evalstop-operator", "app.kubernetes.io/part-of": "evalstop"}
    body = {
        "metadata": {"labels": labels},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "o", "image": "x"}]},
            },
        },
    }
    path = f"/apis/apps/v1/namespaces/{clinic.namespace}/deployments"
    for name in ("one", "two"):
        body["metadata"] = {"name": name, "labels": labels}
        admin.post(path, body)
    try:
        told = clinic.wrong()
        assert "installations in one cluster would work against each other" in told
        assert all(f"{clinic.namespace}/{name}" in told for name in ("one", "two"))
    finally:
        for name in ("one", "two"):
            admin.delete(f"{path}/{name}")


def test_the_manifests_that_cures_name_are_there(repository: Path) -> None:
    for name in ("crds", "deploy/manifests", "deploy/manifests/rbac.yaml", "deploy/extender",
                 "examples/manifests/10-pool.yaml", "examples/manifests/20-claims.yaml"):  # fmt: skip
        assert (repository / name).exists(), name


def test_what_is_doubted_of_a_page_that_is_read_is_told_by_doctor_and_why() -> None:
    """A true condition is shown nowhere; the note in it is what its owner has to know."""
    doubt = "the unit of 'gold' seems to have changed after step 60"
    read = w.condition(c.METRICS, True, "Scraped", f"evals of 'gold' are being read; {doubt}")
    record = w.running()
    others = tuple(one for one in record.conditions if one.type != c.METRICS)
    for conditions, said in (((*others, read), [doubt]), (record.conditions, [])):
        job = job_view.read(w.whole("healthy", replace(record, conditions=conditions)))
        assert [f.text for f in checks.conditions(job, LATER) if f.about == c.METRICS] == said
        assert [text for label, text in explanation.explain(job, LATER).facts if label == "metrics"] == said


def test_what_lay_in_the_folder_before_the_run_is_told_by_why() -> None:
    for claim, told in (
        (Claim(1, w.START, newest_step=90), True),
        (Claim(2, w.START, newest_step=90), False),
    ):
        job = job_view.read(w.whole("healthy", replace(w.running(), claim=claim)))
        facts = dict(explanation.explain(job, LATER).facts)
        assert ("up to step 90" in facts.get("folder", "")) is told


@pytest.mark.parametrize(("resumed", "said"), [(0, True), (90, False), (None, False)])
def test_a_run_that_began_at_the_start_did_not_go_on_from_what_lay_there(
    resumed: int | None, said: bool
) -> None:
    """As of a trainer that clears its folder first: what lay there is gone by then."""
    life = LifeRecord(Attempt(1, "9f2c41d0"), "pod", w.START, w.START, resumed)
    record = replace(w.running(), claim=Claim(1, w.START, newest_step=90), lives=(life,))
    facts = dict(explanation.explain(job_view.read(w.whole("healthy", record)), LATER).facts)
    assert facts["folder"].endswith("; it did not go on from them") is said


@pytest.mark.parametrize(
    ("step", "finished", "said"),
    [(100, "Complete", True), (380, "Complete", False), (410, "Complete", False), (100, None, False)],
)
def test_a_run_that_ended_long_before_its_last_step_is_told_so_and_marked_by_nothing(
    step: int, finished: str | None, said: bool
) -> None:
    """Early stopping, perhaps; or `python … | tee` that ends with 0 where the trainer crashed."""
    progress = RunProgress(step, 400, 3600.0)
    record = replace(w.running(), finished=finished, admission=None, progress=progress, evals_due=None)
    told = explanation.explain(job_view.read(w.whole("healthy", record)), LATER)
    ended = dict(told.facts)["progress"].endswith("; then it ended by itself, without an error")
    assert ended is said
    assert not told.marks
    noted = [one.text for one in checks.conditions(job_view.read(w.whole("healthy", record)), LATER)]
    assert any("it ended by itself" in text for text in noted) is said
