"""What commands print: tables and pages, on screens wide and narrow, with and without colours and Unicode."""

from __future__ import annotations

import io
import re
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.api.crd import RESOURCES
from controller.cli import (
    change,
    explanation,
    formatting,
    get,
    history,
    job_view,
    jobs,
    pools,
    queue,
    top,
    why,
)
from controller.cli.failure import Exit, Failure, of_api
from controller.cli.table import Column, render
from controller.cli.terminal import Terminal, clean, length, terminal
from controller.kube.errors import ApiError, from_response
from controller.policy.job import BY_MESSAGE, CURES
from controller.policy.job import conditions as c
from controller.policy.job.record import (
    Best,
    Condition,
    EvalBaseline,
    Guard,
    JobRecord,
    ShortBaselines,
    StopOutcome,
)
from controller.policy.types import Attempt, Mode, Verb, Verdict
from tests.support import cli_world as w

FREE = Terminal()
NOW = w.START + 900.0
ALL = [w.whole(name, record) for name, record in w.records().items()]


def of(name: str) -> job_view.Reading:
    return job_view.read(w.whole(name, w.records()[name]))


def test_the_list() -> None:
    assert jobs.table(ALL, jobs.fields(wide=False, everywhere=False), NOW, FREE) == [
        "NAME      STATE       REASON                STEP   EVAL   BEST   STREAK   GPUS   AGE",
        "done      Completed   -                      120    0.7    0.7      0/3    0/2   16m",
        "fresh     New         -                        -      -      -        -      -   16m",
        "healthy   Running     -                      120    0.7    0.7      0/3    2/2   16m",
        "over      Stopped     ConsecutiveDeclines    240   0.63   0.75      3/3    0/2   16m",
        "refused   Refused     PoolNotFound             -      -      -        -    0/2   16m",
        "shadow    WouldStop   ConsecutiveDeclines    240   0.63   0.75      0/3    2/2   16m",
        "waits     Queued      WaitingForGPUs           -      -      -        -    0/2   16m",
    ]


def test_the_list_has_the_columns_that_kubectl_shows() -> None:
    resource = next(r for r in RESOURCES if r.kind == "RLHFJob")
    for wide in (False, True):
        shown = {column.name.upper() for column in resource.columns if wide or not column.wide}
        assert {f.column.title for f in jobs.fields(wide, everywhere=False)} == shown | {"NAME"}


def test_the_page_of_a_stopped_job() -> None:
    page = "\n".join(why.page(of("over"), explanation.explain(of("over"), NOW), Terminal(unicode=False)))
    assert page.startswith("team/over: Stopped by kDeclines at step 240, 10m ago\n")
    for line in (
        "  rule      kDeclines(minDelta=0.01) + warmUp(minEvals=4)",
        "  decision  ConsecutiveDeclines: 3 against 3",
        "  best      0.75 at step 160",
        "  newest    0.63 at step 240 (standard error 0.012): 0.12, 16 % worse than the best",
        "  retained  step 160 at /retained/team/over-abcde/1-9f2c41d0-160 "
        "(12.3 MB, sha256:abababababab..., whole by its save record)",
        "  B best, step 160   X stop decided, step 240",
        "  2025-11-13 02:18:20Z  decided",
        "                 +0.4s  best checkpoint retained and verified",
        "                 +2.1s  GPUs handed to team/next",
        "  evalstop resume over -n team --from best    # goes on from step 160",
    ):
        assert line in page.splitlines(), line


@pytest.mark.parametrize(
    ("name", "headline"),
    [
        ("done", "team/done: Completed (Complete: the workload ended)"),
        ("fresh", "team/fresh: the operator has not looked at it yet"),
        ("healthy", "team/healthy: Running (the rule says Continue: NewBest)"),
        ("refused", "team/refused: Refused (PoolNotFound: spec.pool: there is no GPUPool 'b100')"),
        (
            "shadow",
            "team/shadow: WouldStop; kDeclines would have stopped it at step 240 "
            "(mode Shadow: nothing is touched)",
        ),
        ("waits", "team/waits: Queued (WaitingForGPUs: needs 1 x 2 GPUs at once, 0 are free)"),
    ],
)
def test_why_in_one_sentence(name: str, headline: str) -> None:
    assert explanation.explain(of(name), NOW).headline == headline


