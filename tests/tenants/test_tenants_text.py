"""Texts of a tenant that Python's own readers do not survive, where each of them is read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from controller import names
from controller.api import convert
from controller.checkpoints.results import read_result
from controller.kube.errors import from_response
from controller.objects import completion_index
from controller.operator.state import run_configmap
from controller.workloads import pod_view, start_patch
from controller.workloads.running import ANNOTATION_PLACEMENT, indexes

DEEP = ["[" * 4000, "[" * 100_000, '{"a":' * 3000, '{"uid":' + "[" * 100_000, "[" * 250 + "]" * 250]
DIGITS = ["9" * 5000, "9" * 4300, "9" * 19]


@pytest.mark.parametrize("text", [*DEEP, *DIGITS])
def test_a_run_file_says_nothing(text: str) -> None:
    assert run_configmap.read({"data": {names.RUN_KEY: text}}) is None


@pytest.mark.parametrize("text", [*DEEP[:1], *DIGITS[1:], '{"ok":true,"step":' + "1" * 3000 + "}"])
def test_an_access_pods_message_is_a_failure_of_its_job(text: str) -> None:
    job = {"metadata": {"labels": {}}}
    ended = {"name": "access", "state": {"terminated": {"message": text}}}
    pod = {"metadata": {"name": "p"}, "status": {"containerStatuses": [ended]}}
    view = read_result(job, [pod], "1")
    assert (view.finished, view.ok, view.reason) == (True, False, "AccessFailed")
    assert len(view.message) <= 1024


@pytest.mark.parametrize("text", [*DEEP, *DIGITS, '{"nodeSelector":3}', '{"tolerations":{}}', '"x"'])
def test_a_placement_that_is_none_of_ours_is_none(text: str) -> None:
    spec = {"suspend": True, "template": {"spec": {}}}
    annotations = {ANNOTATION_PLACEMENT: text}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"uid": "u", "annotations": annotations},
        "spec": spec,
    }
    clean: Any = json.loads(json.dumps(job))
    clean["metadata"]["annotations"] = {}
    assert start_patch(job, 1, {"pool": "a"}) == start_patch(clean, 1, {"pool": "a"})


@pytest.mark.parametrize("text", [*DIGITS, "-1", "٣", "1e3", ""])
def test_numbers_in_annotations_have_few_ascii_digits(text: str) -> None:
    annotations = {names.ANNOTATION_ADMISSION: text, "batch.kubernetes.io/job-completion-index": text}
    pod = {"metadata": {"annotations": annotations}}
    assert pod_view(pod).admission is None
    assert completion_index(pod) is None


@pytest.mark.parametrize("text", [*DIGITS, f"0-{'9' * 5000}", "٣", "0-٣", "1,x"])
def test_completed_indexes_that_are_none_are_none(text: str) -> None:
    assert indexes(text) == ()


def test_many_completed_indexes_are_bounded() -> None:
    assert len(indexes(",".join(["0-1000000"] * 100_000))) == 1024


@pytest.mark.parametrize("text", [*DEEP, *DIGITS[:1]])
def test_a_rules_state_that_does_not_read_is_told_as_such(text: str) -> None:
    stored = {"name": "kDeclines", "fingerprint": "f", "state": text}
    with pytest.raises(convert.StatusError):
        convert.record({"attempt": 1, "rule": stored})


@pytest.mark.parametrize("text", [*DEEP, *DIGITS])
def test_a_webhooks_refusal_is_a_refusal_whatever_it_says(text: str) -> None:
    error = from_response(422, text.encode(), {"Retry-After": "9" * 5000})
    assert error.status == 422
    assert error.retry_after is None


def test_of_two_pods_that_say_they_are_an_access_jobs_none_is_heard() -> None:
    """Who may create pods there gave one the Job as its owner; it ended first, and was believed."""
    job = {"metadata": {"labels": {names.LABEL_OPERATION: "secure"}}}
    digest = "sha256:" + "f" * 64
    says = {"ok": True, "step": 20, "path": "/x/20", "digest": digest, "sourceDigest": digest, "bytes": 10}
    ended = {"name": "access", "state": {"terminated": {"message": json.dumps(says)}}}
    forged: dict[str, Any] = {"metadata": {"name": "a"}, "status": {"containerStatuses": [ended]}}
    own: dict[str, Any] = {"metadata": {"name": "run-secure-x7k2p"}, "status": {"phase": "Running"}}
    assert read_result(job, [forged], "1").ok, "alone it reads like any"
    view = read_result(job, [own, forged], "1")
    assert (view.finished, view.ok, view.reason) == (True, False, "AccessFailed")
    assert "2 pods say that they are its access Job's, which has one: a, run-secure-x7k2p" in view.message
    # One that is being replaced has a successor, and that is the one that answers.
    own["metadata"]["deletionTimestamp"] = "2026-11-23T06:00:00Z"
    assert read_result(job, [own, forged], "1").ok
