"""What the API tells of a trial's jobs, what is measured on it, and that a recorded run reads back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from parity_world import CALIBRATED, DELAYS, calibration_facts, facts, timeline

from controller import names
from controller.api.record import status
from controller.parity import page
from controller.parity.calibration import measure, sampled
from controller.parity.facts import Admitted, Facts
from controller.parity.facts import timeline as lived
from controller.parity.report import Replayed, Report, Run, of_document
from controller.parity.scatter import Scatter
from controller.parity.timeline import How, Timeline
from controller.policy.job.record import AdmissionRecord, Condition, Decision, JobRecord, Preempting
from controller.policy.job.types import Desired
from controller.policy.types import Mode, PolicySpec, Proposal

DESIRED = Desired("ns/a", "u", 1, "score", 1, 1, PolicySpec("kDeclines"))


def told(record: JobRecord) -> Mapping[str, Any]:
    return status(record, DESIRED, 0.0)


def pod(number: int, phase: str, message: str = "", name: str = "a-0", index: str = "0") -> dict[str, Any]:
    state = {"terminated": {"message": message}} if message else {"running": {}}
    return {
        "metadata": {
            "name": name,
            "annotations": {
                names.ANNOTATION_ADMISSION: str(number),
                "batch.kubernetes.io/job-completion-index": index,
            },
        },
        "status": {"phase": phase, "containerStatuses": [{"state": state}]},
    }


def said(began: float, ended: float) -> str:
    words = {"began": began, "ended": ended, "from": 0.0, "to": ended - began, "left": False}
    return json.dumps({**words, "evals": [], "asked": []})


def test_a_job_s_stays_are_told_by_its_statuses_and_pods() -> None:
    job = Facts("a", 2, submitted=100.0)
    first = AdmissionRecord(1, ("n", "n"), 101.0)
    job.take(told(JobRecord(attempt=1, admission=first)))
    job.take(told(JobRecord(attempt=1, admission=first, preempting=Preempting("Srtf", 110.0))))
    job.take(told(JobRecord(attempt=1, queued_at=115.0, preemptions=1)))
    assert job.state == "waiting"
    second = AdmissionRecord(2, ("n",), 120.0, running_since=121.0)
    job.take(told(JobRecord(attempt=2, queued_at=115.0, admission=second)))
    assert (job.state, job.over) == ("running", False)
    job.take_pod(pod(2, "Running"), 121.0)
    job.take_pod(pod(2, "Succeeded", said(122.0, 130.0)), 130.5)
    job.take_pod(pod(2, "Succeeded", said(122.0, 130.0)), 139.0)  # told again, when it is deleted
    done = Condition("Completed", True, "Complete", "", 132.0, 1)
    job.take(
        told(JobRecord(attempt=2, queued_at=115.0, admission=second, finished="Complete", conditions=(done,)))
    )
    assert (job.state, job.over) == ("ended", True)
    (one,) = lived([job], 100.0).jobs
    assert [(s.admitted, s.decided, s.freed, s.how) for s in one.stays] == [
        (1.0, 10.0, 15.0, How.PREEMPT),
        (20.0, None, 30.5, How.END),
    ]
    assert [s.nodes for s in one.stays] == [("n",), ("n",)]
    assert one.jct == 30.5


def test_a_gang_was_where_its_pods_were_bound_not_where_they_were_planned() -> None:
    job = Facts("a", 1)
    planned = AdmissionRecord(1, ("plan-1", "plan-2"), 1.0)
    seen = []
    for bound in ((), ("n1",), ("n1", "n2"), ("n2",), ()):  # they start, and end, one after the other
        job.take(told(JobRecord(attempt=1, admission=replace(planned, bound_nodes=bound))))
        assert job.last is not None
        seen.append(job.last.nodes)
    assert seen == [planned.nodes, ("n1",), ("n1", "n2"), ("n1", "n2"), ("n1", "n2")]


def test_a_gang_s_gpus_are_free_with_its_last_pod() -> None:
    job = facts("a", seen=40.0)
    job.take_pod(pod(1, "Succeeded", name="a-0"), 31.0)
    job.take_pod(pod(1, "Succeeded", name="a-1", index="1"), 32.0)
    assert job.freed == 32.0


def test_a_stop_frees_when_its_pods_are_gone() -> None:
    proposal = Proposal(300, 100, "ConsecutiveDeclines", 2.0, 2.0)
    decision = Decision("kDeclines", Mode.ENFORCE, proposal, "", 9.0, retained_at=10.0, pods_gone_at=12.0)
    job = Facts("a", 1)
    job.take(told(JobRecord(attempt=1, admission=AdmissionRecord(1, ("n",), 1.0), decision=decision)))
    assert (job.state, job.decided_step) == ("stopped", 300)
    (one,) = lived([job], 0.0).jobs
    assert [(s.admitted, s.decided, s.freed, s.how) for s in one.stays] == [(1.0, 9.0, 12.0, How.STOP)]


def test_a_job_that_is_refused_says_why() -> None:
    job = Facts("a", 1)
    job.take(told(JobRecord(conditions=(Condition("Accepted", False, "PoolNotFound", "no pool", 1.0, 1),))))
    assert job.over
    assert job.problem == "Accepted is False, PoolNotFound: no pool"


def test_every_delay_is_measured_between_the_moments_that_define_it() -> None:
    found = measure([calibration_facts()])
    assert {m.name: m.mean for m in found.measured} == pytest.approx(DELAYS)
    assert found.latencies.preempt_delay == pytest.approx(DELAYS["preempt_delay"])


def test_a_delay_that_was_not_to_be_seen_is_named() -> None:
    with pytest.raises(ValueError, match="eval_delay: was not to be seen in the calibration run"):
        measure([[one for one in calibration_facts() if one.key != "stops"]])


@pytest.mark.parametrize(
    ("freed", "taken", "seen"),
    [
        (("n1",), ("n1",), True),
        (("n1", "n2"), ("n2", "n3"), True),
        (("n1",), ("n2",), False),  # it waited for GPUs elsewhere, which somebody else's end did not bring
        ((), ("n2",), True),  # recordings from before nodes were kept
        (("n1",), (), True),
        ((), (), True),
    ],
)
def test_a_hand_over_is_of_gpus_of_the_same_nodes(
    freed: tuple[str, ...], taken: tuple[str, ...], seen: bool
) -> None:
    first, second = facts("a", at=0.0, seen=11.0), facts("b", at=11.25, began=12.0, ended=20.0, seen=21.0)
    second.submitted = 5.0
    first.admissions[1].nodes, second.admissions[1].nodes = freed, taken
    (found,) = [m for m in sampled([[first, second]]) if m.name == "handover_delay"]
    assert (found.count, found.mean) == ((1, 0.25) if seen else (0, 0.0))


@pytest.mark.parametrize(("nodes", "seen"), [(("n1",), True), (("n2",), False)])
@pytest.mark.parametrize("how", ["preempt", "stop"])
def test_gpus_that_a_run_gave_back_are_of_the_nodes_it_had(
    nodes: tuple[str, ...], seen: bool, how: str
) -> None:
    gives = Facts("a", 1, submitted=0.0)
    gives.admissions[1] = Admitted(0.0, nodes=("n1",), back=11.0 if how == "preempt" else None)
    gives.pods_gone = 11.0 if how == "stop" else None
    gets = Facts("b", 1, submitted=5.0)
    gets.admissions[1] = Admitted(11.25, nodes=nodes)
    (found,) = [m for m in sampled([[gives, gets]]) if m.name == "handover_delay"]
    assert found.count == int(seen)


def report() -> Report:
    sim = timeline(a=(0.0, [(0.0, 10.0, How.END)]), b=(0.0, [(0.0, 12.0, How.STOP, 11.0)]))
    cluster = timeline(
        a=(0.0, [(0.0, 4.0, How.PREEMPT, 3.0), (5.0, 14.0, How.END)]), b=(0.0, [(0.0, 13.0, How.STOP, 12.0)])
    )
    about = {
        "trace": "t.jsonl",
        "jobs": 2,
        "gpus": 4,
        "nodes": "1x4",
        "speed": 60.0,
        "load": 1.25,
        "rule": "kDeclines:k=2",
        "command": "evalstop parity t.jsonl",
        "notes": [],
    }
    told = (facts("a"), facts("b"))
    runs = (Run("las:first_threshold=9", sim, cluster, told, Scatter(9, 12.0, 10.5, 14.5)),)
    return Report(about, measure([calibration_facts()]), runs, Replayed(7, 0))


def test_a_recorded_run_reads_back() -> None:
    document = json.loads(json.dumps(report().document(), allow_nan=False))
    again = of_document(document)
    assert json.loads(json.dumps(again.document())) == document
    assert again.calibration.latencies == report().calibration.latencies
    older = json.loads(json.dumps(document))
    for run in older["runs"]:
        del run["scatter"]
    assert [run.scatter for run in of_document(older).runs] == [None]


def test_a_recording_from_before_nodes_were_kept_reads_back() -> None:
    document = json.loads(json.dumps(report().document()))
    for run in document["runs"]:
        for job in [*run["sim"], *run["cluster"]]:
            job["stays"] = [stay[:4] for stay in job["stays"]]
        for one in run["facts"]:
            for admitted in one["admissions"].values():
                del admitted["nodes"]
    again = of_document(document)
    assert [c.as_dict() for c in again.compared] == [c.as_dict() for c in report().compared]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "evalstop-trace"}, "format: expected 'evalstop-parity'"),
        ({"version": 2}, "version: 2 is not allowed, expected 1"),
        ({"runs": [{}]}, "a field is missing or wrong"),
    ],
)
def test_what_is_no_recorded_run_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        of_document({**report().document(), **change})


def test_the_page_has_both_timelines_and_every_difference(tmp_path: Path) -> None:
    found = report()
    page.write_page(tmp_path / "parity.html", found)
    text = (tmp_path / "parity.html").read_text()
    assert "simulator: mean JCT 11.0 s" in text
    assert "cluster: mean JCT 13.5 s" in text
    assert text.count("<tr>") >= 2 + 1 + len(found.compared[0].differences) + len(CALIBRATED.measured)
    assert "7 decisions, was decided anew: all the same" in text
    assert not any(wanted in text for wanted in ("<script", "<link", "src=", "@import"))


def test_the_report_goes_between_its_marks_and_nowhere_else(tmp_path: Path) -> None:
    file = tmp_path / "docs.md"
    file.write_text("before\n<!-- parity -->\nOLD WORDS\n<!-- /parity -->\nafter\n")
    for _ in range(2):  # the second time changes nothing
        page.write_markdown(file, report())
    text = file.read_text()
    assert text.startswith("before\n<!-- parity -->\n")
    assert text.endswith("<!-- /parity -->\nafter\n")
    assert "OLD WORDS" not in text
    figures = "11.0 s | 13.5 s | -18.5 % | 12.0 s, 10.5 to 14.5 | -11.1 % | 1 (1) | 1 (0)"
    assert text.count(f"| las:first_threshold=9 | {figures} |") == 1
    assert (tmp_path / "images" / "docs-las.svg").read_text().startswith("<svg")
    (tmp_path / "plain.md").write_text("nothing\n")
    with pytest.raises(ValueError, match="between which the report goes"):
        page.write_markdown(tmp_path / "plain.md", report())


def test_each_policy_has_a_picture_of_its_own(tmp_path: Path) -> None:
    (one,) = report().runs
    other = replace(one, policy="las:first_threshold=20", cluster=one.sim)
    page.write_markdown(
        tmp_path / "docs.md", replace(report(), runs=(one, other, replace(one, policy="fifo")))
    )
    text = (tmp_path / "docs.md").read_text()
    for name in ("docs-las.svg", "docs-las-2.svg", "docs-fifo.svg"):
        assert text.count(f"(images/{name})") == 1
    pictures = [(tmp_path / "images" / f"docs-las{n}.svg").read_text() for n in ("", "-2")]
    assert pictures[0] != pictures[1]


def test_a_job_s_name_does_not_break_a_table(tmp_path: Path) -> None:
    (run,) = report().runs
    name = "a|b\nc"

    def named(found: Timeline) -> Timeline:
        return Timeline(tuple(replace(job, key=name) if job.key == "a" else job for job in found.jobs))

    odd = replace(run, sim=named(run.sim), cluster=named(run.cluster), facts=(facts(name), facts("b")))
    page.write_markdown(tmp_path / "docs.md", replace(report(), runs=(odd,)))
    rows = [line for line in (tmp_path / "docs.md").read_text().splitlines() if "a\\|b c" in line]
    assert rows
    assert all(row.replace("\\|", "").count("|") == 5 for row in rows)


def test_a_load_that_there_is_not_is_null_and_a_dash(tmp_path: Path) -> None:
    """All jobs come at once."""
    found = replace(report(), about={**report().about, "load": None})
    assert json.loads(json.dumps(found.document(), allow_nan=False))["load"] is None
    assert "on 4 GPUs (1x4), load -, 60 times" in page.plain(found)
    page.write_page(tmp_path / "parity.html", found)


def test_a_log_that_could_not_be_read_to_its_end_is_said() -> None:
    found = replace(report(), replayed=Replayed(3, 1, "line 4: not JSON"))
    text = page.plain(found)
    assert "1 of them different" in text
    assert "It could not be read further: line 4" in text