def test_a_pool_whose_limits_hold_no_stop_back_is_ready() -> None:
    for status, reason, shown in (("False", "NothingHeldBack", "Yes"), ("True", "ManyAtOnce", "ManyAtOnce")):
        held = {"type": "StopsHeldBack", "status": status, "reason": reason, "message": "m"}
        found = w.pool_status()
        found["conditions"].append(held)
        assert pools.ready({"status": found}) == shown
        page = "\n".join(pools.page({"spec": {}, "status": found}, NOW, FREE))
        assert ("StopsHeldBack" in page) is (status == "True")


@pytest.mark.parametrize(
    ("reason", "headline", "way"),
    [
        ("Shadow", "its pool's modeCap allows Shadow only", "kubectl edit gpupool a100"),
        ("NoVerifiableCheckpoint", "NoVerifiableCheckpoint: m", "evalstop doctor healthy -n team"),
    ],
)
def test_a_run_in_enforce_is_not_told_that_its_mode_is_shadow(reason: str, headline: str, way: str) -> None:
    record = w.shadow()
    told = w.condition(c.TERMINATION, False, reason, "m")
    job = job_view.read(w.whole("healthy", replace(record, conditions=(*record.conditions, told))))
    found = explanation.explain(job, NOW)
    assert headline in found.headline
    assert "mode Shadow" not in found.headline
    commands = [command for command, _ in found.next_steps]
    assert way in commands
    assert not any("mode healthy" in command for command in commands), "it is in that mode"


def test_a_best_whose_checkpoint_is_lost_is_named_beside_the_one_that_is_kept() -> None:
    record = w.stopped()
    assert record.best is not None
    better = replace(record.best, step=60, score=0.9)
    job = job_view.read(w.whole("over", replace(record, best=better, lost_bests=(better,))))
    assert dict(explanation.explain(job, NOW).facts)["lost"] == (
        "the checkpoint of the best eval, step 60 (0.9): in safety is that of step 160 (0.75)"
    )
    assert "lost" not in dict(explanation.explain(of("over"), NOW).facts)


def test_a_higher_eval_that_the_gate_dropped_is_told() -> None:
    record = w.running((0.40, 0.55, 0.70, 0.85, 0.72, 0.60))
    assert record.secured is not None
    secured = replace(record.secured, attempt=record.evals[0].attempt)
    obj = w.whole("healthy", replace(record, best=Best(100, 0.72), secured=secured))
    assert explanation.document(job_view.read(obj), explain(obj))["notCounted"] is None
    assert "not counted" not in dict(explain(obj).facts)
    obj["spec"]["modifiers"] = [{"gate": {}}]
    text = (
        "0.85 at step 80 is higher than the best: the eval after it lay below half of its rise; its "
        "checkpoint: pinned at /checkpoints/.evalstop/uid/1-9f2c41d0-80"
    )
    assert dict(explain(obj).facts)["not counted"] == text
    assert explanation.document(job_view.read(obj), explain(obj))["notCounted"] == {
        "step": 80,
        "lastStep": 80,
        "score": 0.85,
        "others": 0,
        "reason": "the eval after it lay below half of its rise",
        "path": "/checkpoints/.evalstop/uid/1-9f2c41d0-80",
        "text": text,
    }


def explain(obj: dict[str, Any]) -> explanation.Explanation:
    return explanation.explain(job_view.read(obj), NOW)


def test_in_shadow_it_is_said_that_no_checkpoint_is_secured() -> None:
    job = job_view.read(w.whole("shadow", replace(w.shadow(), secured=None)))
    assert dict(explanation.explain(job, NOW).facts)["secured"].startswith("nothing: mode Shadow secures no")
    assert change.unsecured(job).startswith("the checkpoint of its best eval, step 160, is not in safety")
    assert change.unsecured(of("shadow")) == ""


def test_a_run_whose_end_nobody_saw_can_be_told_to_go_on() -> None:
    for reason, refused in (("EndUnknown", False), ("BackoffLimitExceeded", True)):
        failed = w.condition(c.FAILED, True, reason, "m")
        record = replace(w.running(), admission=None, finished="Failed", conditions=(w.ACCEPTED, failed))
        job = job_view.read(w.whole("gone", record))
        with pytest.raises(Failure) if refused else nullcontext():
            change.check_resumable(job, change.Source.LATEST)


