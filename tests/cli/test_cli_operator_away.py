"""While no operator is there nothing is watched: whatever shows how runs do says so."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from controller import names
from controller.api.values import timestamp
from controller.cli.main import app
from controller.kube.lease import UnwrittenNote
from controller.policy.job import conditions as c
from controller.policy.job.record import EvalBaseline
from tests.support import cli_world as w
from tests.support.stub_api import stub_api

LOOKING = (
    ["list"], ["get", "over"], ["why", "over"], ["top", "--once"], ["history", "over"],
    ["simulate", "over", "--rule", "glr"], ["report", "over", "--out", "-"],
    ["mode", "over", "Shadow"], ["stop", "over"], ["resume", "over"],
    ["pin", "over", "100"], ["queue", "a100"],
)  # fmt: skip
AWAY = "no operator has renewed its Lease for "


def lease(age: float, holder: str = "operator-0") -> dict[str, Any]:
    spec = {"holderIdentity": holder, "renewTime": timestamp(time.time() - age)}
    return {"kind": "Lease", "metadata": {"name": names.OPERATOR, "namespace": names.NAMESPACE}, "spec": spec}


def printed(folder: Path, leases: list[dict[str, Any]]) -> list[Result]:
    jobs = [w.whole(name, record) for name, record in w.records().items()]
    jobs.append({"kind": "GPUPool", "metadata": {"name": "a100", "resourceVersion": "1"}, "spec": {}})
    with stub_api(folder, [*jobs, *leases]) as kubeconfig:
        environ = {"KUBECONFIG": str(kubeconfig), "COLUMNS": "200"}
        return [CliRunner().invoke(app, words, env=environ) for words in (*LOOKING, ["list", "-o", "json"])]


@pytest.mark.parametrize(("age", "holder"), [(400.0, "operator-0"), (90.0, "")], ids=["died", "ended"])
def test_an_operator_that_is_away_is_told_beside_what_it_left(
    tmp_path: Path, age: float, holder: str
) -> None:
    *looked, document = printed(tmp_path, [lease(age, holder)])
    for words, done in zip(LOOKING, looked, strict=True):
        assert done.exit_code == 0, done.output
        assert AWAY in (done.stdout if words[0] == "top" else done.stderr), words
        shown = {"queue": "waits", "simulate": "kDeclines"}.get(words[0], "over")
        assert shown in done.stdout
    assert AWAY not in document.output, "a program reads it"


def test_doctor_calls_nothing_right_that_an_operator_wrote_before_it_went(tmp_path: Path) -> None:
    """It said "the operator reads them" of a job, and "nothing wrong", minutes after it had gone."""
    jobs = [w.whole(name, record) for name, record in w.records().items()]
    said = {}
    for age in (400.0, -3600.0):
        with stub_api(tmp_path, [*jobs, lease(age)]) as kubeconfig:
            environ = {"KUBECONFIG": str(kubeconfig), "COLUMNS": "200"}
            said[age] = CliRunner().invoke(app, ["doctor", "over", "-o", "json"], env=environ)
    away = {f["about"]: f for f in json.loads(said[400.0].stdout)["findings"]}["operator"]
    assert (away["level"], away["text"].startswith(AWAY)) == ("wrong", True)
    assert AWAY not in said[-3600.0].output


@pytest.mark.parametrize(
    ("ages", "told"),
    [((0.0, 0.0), True), ((0.0, None), False), ((0.0, 200.0), False)],
    ids=["both renewed", "one", "the other was left"],
)
def test_operators_by_leases_of_two_namespaces_are_told(
    tmp_path: Path, ages: tuple[float, float | None], told: bool
) -> None:
    """Runs flapped between the two, with advice about their trainers, and nothing told of the second one."""
    jobs = [w.whole(name, record) for name, record in w.records().items()]
    leases = [lease(age, f"pod-{n}") for n, age in enumerate(ages) if age is not None]
    for one, namespace in zip(leases, (names.NAMESPACE, "other"), strict=False):
        one["metadata"] |= {"namespace": namespace, "resourceVersion": "1"}
        one["spec"]["leaseDurationSeconds"] = 0.1
    with stub_api(tmp_path, [*jobs, *leases]) as kubeconfig:
        environ = {"KUBECONFIG": str(kubeconfig), "COLUMNS": "200"}
        listed, whole, of_one = (
            CliRunner().invoke(app, words, env=environ)
            for words in (["list"], ["doctor", "-o", "json"], ["doctor", "over", "-o", "json"])
        )
    said = "2 operators are at work in this cluster, each by a Lease evalstop-operator of its own (pod-0 by "
    assert listed.stderr.count(said) == told
    assert len([line for line in listed.stderr.splitlines() if "operator" in line]) == told
    for done in (whole, of_one):
        found = [f for f in json.loads(done.stdout)["findings"] if said in f["text"]]
        assert [f["level"] for f in found] == ["wrong"] * told, done.output


def test_why_tells_from_which_eval_on_scores_are_compared(tmp_path: Path) -> None:
    record = replace(w.records()["over"], baseline=EvalBaseline(0.0, "2-9f2c41d0", 100))
    with stub_api(tmp_path, [w.whole("over", record)]) as kubeconfig:
        environ = {"KUBECONFIG": str(kubeconfig), "COLUMNS": "200"}
        done = CliRunner().invoke(app, ["why", "over"], env=environ)
    assert "only evals after step 100 of attempt 2: those before were scored otherwise" in done.stdout


def test_why_leads_to_the_noise_that_other_runs_have_shown(tmp_path: Path) -> None:
    """A run was stopped by it, and nothing named it."""
    gold, counts = "gold_reward", " per eval by 3 runs of this namespace, which counts beside what this run"
    contradicted = "2.5 per eval by 3 runs of this namespace, which is not used: this run's own evals show 0."
    plain: dict[str, Any] = {"stopRule": {"kDeclines": {"k": 3}}, "modifiers": []}
    for metric, sigma, spec, told in (
        (gold, 0.0107, {"stopRule": {"scan": {}}, "modifiers": []}, f"0.0107{counts}"),
        (gold, 0.0107, plain | {"modifiers": [{"gate": {}}]}, counts),
        (gold, 0.0107, plain | {"stopRule": {"kDeclines": {"minDeltaSigmas": "2.0"}}}, counts),
        (gold, 2.5, {"stopRule": {"scan": {}}}, contradicted),
        (gold, 0.0107, plain, ""),
        ("other", 0.0107, {"stopRule": {"scan": {}}}, ""),
    ):
        noise = {"namespace": "team", "metric": metric, "sigma": sigma, "freedom": 64.0, "jobs": 3}
        pool = {"kind": "GPUPool", "metadata": {"name": "a100"}, "spec": {}, "status": {"noise": [noise]}}
        job = w.whole("healthy", w.running())
        job["spec"] |= spec
        with stub_api(tmp_path, [job, pool]) as kubeconfig:
            environ = {"KUBECONFIG": str(kubeconfig), "COLUMNS": "200"}
            said = CliRunner().invoke(app, ["why", "healthy"], env=environ).stdout
        assert told in said
        assert bool(told) == ("evalstop pools a100" in said) == ("usual noise" in said)


def test_why_says_of_a_refused_run_that_it_runs_on(tmp_path: Path) -> None:
    """A priority above the pool's ceiling made it Refused, and it held its GPUs."""
    found = w.running()
    refused = w.condition(c.ACCEPTED, False, "PriorityTooHigh", "spec.priority: 3 is above 2")
    others = tuple(one for one in found.conditions if one.type != c.ACCEPTED)
    record = replace(found, conditions=(refused, *others))
    with stub_api(tmp_path, [w.whole("healthy", record)]) as kubeconfig:
        environ = {"KUBECONFIG": str(kubeconfig), "COLUMNS": "200"}
        listed, why = (
            CliRunner().invoke(app, words, env=environ) for words in (["list"], ["why", "healthy"])
        )
    assert listed.stdout.splitlines()[1].split()[:3] == ["healthy", "RunsOn", "PriorityTooHigh"]
    assert "it keeps its GPUs and trains" in why.stdout


