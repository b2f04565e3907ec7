"""`--watch` of list, get, pools and queue on a real API server: what is there, then what changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from cli_shell import Shell, following
from test_cli_rollouts import SPEC as ROLLOUT
from test_cli_rollouts import record as rolling

from tests.support import cli_world as w

pytestmark = pytest.mark.cluster
JOBS = ["done", "fresh", "healthy", "over", "refused", "shadow", "waits"]


@pytest.fixture
def starts(shell: Shell) -> Iterator[Any]:
    """`starts()`: the job that waited runs; it waits again after the test."""
    yield lambda: w.write(shell.plane, shell.namespace, "waits", w.running())
    w.write(shell.plane, shell.namespace, "waits", w.queued())


def documents(text: str) -> list[Any]:
    """JSON documents one after the other, the last of them whole."""
    found, rest = [], text.strip()
    while rest:
        one, end = json.JSONDecoder().raw_decode(rest)
        found.append(one)
        rest = rest[end:].lstrip()
    return found


def complete(text: str) -> list[Any]:
    try:
        return documents(text)
    except ValueError:  # in the middle of one
        return []


def states(found: list[Any]) -> list[tuple[str, str]]:
    return [(o["metadata"]["name"], o.get("status", {}).get("summary", "New")) for o in found]


def test_list_prints_the_rows_that_change(shell: Shell, starts: Any) -> None:
    with following(shell.kubeconfig, "list", "--watch") as command:
        first = command.until(lambda text: text.count("\n") == 8)
        assert [line.split()[0] for line in first.splitlines()] == ["NAME", *JOBS]
        starts()
        told = command.until(lambda text: text.count("\n") > 8).removeprefix(first)
    assert told.split()[:2] == ["waits", "Running"]


def test_json_is_one_document_for_each_object_and_each_change(shell: Shell, starts: Any) -> None:
    with following(shell.kubeconfig, "list", "-w", "-o", "json") as command:
        first = documents(command.until(lambda text: len(complete(text)) == 7))
        assert [o["kind"] for o in first] == ["RLHFJob"] * 7, "each alone, as kubectl has it, not a List"
        starts()
        told = documents(command.until(lambda text: len(complete(text)) > 7))
    assert states(told[7:])[0] == ("waits", "Running")
    assert "managedFields" not in told[7]["metadata"]


def test_yaml_documents_are_kept_apart(shell: Shell, starts: Any) -> None:
    with following(shell.kubeconfig, "get", "waits", "over", "-w", "-o", "yaml") as command:
        command.until(lambda text: text.count("---\n") == 2 and "summary: Stopped" in text)
        starts()
        told = command.until(lambda text: text.count("---\n") > 2 and "summary: Running" in text)
    found = [(o["metadata"]["name"], o["kind"]) for o in yaml.safe_load_all(told)]
    assert found[:3] == [("waits", "RLHFJob"), ("over", "RLHFJob"), ("waits", "RLHFJob")]


def test_names_and_nothing_else(shell: Shell, starts: Any) -> None:
    with following(shell.kubeconfig, "get", "waits", "-w", "-o", "name") as command:
        command.until(lambda text: text.count("\n") == 1)
        starts()
        told = command.until(lambda text: text.count("\n") > 1)
    assert set(told.split()) == {"rlhfjob.evalstop.dev/waits"}


def test_get_prints_the_page_again_and_of_no_other_job(shell: Shell, starts: Any) -> None:
    with following(shell.kubeconfig, "get", "waits", "--watch") as command:
        command.until(lambda text: f"{shell.namespace}/waits: Queued" in text and "WaitingForGPUs" in text)
        w.write(shell.plane, shell.namespace, "healthy", w.running(proxy=True))
        starts()
        told = command.until(lambda text: f"\n\n{shell.namespace}/waits: Running" in text)
    assert "healthy" not in told


def test_get_wide_has_one_line_of_titles_for_several_jobs(shell: Shell, starts: Any) -> None:
    with following(shell.kubeconfig, "get", "waits", "over", "-w", "-o", "wide") as command:
        command.until(lambda text: text.count("\n") == 3)
        starts()
        told = command.until(lambda text: text.count("\n") > 3)
    rows = [line.split()[:2] for line in told.splitlines()]
    assert rows[:4] == [["NAME", "STATE"], ["waits", "Queued"], ["over", "Stopped"], ["waits", "Running"]]


def test_one_that_is_deleted_is_printed_as_it_was_last(shell: Shell) -> None:
    w.put(shell.plane, shell.namespace, shell.pool, "gone", w.refused())
    path = f"{w.GROUP}/namespaces/{shell.namespace}/rlhfjobs/gone"
    with following(shell.kubeconfig, "get", "gone", "-w", "-o", "json") as command:
        command.until(lambda text: len(complete(text)) == 1)
        shell.plane.client().delete(path)
        told = documents(command.until(lambda text: len(complete(text)) > 1))
    assert states(told)[-1] == ("gone", "Refused")


def test_a_job_that_is_not_there_is_not_waited_for(shell: Shell) -> None:
    assert "there is no RLHFJob 'nobody'" in shell("get", "nobody", "-w", code=3).stderr
    assert "there is no GPUPool 'nobody'" in shell("pools", "nobody", "-w", code=3).stderr


def test_pools_prints_the_rows_that_change_or_one_pool_s_page(shell: Shell) -> None:
    admin, path = shell.plane.client(), f"{w.GROUP}/gpupools/{shell.pool}"

    def row(free: int) -> Any:
        return lambda text: (
            [shell.pool, "Yes", "fifo", "8", str(free)]
            in [line.split()[:5] for line in text.splitlines() if text.endswith("\n")]
        )

    with (
        following(shell.kubeconfig, "pools", "-w") as all_of_them,
        following(shell.kubeconfig, "pools", shell.pool, "-w") as one,
        following(shell.kubeconfig, "pools", shell.pool, "-w", "-o", "json") as raw,
    ):
        first = all_of_them.until(row(2))
        one.until(lambda text: "team/next" in text)
        raw.until(lambda text: len(complete(text)) == 1)
        admin.patch(f"{path}/status", {"status": {"free": 6}})
        try:
            told = all_of_them.until(row(6)).removeprefix(first)
            page = one.until(lambda text: row(6)(text) and text.count("team/next") == 2)
            found = documents(raw.until(lambda text: len(complete(text)) == 2))
        finally:
            admin.patch(f"{path}/status", {"status": {"free": 2}})
    assert "NAME" not in told
    assert page.count("NAME ") == 2, "a page is printed whole"
    assert [pool["status"]["free"] for pool in found] == [2, 6]


def test_queue_without_an_operator_follows_the_statuses(shell: Shell, starts: Any) -> None:
    here = ("--operator-namespace", shell.namespace)
    with (
        following(shell.kubeconfig, "queue", shell.pool, "-w", *here) as text,
        following(shell.kubeconfig, "queue", shell.pool, "-w", "-o", "json", "--job", "waits", *here) as one,
    ):
        text.until(lambda text: "2 waiting in pool" in text)
        one.until(lambda text: len(complete(text)) == 1)
        starts()
        told = text.until(lambda text: f"1 waiting in pool {shell.pool} (fifo)" in text)
        found = documents(one.until(lambda text: len(complete(text)) == 2))
    assert told.count("#   JOB") == 2
    assert [place["state"] for place in found] == ["Queued", "Running"]


def test_queue_of_one_namespace_and_plain_names(shell: Shell) -> None:
    here = ("--operator-namespace", shell.namespace, "-o", "json")
    for given in (["--job", "waits"], ["--job", "waits", "-n", shell.namespace]):
        one = json.loads(shell.out("queue", shell.pool, *given, *here))
        assert one["job"] == f"{shell.namespace}/waits"
    assert json.loads(shell.out("queue", shell.pool, "-n", shell.namespace, *here))["total"] == 2
    assert json.loads(shell.out("queue", shell.pool, "-n", "default", *here))["total"] == 0
    there = shell("queue", shell.pool, "--job", "waits", "-n", "default", *here, code=3).stderr
    assert f"there is one in namespace {shell.namespace}" in there


def test_rollouts_prints_a_job_again_when_its_actors_or_steps_change(shell: Shell) -> None:
    admin, path = shell.plane.client(), f"{w.GROUP}/namespaces/{shell.namespace}/rlhfjobs"
    made = w.job("elastic", shell.namespace, shell.pool, rollout=ROLLOUT)
    admin.post(path, made)
    try:
        shell("rollouts", "healthy", code=1)
        assert "none has been announced yet" in shell.out("rollouts", "elastic")
        with following(shell.kubeconfig, "rollouts", "elastic", "-w") as command:
            first = command.until(lambda text: "none has been announced yet" in text)
            w.write(shell.plane, shell.namespace, "elastic", rolling())
            told = command.until(lambda text: "LongestFirst" in text and text.endswith("team/next\n"))
        assert told.removeprefix(first).lstrip().startswith(f"{shell.namespace}/elastic: Running, 3 rollout")
        with following(shell.kubeconfig, "rollouts", "elastic", "-w", "-o", "json") as command:
            (found,) = documents(command.until(lambda text: len(complete(text)) == 1))
        assert [one["step"] for one in found["steps"]] == [39, 40]
    finally:
        admin.delete(f"{path}/elastic")