def test_a_resume_that_waits_for_a_spec_that_can_be_carried_out_says_so() -> None:
    failed = w.condition(c.FAILED, True, "EndUnknown", "m")
    refused = w.condition(c.ACCEPTED, False, "PriorityTooHigh", "spec.priority: 5, at most 0")
    gone = replace(w.running(), admission=None, finished="Failed", conditions=(refused, failed))
    told = change.refusal(job_view.read(w.whole("gone", gone)))
    assert told.startswith("PriorityTooHigh: spec.priority: 5, at most 0\nevalstop why gone")
    assert change.refusal(of("healthy")) == ""


def test_a_guardrail_is_shown_with_its_direction_and_a_doubt_about_it() -> None:
    verdict = Verdict(Verb.CONTINUE, "NearBest", 0.0, 3.0)
    guard = Guard("toxicity", 120, Attempt(1, "9f2c41d0"), 0.1, "h", (), verdict=verdict)
    obj = w.whole("healthy", replace(w.running(), guards=(guard,)))
    obj["spec"]["metrics"].append({"name": "toxicity", "role": "Guardrail"})
    facts = dict(explanation.explain(job_view.read(obj), NOW).facts)
    assert facts["guardrail"].startswith("toxicity (higher is better): ")
    assert "higher counts as better of 'toxicity': is lower better" in facts["direction"]
    obj["spec"]["metrics"][-1]["direction"] = "Minimize"
    facts = dict(explanation.explain(job_view.read(obj), NOW).facts)
    assert facts["guardrail"].startswith("toxicity (lower is better): ")
    assert "direction" not in facts


def test_a_run_whose_pool_is_gone_is_not_told_to_name_another_one() -> None:
    """The API server refuses that while it holds GPUs."""
    gone = w.condition(c.ACCEPTED, False, "PoolNotFound", "spec.pool: there is no GPUPool 'a100'")
    for record, patched in ((w.running(), False), (w.refused(), True)):
        told = explanation.explain(of_record(replace(record, conditions=(gone,))), NOW)
        assert any("kubectl patch rlhfjob" in command for command, _ in told.next_steps) is patched
        assert any("make its GPUPool again" in f"{one}{two}" for one, two in told.next_steps) is not patched


def test_a_resident_whose_family_is_gone_is_not_told_to_name_another_one_at_once() -> None:
    """The API server refuses to change spec.sharing while it holds GPUs."""
    gone = w.condition(c.ACCEPTED, False, "FamilyNotFound", "spec.sharing.family: the pool has no 'a'")
    for record, edited in ((w.running(), "gpupool"), (w.refused(), "rlhfjob")):
        told = explanation.explain(of_record(replace(record, conditions=(gone,))), NOW)
        assert any(f"kubectl edit {edited}" in command for command, _ in told.next_steps)
        first = any("evalstop stop" in f"{one}{two}" for one, two in told.next_steps)
        assert first is (edited == "gpupool")


def of_record(record: JobRecord) -> job_view.Reading:
    return job_view.read(w.whole("healthy", record))


@pytest.mark.parametrize(
    ("reason", "held"), [("CalledOff", False), ("Resumed", False), ("HourlyLimit", True)]
)
def test_a_stop_that_its_user_took_back_is_not_held_back(reason: str, held: bool) -> None:
    """The line stayed for as long as the run went on."""
    back = w.condition(c.TERMINATION, False, reason, "the stop is taken back, the run goes on: m")
    record = replace(w.running(), conditions=(*w.running().conditions, back))
    told = dict(explanation.explain(of_record(record), NOW).facts).get("held back", "")
    assert bool(told) is held


def test_a_stop_that_its_user_asked_for() -> None:
    record = w.stopped()
    assert record.decision is not None
    job = job_view.read(w.whole("mine", replace(record, decision=replace(record.decision, by="User"))))
    told = explanation.explain(job, NOW)
    assert told.headline == "team/mine: Stopped, by its user (runState: Stopped), 10m ago"
    assert "decision" not in dict(told.facts), "a user's wish has no statistic"


