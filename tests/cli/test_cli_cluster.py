"""Commands on a real API server, with the caller's own kubeconfig and rights: what they print and return."""

from __future__ import annotations

import json
import re
import shlex
import threading
from dataclasses import replace
from typing import Any

import pytest
import yaml
from cli_shell import Shell

from controller.policy.job import conditions as c
from controller.policy.job.record import Condition
from tests.support import cli_world as w
from tests.support.fresh_namespace import fresh_namespace
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster


# -- looking ------------------------------------------------------------------------------------------------


def test_list_in_every_form(shell: Shell) -> None:
    lines = shell.out("list").splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [
        ["done", "Completed"], ["fresh", "New"], ["healthy", "Running"], ["over", "Stopped"],
        ["refused", "Refused"], ["shadow", "WouldStop"], ["waits", "Queued"],
    ]  # fmt: skip
    assert shell.out("list", "--no-headers").startswith("done ")
    assert len(shell.out("list", "-o", "wide").splitlines()[0].split()) > len(lines[0].split())
    assert shell.out("list", "-o", "name").splitlines()[0] == "rlhfjob.evalstop.dev/done"
    found = json.loads(shell.out("list", "-o", "json"))
    assert (found["kind"], len(found["items"])) == ("List", 7)
    assert yaml.safe_load(shell.out("list", "-o", "yaml")) == found
    everywhere = shell.out("list", "-A").splitlines()
    assert everywhere[0].split()[0] == "NAMESPACE"
    assert [shell.namespace, "over"] in [line.split()[:2] for line in everywhere]


def test_what_json_gives_can_be_applied_again(shell: Shell, kubectl: Any) -> None:
    one = shell.out("get", "over", "-o", "json")
    assert json.loads(one)["kind"] == "RLHFJob"
    assert "managedFields" not in one
    told = kubectl("apply", "--dry-run=server", "-f", "-", "-n", shell.namespace, stdin=one)
    assert "over" in told


def test_the_printed_cure_can_be_pasted(shell: Shell, kubectl: Any) -> None:
    """Nothing is filled in but the value that only its user knows; the API server takes it as it stands."""
    (mark,) = json.loads(shell.out("why", "refused", "-o", "json"))["marks"]
    assert (mark["mark"], mark["reason"], mark["warning"]) == ("Refused", "PoolNotFound", True)
    program, *given = shlex.split(mark["cure"]["command"])
    assert (program, *given[:3]) == ("kubectl", "patch", "rlhfjob", "refused")
    assert "--type" in given
    pasted = [word.replace("<pool>", shell.pool) for word in given]
    changed = json.loads(kubectl(*pasted, "--dry-run=server", "-o", "json"))
    assert changed["spec"]["pool"] == shell.pool


def test_labels(shell: Shell) -> None:
    assert len(shell.out("list", "-l", "team=a").splitlines()) == 8
    result = shell("list", "-l", "team=nobody")
    assert result.stdout == ""
    assert f"No RLHFJobs in namespace {shell.namespace} with labels team=nobody." in result.stderr
    with fresh_namespace(shell.plane, "cli-empty") as empty:
        result = shell("list", "-n", empty, "-l", "team=a")
        assert f"No RLHFJobs in namespace {empty} with labels team=a.\n" in result.stderr
        assert " in other namespaces: evalstop list -A" in result.stderr


def test_why_history_get_simulate_of_a_stopped_run(shell: Shell) -> None:
    page = shell.out("why", "over")
    assert f"{shell.namespace}/over: Stopped by kDeclines at step 240" in page
    found = json.loads(shell.out("why", "over", "-o", "json"))
    assert (found["decision"]["statistic"], found["decision"]["bestStep"]) == (3.0, 160)
    assert [e["step"] for e in found["evals"]][-1] == 240
    assert yaml.safe_load(shell.out("why", f"{shell.namespace}/over", "-o", "yaml")) == found
    assert ["retained", "160"] in [line.split()[:2] for line in shell.out("get", "over").splitlines()]
    assert "GPUs handed to team/next" in shell.out("history", "over")
    assert len(json.loads(shell.out("history", "over", "-o", "json"))["evals"]) == 12
    outcomes = json.loads(shell.out("simulate", "over", "--rule", "drawdown:max_drop=0.3", "-o", "json"))
    own, other = outcomes["outcomes"]
    assert own["stopped_step"] == 240, "three evals, each more than .01 below the one before"
    assert other["stopped_step"] is None
    assert "(its own)" in shell.out("simulate", "over", "--rule", "scan")