@pytest.mark.parametrize(
    ("ages", "holder"),
    [((-3600.0,), "operator-0"), ((-3600.0,), ""), ((), "")],  # however slow this machine is
    ids=["renewed", "changes hands", "not to be read"],
)
def test_one_that_is_there_or_cannot_be_asked_for_is_not_spoken_of(
    tmp_path: Path, ages: tuple[float, ...], holder: str
) -> None:
    done = printed(tmp_path, [lease(age, holder) for age in ages])
    assert AWAY not in "".join(one.output for one in done)


def of_a_term() -> list[dict[str, Any]]:
    """Jobs whose statuses an operator with a Lease has written."""
    jobs = [w.whole(name, record) for name, record in w.records().items()]
    for job in jobs:
        job.setdefault("status", {})["epoch"] = 3
    return jobs


@pytest.mark.parametrize("words", [["list"], ["why", "over"], ["top", "--once"], ["doctor", "over"]])
def test_a_lease_that_is_gone_with_all_of_the_operator_is_told(tmp_path: Path, words: list[str]) -> None:
    """Its namespace was deleted, and every run looked watched for good."""
    away = "there is no Lease of an operator in this cluster any more: no run is watched"
    elsewhere = lease(400.0)
    elsewhere["metadata"] |= {"namespace": "other", "resourceVersion": "1"}
    for there, told in (([], True), ([elsewhere], False)):
        with stub_api(tmp_path, [*of_a_term(), *there]) as kubeconfig:
            environ = {"KUBECONFIG": str(kubeconfig), "COLUMNS": "200"}
            done = CliRunner().invoke(app, words, env=environ)
        assert (away in done.output) is told, done.output


LOOKING_AT = tuple(words for words in LOOKING if words[0] != "queue")