def test_the_eval_that_may_yet_be_the_best_is_named_with_its_pin() -> None:
    record = w.running()
    assert record.best is not None
    higher = replace(record.best, step=130, score=0.9)
    job = job_view.read(w.whole("healthy", replace(record, awaiting=higher)))
    found = dict(explanation.explain(job, NOW).facts)["awaiting"]
    assert found == (
        "0.9 at step 130: is the best if later evals bear it out; its checkpoint is not pinned yet"
    )
    pin = w.kept(20, "/checkpoints/pin-20")
    lower = replace(record.best, step=20, score=0.1, attempt=pin.attempt)
    job = job_view.read(w.whole("healthy", replace(record, awaiting=lower, beside=pin)))
    found = dict(explanation.explain(job, NOW).facts)["awaiting"]
    assert "if later evals show that the one above is none" in found
    assert found.endswith("its checkpoint is pinned beside, at /checkpoints/pin-20")
    assert "awaiting" not in dict(explanation.explain(of("healthy"), NOW).facts)


def test_a_best_that_was_compared_with_nothing_is_told_everywhere_as_that() -> None:
    """Of a run whose evaluator was another one at each eval the newest eval was called the best."""
    highest = replace(w.kept(90, "/checkpoints/pin-90"), score=0.66)
    since = EvalBaseline(0.0, "1-9f2c41d0", 100, None, 9, short=ShortBaselines(9, 1, "v8", highest))
    told = w.condition(c.ABLE, False, "EvaluatorChanges", "the evaluator's version changes again and again")
    record = w.running((0.2,))
    record = replace(record, baseline=since, evaluator="v9", conditions=(*record.conditions, told))
    found = job_view.read(w.whole("healthy", record))
    assert found.record.baseline == since
    facts = explanation.explain(found, NOW).facts
    alone = "0.2 at step 20, compared with no other eval: all before were scored otherwise; still pinned of "
    assert dict(facts)["best"] == f"{alone}those: step 90 (0.66)"
    assert dict(facts)["before"] == "step 90, scored 0.66 then, still pinned at /checkpoints/pin-90"
    (mark,) = [text for label, text in facts if label in ("note", "trouble")]
    assert mark.startswith("Blind, EvaluatorChanges: the evaluator's version changes again and again")
    assert any("give the evaluator's version a constant" in what for _, what in found_steps(found))
    document = explanation.document(found, explanation.explain(found, NOW))
    assert document["bestIsAlone"]
    assert [one["step"] for one in document["before"]] == [90]
    assert any("compared with no other eval" in line for line in get.page(found, NOW, FREE))
    rows = jobs.table([w.whole("run", record)], jobs.fields(wide=False, everywhere=False), NOW, FREE)
    assert rows[1].split()[:7] == ["run", "Running", "EvaluatorChanges", "20", "0.2", "0.2", "(alone)"]
    assert change.from_before(found).endswith("evalstop resume healthy -n team --from step --step 90")
    assert "compared with no other" not in str(explanation.explain(of("healthy"), NOW).facts)
    assert change.from_before(of("healthy")) == ""


def found_steps(job: job_view.Reading) -> tuple[tuple[str, str], ...]:
    return explanation.explain(job, NOW).next_steps


@pytest.mark.parametrize("name", sorted(w.records()))
def test_every_state_says_what_can_be_done_next(name: str) -> None:
    steps = explanation.explain(of(name), NOW).next_steps
    assert steps
    assert all(command.strip() for command, _ in steps)


def test_a_status_that_cannot_be_read_is_told_and_not_raised() -> None:
    obj = w.whole("over", w.stopped())
    obj["status"]["decision"] = {"by": "kDeclines"}
    job = job_view.read(obj)
    assert "cannot read its status" in explanation.explain(job, NOW).headline
    assert any("cannot read" in line for line in get.page(job, NOW, FREE))


def test_scores_of_which_less_is_better() -> None:
    obj = w.whole("low", w.running((0.9, 0.5, 0.6)))
    obj["spec"]["metrics"] = [{"name": "loss", "direction": "Minimize"}]
    obj["status"]["best"] = {"step": 40, "score": "0.5"}
    facts = dict(explanation.explain(job_view.read(obj), NOW).facts)
    assert facts["newest"].endswith("0.1, 20 % worse than the best")


def test_the_page_of_one_job_shows_what_is_in_safety() -> None:
    job = job_view.read(w.whole("over", replace(w.stopped(), pinned=(w.kept(100, "/pins/100"),))))
    lines = get.page(job, NOW, FREE)
    kept = [line.split()[:2] for line in lines if line.startswith(("secured", "retained", "pinned"))]
    assert kept == [["secured", "160"], ["retained", "160"], ["pinned", "100"]]