def test_events_are_part_of_the_history(shell: Shell) -> None:
    about = {
        "kind": "RLHFJob",
        "namespace": shell.namespace,
        "name": "done",
        "apiVersion": "evalstop.dev/v1alpha1",
    }
    event = {
        "metadata": {"name": "done.1", "namespace": shell.namespace},
        "involvedObject": about,
        "reason": "BeganAnew",
        "message": "the evaluator changed",
        "type": "Warning",
        "count": 2,
        "firstTimestamp": "2025-11-13T02:13:20Z",
        "lastTimestamp": "2025-11-13T02:14:20Z",
    }
    shell.plane.client().post(f"/api/v1/namespaces/{shell.namespace}/events", event)
    assert "the evaluator changed" in shell.out("history", "done")


def test_pools_and_top(shell: Shell) -> None:
    row = next(line for line in shell.out("pools").splitlines() if line.startswith(shell.pool))
    assert row.split()[1:6] == ["Yes", "fifo", "8", "2", "0"]
    assert "team/next" in shell.out("pools", shell.pool)
    picture = shell.out("top", "--once")
    assert f"{shell.pool}  [" in picture
    assert picture.index("refused") < picture.index("healthy") < picture.index("done")


def test_queue_from_statuses_where_there_is_no_operator(shell: Shell) -> None:
    result = shell("queue", shell.pool, "--operator-namespace", shell.namespace)
    assert "waits" in result.stdout
    assert "2 waiting in pool" in result.stdout
    assert "places in the queue are the operator's to tell" in result.stderr
    one = json.loads(
        shell.out(
            "queue", shell.pool, "--job", f"{shell.namespace}/waits", "-o", "json",
            "--operator-namespace", shell.namespace,
        )
    )  # fmt: skip
    assert (one["position"], one["reason"]) == (None, "WaitingForGPUs")


# -- changing -----------------------------------------------------------------------------------------------


def test_mode(shell: Shell) -> None:
    assert "nothing was changed" in shell.out("mode", "healthy", "off", "--dry-run")
    assert shell.spec("healthy")["mode"] == "Enforce"
    assert shell.out("mode", "healthy", "shadow").strip().endswith("mode Shadow (was Enforce)")
    assert shell.spec("healthy")["mode"] == "Shadow"
    assert "already" in shell.out("mode", "healthy", "Shadow")
    shell.out("mode", "healthy", "Enforce")
    assert "Shadow" in shell("mode", "healthy", "on", code=2).stderr