def test_a_namespace_that_the_operator_does_not_serve_is_told(tmp_path: Path) -> None:
    """One was left out of `watchNamespaces`: its runs stayed Running, with "nothing wrong", for good."""
    one = lease(-3600.0)
    told = {}
    for among in ("", "team", "lab,other"):
        one["metadata"]["annotations"] = {names.ANNOTATION_NAMESPACES: among}
        with stub_api(tmp_path, [*of_a_term(), one]) as kubeconfig:
            environ = {"KUBECONFIG": str(kubeconfig), "COLUMNS": "200"}
            told[among] = [CliRunner().invoke(app, words, env=environ).output for words in LOOKING_AT]
    said = "the operator does not serve namespace team, but lab, other alone (EVALSTOP_WATCH_NAMESPACES)"
    for among, outputs in told.items():
        for words, output in zip(LOOKING_AT, outputs, strict=False):
            assert (said in output) is (among == "lab,other"), (words, output)


def test_runs_whose_status_is_refused_are_told_where_they_are_shown(tmp_path: Path) -> None:
    """A CRD lacked one field: runs looked read and well, and doctor found "nothing wrong"."""
    field = 'Invalid (422): strict decoding error: unknown field "status.guardrails"'
    one, two, pool = "RLHFJob/team/over", "RLHFJob/other/far", "GPUPool/a100"
    of_over, of_pool = (
        "has refused the status of RLHFJob team/over for 1h",
        "the status of GPUPool a100 for 1h",
    )
    later = of_pool.replace("for", "for up to")
    among = "has refused the statuses of RLHFJob other/far and 1 more for up to 1h"
    gpus = {"kind": "GPUPool", "metadata": {"name": "a100", "resourceVersion": "1"}, "spec": {}}
    for named, number, why, told in (
        (
            [one],
            1,
            field,
            {"list": of_over, "get": of_over, "why": of_over, "top": of_over, "doctor": of_over},
        ),
        ([one, two], 2, field, {"list": of_over, "why": of_over}),
        ([one, pool], 2, "Forbidden (403): no", {"list": of_over, "doctor": of_over, "pools": later}),
        ([two], 2, field, {"list": among, "why": among, "doctor": among}),
        ([two], 1, field, {"list": "", "get": "", "why": "", "top": "", "doctor": "", "pools": ""}),
        ([pool], 1, field, {"list": "", "why": "", "pools": of_pool}),
    ):
        lease_ = lease(-3600.0)
        note = UnwrittenNote(time.time() - 3600.0, number, tuple(named), why)
        lease_["metadata"]["annotations"] = {names.ANNOTATION_UNWRITTEN: note.written()}
        with stub_api(tmp_path, [*of_a_term(), gpus, lease_]) as kubeconfig:
            environ = {"KUBECONFIG": str(kubeconfig), "COLUMNS": "400"}
            for word, said in told.items():
                words = {"list": ["list"], "top": ["top", "--once"], "pools": ["pools"]}.get(
                    word, [word, "over"]
                )
                output = CliRunner().invoke(app, words, env=environ).output
                output = " ".join(output.split())
                assert (said in output) if said else ("has refused" not in output), (named, words, output)
                of_first = "" if said == later else f" ({why})"  # what was said of the first is of no other
                assert not said or f"{of_first}: nothing is judged, started or stopped there" in output
                assert ("may be among them" in output) is (said == among)
                if word == "doctor":
                    assert ("-f crds" in output) is (bool(said) and why == field)
                    assert not said or "nothing wrong" not in output


def test_doctor_tells_which_runs_no_operator_serves_and_names_that_are_not_there(tmp_path: Path) -> None:
    one = lease(-3600.0)
    one["metadata"]["resourceVersion"], one["spec"]["leaseDurationSeconds"] = "1", 0.1
    spaces = [
        {"kind": "Namespace", "metadata": {"name": name, "resourceVersion": "1"}} for name in ("team", "lab")
    ]
    told = {}
    for among in ("lba", "lab,team"):
        one["metadata"]["annotations"] = {names.ANNOTATION_NAMESPACES: among}
        with stub_api(tmp_path, [*of_a_term(), *spaces, one]) as kubeconfig:
            environ = {"KUBECONFIG": str(kubeconfig), "COLUMNS": "200"}
            done = CliRunner().invoke(app, ["doctor", "-o", "json"], env=environ)
        found = [f for f in json.loads(done.stdout)["findings"] if f["about"] == "namespaces"]
        told[among] = [(f["level"], f["text"]) for f in found]
    (missing, left) = told["lba"]
    assert missing == ("wrong", "EVALSTOP_WATCH_NAMESPACES names lba, which is not there; lab is")
    assert left[0] == "wrong"
    assert left[1].startswith(f"not served: team ({len(of_a_term())} RLHFJobs); EVALSTOP_WATCH_NAMESPACES")
    assert told["lab,team"] == [("note", "the operator serves lab, team alone (EVALSTOP_WATCH_NAMESPACES)")]