def test_history_is_in_the_order_of_time_and_events_are_told_once() -> None:
    job = of("over")
    event = {
        "metadata": {"creationTimestamp": "2025-11-13T02:13:20Z"},
        "lastTimestamp": "2025-11-13T02:13:21Z",
        "count": 3,
        "reason": "Valid",
        "message": "the spec can be carried out",
    }
    told = history.timeline(job, [event])
    assert [e.at for e in told] == sorted(e.at for e in told)
    assert [e.times for e in told if e.reason == "Valid"] == [3]
    assert told[0].reason == "Created"


def test_history_tells_why_it_was_stopped_before_the_stop_and_each_stop_s_outcome() -> None:
    """Why stood where its condition had begun, two evals before; of a stop before nothing was told."""
    record = w.stopped()
    assert record.decision is not None
    since = record.decision.at - 120.0
    why = Condition("QualityDeclining", True, "FellBelow", "4.1 of 3.49 at step 200", since, 1)
    newest = record.evals[-1]
    was = StopOutcome(record.decision.at, Mode.ENFORCE, 200, Best(160, 0.7), former="borne out: 11 evals")
    was = replace(was, evals=3, seen_step=newest.step, seen_attempt=newest.attempt)
    record = replace(record, conditions=(*record.conditions, why), outcome=was)
    job = job_view.read(w.whole("over", record))
    told = history.timeline(job, [])
    reasons = [e.message if e.reason == history.STAGE else e.reason for e in told]
    assert reasons.index("FellBelow") < reasons.index("decided")
    assert told[reasons.index("FellBelow")].at > since
    assert ("EarlierStop", "borne out: 11 evals") in [(e.reason, e.message) for e in told]
    (outcome,) = (e for e in told if e.reason == "Open")
    assert outcome.at == record.eval_times[-1]
    assert outcome.message.startswith("open: 3 evals since the stop at step 200")
    assert ("stop before", "borne out: 11 evals") in explanation.explain(job, NOW).facts


def test_a_pool_on_one_page() -> None:
    pool = {**w.pool("a100"), "status": w.pool_status()}
    lines = pools.page(pool, NOW, FREE)
    assert "  stops     1 in the last hour of at most 5, 1 since 00:00 UTC" in lines
    assert lines[-1].split() == [
        "2025-11-13", "02:18:20Z", "team/over", "kDeclines", "2", "+1.2s", "+2.0s", "team/next", "+4.5s"
    ]  # fmt: skip


def test_a_pool_that_kueue_orders_is_not_said_to_queue_by_its_own_policy() -> None:
    spec = {**w.pool("a100")["spec"], "delegate": "Kueue", "kueue": {"localQueue": "research"}}
    kueue = {**w.pool("a100"), "spec": spec, "status": w.pool_status()}
    (heading, row) = jobs.table([kueue], pools.columns([kueue], wide=False), NOW, FREE)
    assert heading.split()[2:3] == ["POLICY"]
    assert row.split()[2:3] == ["Kueue"]
    lines = pools.page(kueue, NOW, FREE)
    assert "  policy    Kueue, by LocalQueue 'research' of each namespace" in lines
    none = {**kueue, "spec": {**w.pool("a100")["spec"], "delegate": "None"}}
    assert "  policy    None: none waits its turn" in pools.page(none, NOW, FREE)
    assert pools.ordered_by(w.pool("a100")) == "fifo"
    assert pools.ordered_by({"spec": {"delegate": "Newer", "queuePolicy": {"las": {}}}}) == "las"
    assert "1 waiting in Kueue" in top.heading([], [kueue], NOW, FREE)[1]


def test_runs_on_nodes_that_their_pool_does_not_count_are_named() -> None:
    pool = {**w.pool("a100"), "status": w.pool_status()}
    pool["spec"]["nodeSelector"] = [{"key": "pool", "value": "a100"}]
    run = job_view.read(w.whole("run", w.running()))

    def told(labels: dict[str, str], **spec: bool) -> str:
        return pools.elsewhere(
            pool, [run], [{"metadata": {"name": "node-1", "labels": labels}, "spec": spec}]
        )

    assert told({"pool": "a100"}) == ""
    assert told({"pool": "a100"}, unschedulable=True) == (
        "1 run on nodes that take none of its gangs: team/run on node-1 (cordoned)"
    )
    assert "team/run on node-1 (not of the pool)" in told({})
    planned = replace(run.record.admission, nodes=("node-1",), bound_nodes=("node-2",))
    run = replace(run, record=replace(run.record, admission=planned))
    assert told({}) == "", "it is not where it was planned"
    run = replace(run, record=replace(run.record, admission=replace(planned, bound_nodes=())))
    assert told({}) == (
        "1 run planned on nodes that take none of its gangs: team/run planned on node-1 (not of the pool)"
    )
    run = job_view.read(w.whole("run", w.running()))
    assert pools.elsewhere(pool, [run], []) == "", "nodes are not everybody's to list"
    assert any("elsewhere 1 run" in " ".join(x.split()) for x in pools.page(pool, NOW, FREE, "", told({})))


