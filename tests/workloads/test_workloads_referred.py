"""A Job that exists already and is referred to: all that it lacks is told at once, and what cures it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller import names, workloads
from controller.checkpoints.access_jobs import access_problem
from controller.policy.job import cure_of, key_of
from controller.policy.stored import MESSAGE_MAX
from controller.policy.types import Problem
from controller.workloads import Scheduling

POOL = Scheduling("evalstop-scheduler", names.PRIORITY_CLASS)
PAGE = Path(__file__).resolve().parents[2] / "docs" / "use" / "writing-a-job.md"
ANEW = ", so make the Job anew"
RUN_LABEL = "evalstop.dev/job"


def rlhfjob(**spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "run", "namespace": "team", "uid": "u"},
        "spec": {
            "gang": {"replicas": 2, "gpusPerReplica": 4},
            "workload": {"ref": {"apiVersion": "batch/v1", "kind": "Job", "name": "mine"}},
            **spec,
        },
    }


def their_own(gpus: int = 4, completions: int = 2) -> dict[str, Any]:
    """A Job as its user wrote it, with what the API server fills in."""
    trainer = {
        "name": "trainer",
        "image": "t",
        "ports": [{"name": "metrics", "containerPort": 9400}],
        "resources": {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {},
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "mine", "namespace": "team"},
        "spec": {
            "completions": completions,
            "parallelism": completions,
            "completionMode": "NonIndexed",
            "suspend": False,
            "template": {"spec": {"restartPolicy": "Never", "containers": [trainer, {"name": "logger"}]}},
        },
    }


def as_it_should_be(scheduling: Scheduling = POOL) -> dict[str, Any]:
    template = their_own()
    template["spec"]["completionMode"] = "Indexed"
    child = workloads.build_child(rlhfjob(workload={"template": template}), scheduling)
    child["metadata"]["name"] = "mine"
    return child


def pod_of(child: Any) -> Any:
    return child["spec"]["template"]["spec"]


def told(job: dict[str, Any], child: dict[str, Any] | None, **given: Any) -> Problem:
    problem = workloads.ref_problem(job, child, POOL, **given)
    assert problem is not None
    return problem


def cured_by(problem: Problem) -> Any:
    return cure_of(key_of(*problem)).filled("run", "team", "a100", "", problem.message)


def test_all_that_a_job_of_a_user_lacks_is_told_at_once_with_the_patch_that_gives_it() -> None:
    problem = told(rlhfjob(), their_own())
    assert problem.message == (
        f"Job mine lacks 7 fields{ANEW}: evalstop.dev/job: 'run' in metadata.labels and "
        "spec.template.metadata.labels; spec.completionMode: 'Indexed'; spec.suspend: true; in "
        "spec.template.spec: containers[trainer].volumeMounts: ConfigMap 'run-run' at /etc/evalstop/run; "
        "schedulerName: 'evalstop-scheduler'; priorityClassName: 'evalstop-rlhf'"
    )
    cure = cured_by(problem)
    assert "a Job's pod template cannot be changed" in cure.text
    volume = {"name": "evalstop-run", "configMap": {"name": "run-run"}}
    mount = {"name": "evalstop-run", "mountPath": "/etc/evalstop/run", "readOnly": True}
    assert json.loads(cure.patch) == {
        "metadata": {"labels": {RUN_LABEL: "run"}},
        "spec": {
            "suspend": True,
            "completionMode": "Indexed",
            "template": {
                "metadata": {"labels": {RUN_LABEL: "run"}},
                "spec": {
                    "schedulerName": "evalstop-scheduler",
                    "priorityClassName": names.PRIORITY_CLASS,
                    "volumes": [volume],
                    "containers": [
                        {
                            "name": "trainer",
                            "volumeMounts": [mount],
                            "env": [{"name": "EVALSTOP_RUN_DIR", "value": "/etc/evalstop/run"}],
                        }
                    ],
                },
            },
        },
    }
    assert cure.apply == (
        "kubectl patch -n team -f <job_manifest> --local --type strategic "
        f"-p '{cure.patch}' -o yaml | kubectl replace -n team --force -f -"
    )


Spoil = Callable[[Any], Any]


@pytest.mark.parametrize(
    ("spoil", "reason", "message", "spec"),
    [
        (
            lambda c: c["spec"]["template"]["metadata"]["labels"].clear(),
            "WorkloadNotLabelled",
            "lacks 1 field, so make the Job anew: spec.template.metadata.labels[evalstop.dev/job] is not set",
            {"template": {"metadata": {"labels": {RUN_LABEL: "run"}}}},
        ),
        (
            lambda c: pod_of(c).pop("schedulerName"),
            "SchedulerMissing",
            "schedulerName is 'default-scheduler', expected 'evalstop-scheduler'",
            {"template": {"spec": {"schedulerName": "evalstop-scheduler"}}},
        ),
        (
            lambda c: pod_of(c).pop("priorityClassName"),
            "PriorityClassMissing",
            "priorityClassName is not set, expected 'evalstop-rlhf'",
            {"template": {"spec": {"priorityClassName": "evalstop-rlhf"}}},
        ),
        (
            lambda c: pod_of(c)["containers"][0].pop("resources"),
            "GangGPUsMismatch",
            "containers[trainer].resources.limits[nvidia.com/gpu]: 0 in all, expected 4",
            {
                "template": {
                    "spec": {
                        "containers": [{"name": "trainer", "resources": {"limits": {"nvidia.com/gpu": "4"}}}]
                    }
                }
            },
        ),
    ],
)
def test_what_nobody_can_give_a_job_that_is_there_is_given_to_another(
    spoil: Spoil, reason: str, message: str, spec: dict[str, Any]
) -> None:
    child = as_it_should_be()
    assert workloads.ref_problem(rlhfjob(), child, POOL) is None
    spoil(child)
    problem = told(rlhfjob(), child)
    assert problem.reason == reason
    assert message in problem.message
    assert ANEW in problem.message
    assert "spec.suspend" not in problem.message, "it is suspended"
    assert json.loads(cured_by(problem).patch)["spec"] == spec


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (
            {"parallelism": 0},  # as `kubectl scale` leaves it
            "Job mine.spec.parallelism: 0, expected 2 as in spec.gang.replicas "
            "(all pods of a gang run at once)",
        ),
        (
            {"completions": 9, "parallelism": 9},
            "Job mine lacks 2 fields: spec.completions: 2; spec.parallelism: 2",
        ),
    ],
)
def test_a_job_that_somebody_scaled_is_set_back_by_its_name(sizes: dict[str, int], message: str) -> None:
    """The cure was a patch of the RLHFJob's template, which it does not have, or another Job."""
    child = as_it_should_be()
    child["spec"].update(sizes)
    problem = told(rlhfjob(), child)
    assert problem == ("GangMismatch", message)
    cure = cured_by(problem)
    patch = '{"spec":{"completions":2,"parallelism":2}}'
    assert cure.command == f"kubectl patch job mine -n team --type merge -p '{patch}'"
    assert not cure.patch