def test_stop_and_resume_write_what_the_operator_reads(shell: Shell) -> None:
    assert "is to be stopped" in shell.out("stop", "shadow")
    assert shell.spec("shadow")["runState"] == "Stopped"
    shell.out("resume", "over", "--from", "best", "--id", "again")
    assert shell.spec("over")["resume"] == {"from": "Best", "id": "again"}
    shell.out("resume", "over", "--step", "160", "--id", "third")
    assert shell.spec("over")["resume"] == {"from": "Step", "id": "third", "step": 160}
    shell.out("resume", "over", "--from", "latest", "--id", "fourth")
    assert shell.spec("over")["resume"] == {"from": "Latest", "id": "fourth"}
    assert shell.spec("over")["runState"] == "Run"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["resume", "healthy"], 1, "there is nothing to resume"),
        (["resume", "done"], 1, "has ended (Complete)"),
        (["resume", "over", "--from", "step"], 2, "give --step N"),
        (
            ["resume", "over", "--from", "best", "--step", "5"],
            2,
            "--from best or --from latest without --step",
        ),
        (["resume", "over", "--id", "no spaces", "--from", "latest"], 1, "spec.resume.id"),
        (["stop", "done"], 1, "has ended"),
        (["pin", "healthy", "soon"], 2, "expected a whole number or best"),
        (["pin", "fresh", "best"], 1, "has no eval yet"),
        (["pin", "healthy", "1", "2", "3", "4", "5"], 1, "at most 4 are kept"),
        (["simulate", "fresh", "--rule", "scan"], 1, "has no evals to show"),
        (["simulate", "over", "--rule", "nonesuch"], 2, "nonesuch"),
        (["why", "ovr"], 3, "did you mean over?"),
        (["why", "nothing-like-it"], 3, "there are: done, fresh"),
        (["why", "a/b/c"], 2, "give NAME, or NAMESPACE/NAME"),
        (["pools", "nonesuch"], 3, "there is no GPUPool 'nonesuch'"),
        (["list", "-o", "table2"], 2, "table2"),
        (["why"], 2, "Missing argument"),
    ],
)
def test_what_cannot_be_ends_with_its_code_and_what_is_next(
    shell: Shell, arguments: list[str], code: int, said: str
) -> None:
    result = shell(*arguments, code=code)
    told = " ".join(result.stderr.replace("│", " ").split())
    assert said in told
    assert code == 2 or "next:" in told


def test_the_same_name_in_another_namespace_is_pointed_at(shell: Shell) -> None:
    """Other files' shells may have jobs of that name in the same API server: theirs are named beside ours."""
    told = shell("why", "over", "-n", "default", code=3).stderr
    named = re.search(r"there is one in namespace (.+): give -n (\S+)", told)
    assert named, told
    assert shell.namespace in named[1].split(", ")
    assert named[2] in named[1].split(", ")


def test_pin(shell: Shell) -> None:
    assert "pins nothing" in shell.out("pin", "healthy")
    shell.out("pin", "healthy", "40", "best")
    assert shell.spec("healthy")["checkpoints"]["pins"] == [40, 120]
    assert "nothing to change" in shell.out("pin", "healthy", "40")
    shell.out("pin", "healthy", "40", "--remove")
    assert shell.spec("healthy")["checkpoints"]["pins"] == [120]
    there = replace(w.running(proxy=True), pinned=(w.kept(120, "/checkpoints/.evalstop/uid/1-9f2c41d0-120"),))
    w.write(shell.plane, shell.namespace, "healthy", there)
    assert "120   pinned" in shell.out("pin", "healthy")
    assert "step 120 is pinned at" in shell.out("pin", "healthy", "120", "--wait")
    shell.out("pin", "healthy", "60")
    told = Condition(c.PINNED, False, "CheckpointMissing", "step 60: it is not there", w.START, 9)
    w.write(shell.plane, shell.namespace, "healthy", replace(there, conditions=(*there.conditions, told)))
    assert "CheckpointMissing: step 60" in shell.out("pin", "healthy")
    late = shell("pin", "healthy", "60", "--wait", "--timeout", "1", code=6).stderr
    assert "is not pinned at 60 after 1 s" in late


def test_wait_ends_when_the_operator_has_done_it(shell: Shell) -> None:
    record = replace(
        w.queued(), resume_id="w1", conditions=(Condition(c.RESUMED, True, "Resumed", "goes on", w.START, 9),)
    )

    def carry_out() -> None:
        # Not before it is asked for: a run that is in the queue already cannot be resumed.
        wait_until(lambda: shell.spec("over").get("resume", {}).get("id") == "w1", "the request is there")
        w.write(shell.plane, shell.namespace, "over", record)

    operator = threading.Thread(target=carry_out)
    operator.start()
    try:
        assert "goes on" in shell.out(
            "resume", "over", "--from", "latest", "--id", "w1", "--wait", "--timeout", "60"
        )
    finally:
        operator.join()
        w.write(shell.plane, shell.namespace, "over", w.stopped())