def test_the_queue_is_printed_as_its_page_shows(repository, capsys) -> None:
    def place(job: str, position: int, gpus: int, waited: float, level: int, attained: float) -> Any:
        rank = {"priority": 0, "queue": level, "attainedGPUSeconds": attained, "since": NOW - waited}
        return {
            "job": job, "position": position, "gpus": gpus, "waitedSeconds": waited, "overdue": False,
            "state": "Queued", "reason": "WaitingForGPUs", "message": "", "key": {**rank, "submitted": 5.0},
        }  # fmt: skip

    queue._show(
        [place("team/short-7", 1, 8, 130.0, 1, 0.0), place("team/long-3", 2, 16, 3840.0, 3, 412_000.0)]
    )
    page = (repository / "docs" / "operate" / "queueing.md").read_text()
    assert f"$ evalstop queue research\n{capsys.readouterr().out}2 waiting in pool research (las)" in page


def test_every_cure_is_for_a_reason_that_somebody_gives(repository) -> None:
    code = [
        p for p in (repository / "controller").rglob("*.py") if "cli" not in p.parts and p.name != "cures.py"
    ]
    told = "\n".join(path.read_text() for path in code)
    by_message = {key for _, _, key in BY_MESSAGE}
    assert [reason for reason in CURES.keys() - by_message if f'"{reason}"' not in told] == []


# -- screens ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [40, 60, 80, 200])
@pytest.mark.parametrize("unicode", [True, False])
def test_nothing_is_wider_than_the_screen(width: int, unicode: bool) -> None:
    screen = Terminal(width, unicode=unicode)
    lines = jobs.table(ALL, jobs.fields(wide=False, everywhere=True), NOW, screen)
    pool = {**w.pool("a100"), "status": w.pool_status()}
    lines += top.heading(ALL, [pool], NOW, screen)
    for name in ("over", "shadow", "refused"):
        told = explanation.explain(of(name), NOW)
        page = why.page(of(name), told, screen)
        lines += page[: page.index("What you can do")]  # commands are not cut: they are to be copied
        lines += get.page(of(name), NOW, screen)[len(list(get._facts(of(name), NOW))) + 1 :]
        lines += history.eval_table(of(name), screen) if of(name).record.evals else []
    assert [line for line in lines if length(line) > width] == []


def test_a_narrow_screen_keeps_name_and_state() -> None:
    lines = jobs.table(ALL, jobs.fields(wide=True, everywhere=False), NOW, Terminal(40))
    assert lines[0].split()[:2] == ["NAME", "STATE"]
    assert "Refused" in "\n".join(lines)


def test_no_colours_where_nobody_wants_them() -> None:
    class Screen(io.StringIO):
        encoding = "utf-8"

        def isatty(self) -> bool:
            return True

    assert terminal(Screen(), {"TERM": "xterm"}).colour
    assert not terminal(Screen(), {"TERM": "xterm", "NO_COLOR": "1"}).colour
    assert not terminal(Screen(), {"TERM": "dumb"}).colour
    assert not terminal(io.StringIO(), {"TERM": "xterm"}).colour
    assert terminal(io.StringIO(), {}).width is None, "what goes into a pipe is not cut"
    assert terminal(io.StringIO(), {"COLUMNS": "50"}).width == 50


def test_where_only_ascii_can_be_shown_nothing_else_is() -> None:
    ascii_stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    screen = terminal(ascii_stream, {})
    assert not screen.unicode
    page = why.page(of("shadow"), explanation.explain(of("shadow"), NOW), screen)
    drawn = page[page.index("gold_reward by step") : page.index("What was done")]
    assert all(line.isascii() for line in drawn)


def test_colours_do_not_change_the_words() -> None:
    plain = jobs.table(ALL, jobs.fields(wide=False, everywhere=True), NOW, FREE)
    painted = jobs.table(ALL, jobs.fields(wide=False, everywhere=True), NOW, Terminal(colour=True))
    assert [re.sub(r"\x1b\[\d+m", "", line) for line in painted] == plain
    assert painted != plain