def test_of_a_job_that_has_to_be_made_anew_the_sizes_are_told_as_well() -> None:
    child = as_it_should_be()
    child["spec"].update(completions=9, parallelism=9)
    pod_of(child).pop("priorityClassName")
    cure = json.loads(cured_by(told(rlhfjob(), child)).patch)
    assert (cure["spec"]["completions"], cure["spec"]["parallelism"]) == (2, 2)


def test_a_child_that_somebody_scaled_while_it_waits_is_set_back() -> None:
    child = as_it_should_be()
    child["spec"].update(parallelism=0)
    problem = workloads.child_problem(rlhfjob(workload={"template": their_own()}), child)
    assert problem is not None
    assert cured_by(problem).command.startswith("kubectl patch job mine -n team --type merge")


def test_a_class_that_its_pool_does_not_allow_is_replaced_by_one_that_it_allows() -> None:
    child = as_it_should_be()
    pod_of(child)["priorityClassName"] = "system-node-critical"
    for allowed, right in ((POOL._replace(allowed=()), "evalstop-rlhf"), (Scheduling(allowed=()), None)):
        problem = workloads.ref_problem(rlhfjob(), child, allowed)
        assert problem is not None
        assert problem.reason == "PriorityClassNotAllowed"
        spec = json.loads(cured_by(problem).patch)["spec"]
        assert spec["template"]["spec"] == {"priorityClassName": right}


def test_a_job_without_its_own_label_alone_is_labelled_and_may_go_on() -> None:
    child = as_it_should_be()
    child["spec"]["suspend"] = False
    del child["metadata"]["labels"][names.LABEL_JOB]
    problem = told(rlhfjob(), child)
    assert problem == Problem(
        "WorkloadNotLabelled", "Job mine: metadata.labels[evalstop.dev/job] is not set, expected 'run'"
    )
    cure = cured_by(problem)
    assert (cure.command, cure.patch) == ("kubectl label job -n team mine evalstop.dev/job=run", "")


