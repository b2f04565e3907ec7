"""`evalstop groups`, and what `why`, `top` and `queue` say of residencies."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from controller.cli import explanation, groups, groups_page, job_view, queue_positions, top
from controller.cli.main import app
from controller.cli.queue import _show
from controller.cli.terminal import Terminal
from controller.policy.job import GROUP_CURES
from controller.policy.job.record import Condition
from controller.web.group_report import checked
from controller.web.groups import Around, LatestReport, group, groups_of_jobs
from tests.support import group_scene as scene

FREE = Terminal()
NOW = scene.START + 2.0
MESSAGE = "duty 0.60 + 0.60 > 0.80 in wg-3"
WAITING = scene.waiting("team-a", "next", MESSAGE)
JOBS = {"team-a/math-a": scene.A, "team-a/math-b": scene.B}


def answer(told: LatestReport | None = None, **change: Any) -> dict[str, Any]:
    given = told or LatestReport(checked(scene.report()), scene.START, "")
    found = group(scene.group(scene.A, scene.B, **change), Around(JOBS.get, scene.POOL, given))
    return found.model_dump(mode="json", by_alias=True)


def test_the_page(repository: Path) -> None:
    text = (repository / "docs" / "use" / "sharing.md").read_text()
    (block,) = re.findall(r"^```\n(\$ evalstop groups\n.*?)^```", text, re.MULTILINE | re.DOTALL)
    table, page = groups_page.table([answer()], NOW, FREE), groups_page.page(answer(), NOW, FREE)
    assert block.splitlines() == ["$ evalstop groups", *table, "$ evalstop groups wg-3", *page]


@pytest.mark.parametrize(
    ("told", "change", "said"),
    [
        (None, {"turn": None, "waiting": []}, "wg-3: Ready, nobody has the turn; nobody waits"),
        (None, {"waiting": []}, "(optim_step); nobody waits"),
        (LatestReport(problem="x"), {}, "wg-3: Ready; whose turn it is is not known here"),
    ],
)
def test_headlines(told: LatestReport | None, change: dict[str, Any], said: str) -> None:
    given = told or LatestReport(checked(scene.report(**change)), scene.START, "")
    assert groups_page.headline(answer(given), NOW).endswith(said)


def test_what_to_do_about_a_group_that_is_not_ready_is_told() -> None:
    waits = Condition("Ready", False, "WaitingForNodes", "1 of 2 pods have their nodes", scene.START, 1)
    lines = groups_page.page(answer(conditions=(waits,)), NOW, FREE)
    assert lines[0].startswith("wg-3: NotReady (WaitingForNodes: 1 of 2 pods have their nodes), ")
    (do,) = (line for line in lines if line.startswith("  do "))
    assert "kubectl get pods -n evalstop-workers -l evalstop.dev/group=wg-3 -o wide" in do
    for reason, cure in GROUP_CURES.items():
        found = groups_page.remedy({**answer(), "reason": reason})
        assert found is not None
        assert "{" not in found.line, cure


def test_a_group_that_does_not_answer_says_since_when_and_of_when_its_turns_are() -> None:
    found = scene.silent().model_dump(mode="json", by_alias=True)
    assert groups_page.headline(found, NOW) == (
        "wg-3: NoAnswer (GroupDoesNotAnswer: it has not answered since 07:55:00 UTC (TimeoutError): turns go "
        "on), silent for 5m2s; as reported 5m7s ago, team-a/math-a has the turn for 12.0s (optim_step); "
        "waiting: team-a/math-b for 9.0s"
    )
    (do,) = (line for line in groups_page.page(found, NOW, FREE) if line.startswith("  do "))
    assert "delete those that are lost" in do
    (_, row) = groups_page.table([found], NOW, FREE)
    assert row.split()[1] == "NoAnswer"


def test_a_workergroup_alone_tells_of_a_silence() -> None:
    told = answer(LatestReport(), conditions=(scene.SILENCE, scene.READY))
    assert (told["state"], told["unanswered"]) == ("NoAnswer", scene.SILENCE.since)


def test_why_a_group_is_not_ready_or_closes_is_told() -> None:
    found = answer(closing="SlowStart", closing_message="it found no nodes")
    assert groups_page.headline(found, NOW).startswith("wg-3: Closing (SlowStart: it found no nodes), ")
    closed = {**answer(), "overdue": "team-b/old"}
    assert any("team-b/old is overdue" in line for line in groups_page.page(closed, NOW, FREE))
    old = answer(LatestReport(checked(scene.report()), scene.START, "no answer within 5 s"))
    assert any(re.fullmatch(r"  trouble +no answer within 5 s", line) for line in
               groups_page.page(old, NOW, FREE))  # fmt: skip


def test_who_reads_only_jobs_sees_residents_and_no_turn() -> None:
    (found,) = (one.model_dump(mode="json", by_alias=True) for one in groups_of_jobs(JOBS.values()))
    lines = groups_page.page(found, NOW, FREE)
    assert lines[0] == "wg-3: Ready; whose turn it is is not known here"
    assert sum("team-a/math-" in line for line in lines) == 2
    (_, row) = groups_page.table([found], NOW, FREE)
    assert row.split()[-6:] == ["2", "?", "-", "-", "?", "-"]


def test_only_what_is_more_than_time_is_printed_again(capsys: pytest.CaptureFixture[str]) -> None:
    show = groups._printer(groups.Wanted(), groups.Document.TEXT, watch=True)
    show({"items": [answer()]})
    assert "team-a/math-a" in capsys.readouterr().out
    later = scene.report(now=3001 * 1_000_000)
    show({"items": [answer(LatestReport(checked(later), scene.START + 1.0, ""))]})
    assert capsys.readouterr().out == ""
    show({"items": [answer(LatestReport(checked(scene.report(turn=None)), scene.START, ""))]})
    assert "nobody" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (groups.Wanted(), ["wg-3"]),
        (groups.Wanted(namespace="team-a", pool="research"), ["wg-3"]),
        (groups.Wanted(namespace="team-b"), []),
        (groups.Wanted(pool="night"), []),
    ],
)
def test_groups_are_chosen_by_pool_and_namespace(wanted: groups.Wanted, names: list[str]) -> None:
    found = wanted.of_all({"items": [answer()]})["items"]
    assert [one["name"] for one in found] == names
    assert groups.Wanted("wg-3", "team-b").of_all(answer())["items"] == [answer()]  # a name is a name


def test_a_group_that_is_not_there_is_named() -> None:
    with scene.operator() as way:
        result = CliRunner().invoke(app, ["groups", "wg-9", "--url", way.address])
    assert result.exit_code == 3
    assert "there are: wg-3, wg-4 (GroupNotFound)" in result.stderr
    assert "next: evalstop groups lists all that there are" in result.stderr
    assert CliRunner().invoke(app, ["groups", "--url", "ftp://x"]).exit_code == 2


def test_documents_are_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_positions, "poll", lambda *_: iter([{"items": [answer()]}]))
    one = CliRunner().invoke(app, ["groups", "wg-3", "--url", "http://x", "-o", "json"])
    assert json.loads(one.stdout) == answer()
    every = CliRunner().invoke(app, ["groups", "--url", "http://x", "-o", "yaml"])
    assert every.stdout.startswith("items:\n- name: wg-3\n")


def test_why_tells_of_a_residency() -> None:
    told = explanation.explain(job := job_view.read(scene.B), NOW)
    assert dict(told.facts)["group"] == (
        "wg-3 (family qwen-7b), a resident; steps take 1.13 times as long as alone, 1.10 is allowed, longer "
        "for 4 steps now; charged 1.50 GPU-hours of groups"
    )
    assert "evalstop groups wg-3" in [command for command, _ in told.next_steps]
    document = explanation.document(job, told)
    assert document["residency"]["group"] == "wg-3"
    assert document["residency"]["chargedGPUSeconds"] == 5400.0
    alone = explanation.explain(job_view.read(scene.resident("team-a", "new", profiled=False)), NOW)
    assert "alone until enough steps of its kind are measured" in dict(alone.facts)["group"]
    # Before its first eval nothing is known of that: beside two others it was said to be alone.
    new = job_view.read(scene.resident("team-a", "new", profiled=False, charged=0.0))
    told = explanation.explain(new, NOW)
    assert "alone" not in dict(told.facts)["group"]
    assert explanation.document(new, told)["residency"]["profiled"] is None


def test_why_and_queue_say_what_no_group_has_for_it() -> None:
    told = explanation.explain(job_view.read(WAITING), NOW)
    assert f"NoGroupFits: {MESSAGE}" in told.headline
    assert dict(told.facts)["group"] == "none now, it asks for one of family qwen-7b"
    assert "evalstop groups --pool research" in [command for command, _ in told.next_steps]


def test_the_queue_shows_family_and_reason(capsys: pytest.CaptureFixture[str]) -> None:
    place = queue_positions._place(WAITING, NOW)
    assert (place["family"], place["reason"], place["message"]) == ("qwen-7b", "NoGroupFits", MESSAGE)
    plain = {**place, "job": "team-b/other", "family": "", "reason": "BehindHead", "message": "it would fit"}
    _show([{**place, "position": 1}, {**plain, "position": 2}])
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split()[:6] == ["#", "JOB", "GPUS", "FAMILY", "WAITED", "REASON"]
    assert "qwen-7b" in first
    assert f"NoGroupFits: {MESSAGE}" in first
    assert "BehindHead" in second
    assert "it would fit" not in second
    _show([plain])
    assert "FAMILY" not in capsys.readouterr().out


def test_top_shows_groups_where_there_are_any() -> None:
    view = top.View(None, "team-a", "")  # type: ignore[arg-type]  # nothing is asked
    view.jobs = {"team-a/math-a": scene.A, "team-a/next": WAITING}
    lines = view.picture(NOW, FREE, None)
    rows = {line.split()[0]: line for line in lines if line.startswith(("math-a", "next"))}
    assert any("GROUP" in line for line in lines)
    assert rows["math-a"].endswith("wg-3 1.04x")
    assert rows["next"].endswith("-")
    alone = {key: {**obj, "spec": {**obj["spec"], "sharing": None}} for key, obj in view.jobs.items()}
    view.jobs = alone
    assert not any("GROUP" in line for line in view.picture(NOW, FREE, None))


def test_turns_that_are_all_lost_are_told_with_the_reason() -> None:
    message = "of team-a/math-a each turn is lost: start: no class"
    lost = Condition("TurnsCount", False, "TurnsLost", message, scene.START, 1)
    report = scene.report(turn=None, waiting=[])
    report["residents"][0] |= {"lostInRow": 82, "failing": 1, "whyLost": "start: no class"}
    told = answer(LatestReport(checked(report), scene.START, ""), conditions=(scene.READY, lost))
    lines = groups_page.page(told, NOW, FREE)
    assert lines[0].startswith(f"wg-3: Ready (TurnsLost: {message}), ")
    text = "\n".join(lines)
    assert "82 turns of team-a/math-a since one counted, the newest: start: no class" in text
    assert "kubectl delete jobs -n evalstop-workers -l evalstop.dev/group=wg-3" in text
    job = scene.resident("team-a", "math-a", lost_since=60.0, lost_why="start: no class")
    facts = dict(explanation.explain(job_view.read(job), NOW).facts)
    assert "a resident; each turn since 00:01:00 UTC is lost: start: no class" in facts["group"]
    job = scene.resident("team-a", "math-a", waits_since=60.0, waits_why="FamilyNotFound: no family")
    facts = dict(explanation.explain(job_view.read(job), NOW).facts)
    assert "a resident; FamilyNotFound: no family" in facts["group"]