def test_what_comes_from_a_cluster_moves_no_cursor() -> None:
    obj = w.whole("over", w.stopped())
    obj["status"]["decision"]["message"] = "bad\x1b[2J\nworse"
    page = why.page(job_view.read(obj), explanation.explain(job_view.read(obj), NOW), FREE)
    assert "\x1b" not in "\n".join(page)
    assert clean("a\tb\r\n") == "a b  "


def test_a_thousand_jobs_are_one_table_and_fit_on_one_screen_of_top() -> None:
    many = [w.whole(f"run-{i:04}", w.running()) for i in range(999)] + [w.whole("bad", w.refused())]
    assert len(jobs.table(many, jobs.fields(wide=True, everywhere=True), NOW, FREE)) == 1001
    view = top.View(None, None, "")  # type: ignore[arg-type]
    view.jobs = {f"team/{j['metadata']['name']}": j for j in many}
    lines = view.picture(NOW, Terminal(100), 24)
    assert len(lines) <= 24
    assert "bad" in lines[3], "what is refused comes first"
    assert lines[-1].startswith("and 9")
    view.pools = {f"/pool-{i:02}": w.pool(f"pool-{i:02}") for i in range(60)}
    lines = view.picture(NOW, Terminal(100), 24)
    assert len(lines) <= 24
    assert "and 52 more pools: evalstop pools" in lines
    assert any("bad" in line for line in lines)


@given(
    rows=st.lists(st.tuples(st.text(max_size=30), st.text(max_size=60)), min_size=1, max_size=6),
    width=st.integers(40, 100),
)
def test_tables_of_any_text(rows: list[tuple[str, str]], width: int) -> None:
    lines = render((Column("A", gives_way=1), Column("B", text=True)), rows, Terminal(width))
    assert len(lines) == len(rows) + 1
    assert all(length(line) <= width for line in lines)


# -- words --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (95, "95s"), (150, "2m30s"), (600, "10m"), (3600, "1h"), (5025, "1h23m"), (36000, "10h"),
     (86400 * 2 + 7200, "2d2h"), (86400 * 30, "30d")],
)  # fmt: skip
def test_spans(seconds: float, text: str) -> None:
    assert formatting.span(seconds) == text


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (401, "{}", Exit.FORBIDDEN),
        (403, "{}", Exit.FORBIDDEN),
        (404, "404 page not found", Exit.NOT_FOUND),
        (409, "{}", Exit.REFUSED),
        (422, "{}", Exit.REFUSED),
        (429, "{}", Exit.UNREACHABLE),
        (500, "{}", Exit.UNREACHABLE),
    ],
)
def test_every_answer_of_the_server_is_an_exit_code_and_says_what_is_next(
    status: int, body: str, code: Exit
) -> None:
    failure = of_api(from_response(status, body.encode(), {}), "list RLHFJobs")
    assert failure.code is code
    assert failure.next_step
    assert "list RLHFJobs" in failure.message


def test_certificates_that_are_not_valid_are_told_apart_from_a_server_that_is_down() -> None:
    error = ApiError(0, "ConnectionBroken", "GET /: ClientConnectorCertificateError: certificate has expired")
    failure = of_api(error, "list RLHFJobs")
    assert (failure.code, "a certificate is not valid" in failure.message) == (Exit.UNREACHABLE, True)
    assert "get a new kubeconfig" in failure.next_step


def test_http_to_a_server_that_speaks_https_is_told_as_that() -> None:
    body = b"Client sent an HTTP request to an HTTPS server.\n"  # of a real API server
    failure = of_api(from_response(400, body, {}), "list RLHFJobs")
    assert (failure.code, "speaks https" in failure.message) == (Exit.UNREACHABLE, True)
    assert "write https:// at the cluster's server:" in failure.next_step


def test_no_answer_at_all() -> None:
    assert of_api(ApiError(0, "Timeout", "no answer"), "x").code is Exit.UNREACHABLE


def test_exit_codes_are_as_documented(repository) -> None:
    table = (repository / "docs" / "use" / "cli.md").read_text()
    rows = dict(re.findall(r"^\| (\d+) \| `(\w+)`", table, flags=re.M))
    assert rows == {str(int(code)): code.name for code in Exit}