def test_what_the_rlhfjob_can_agree_with_asks_for_no_other_job() -> None:
    child = as_it_should_be()
    pod_of(child)["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = "8"
    problem = told(rlhfjob(), child)
    assert "make the Job anew" not in problem.message
    assert '"gpusPerReplica":8' in cured_by(problem).command
    pod_of(child)["containers"][0].pop("ports")
    del child["metadata"]["labels"][names.LABEL_JOB]
    problem = told(rlhfjob(), child)
    assert problem.message == (
        "Job mine lacks 3 fields: evalstop.dev/job: 'run' in metadata.labels; in spec.template.spec: "
        "containers[*].resources.limits[nvidia.com/gpu]: 8 in all, expected 4; containers[*].ports: 'metrics'"
    )
    assert cured_by(problem).command == "kubectl label job -n team mine evalstop.dev/job=run"
    assert workloads.ref_problem(rlhfjob(), None) == Problem(
        "WorkloadMissing", "spec.workload.ref: there is no Job mine in team"
    )


def test_a_port_whose_number_only_its_owner_knows_is_left_to_him() -> None:
    child = their_own()
    pod_of(child)["containers"][0].pop("ports")
    cure = cured_by(told(rlhfjob(), child))
    (container,) = json.loads(cure.patch.replace("<port>", "9400"))["spec"]["template"]["spec"]["containers"]
    assert container["ports"] == [{"name": "metrics", "containerPort": 9400}]


def test_one_that_runs_and_is_only_watched_needs_no_scheduling_until_it_is_made_anew() -> None:
    child = as_it_should_be(Scheduling())
    child["spec"]["suspend"] = False
    assert workloads.ref_problem(rlhfjob(), child, POOL, watched=True) is None
    assert told(rlhfjob(), child).reason == "SchedulerMissing"
    del child["spec"]["template"]["metadata"]["labels"][names.LABEL_JOB]
    assert "schedulerName" in told(rlhfjob(), child, watched=True).message


def test_another_kind_is_told() -> None:
    job = rlhfjob(workload={"ref": {"apiVersion": "ray.io/v1", "kind": "RayJob", "name": "mine"}})
    assert told(job, their_own()).reason == "UnsupportedKind"


def test_the_job_that_the_page_shows_has_all_of_it_and_no_field_to_spare() -> None:
    job, child = (
        yaml.safe_load(one) for one in re.findall(r"```yaml\n(.+?)```", PAGE.read_text(), re.DOTALL)
    )
    job["metadata"]["namespace"] = "team"
    ref = {"apiVersion": "batch/v1", "kind": "Job", "name": child["metadata"]["name"]}
    job["spec"]["workload"] = {"ref": ref}
    pool = Scheduling("", names.PRIORITY_CLASS)
    assert workloads.ref_problem(job, child, pool) is None
    claims = {name: {"metadata": {"name": name}} for name in ("checkpoints", "retained")}
    assert access_problem(job, child["spec"]["template"], claims) is None
    spec, pod = child["spec"], pod_of(child)
    parts = (child["metadata"], spec["template"]["metadata"], pod, pod["containers"][0])
    needed = (
        ("labels",),
        ("labels",),
        ("priorityClassName", "volumes"),
        ("ports", "resources", "volumeMounts"),
    )
    of_spec = ("completionMode", "completions", "parallelism")
    for part, fields in (*zip(parts, needed, strict=True), (spec, of_spec)):
        for field in fields:
            kept = part.pop(field)
            assert workloads.ref_problem(job, child, pool) is not None, field
            part[field] = kept


def test_all_that_a_job_can_lack_fits_into_a_condition() -> None:
    child = their_own(0, completions=1)
    pod_of(child)["containers"][0].pop("ports")
    problem = told(rlhfjob(), child)
    assert len(problem.message) <= MESSAGE_MAX
    assert problem.message.startswith("Job mine lacks 11 fields, so")
    spec = json.loads(cured_by(problem).patch.replace("<port>", "1"))["spec"]
    assert (spec["completions"], spec["parallelism"]) == (2, 2)
    (container,) = spec["template"]["spec"]["containers"]
    assert sorted(container) == ["env", "name", "ports", "resources", "volumeMounts"]
