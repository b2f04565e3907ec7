"""What kubectl's users expect: options before the command, `--version`, names that stay, order of time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from controller.api.crd import RESOURCES
from controller.cli import change, cluster, history, job_view, jobs
from controller.cli.failure import Exit, Failure
from controller.cli.main import app
from controller.cli.screen import wishes
from controller.cli.terminal import Terminal, length
from controller.kube.errors import ApiError
from controller.policy.job import JobRecord
from controller.policy.wording import places
from controller.web.dashboard.states import STATES
from tests.support import cli_world as w

NOW = w.START + 900.0


# -- before the command -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "namespace", "context"),
    [
        (["-n", "team", "list"], "team", ""),
        (["--namespace=team", "--context", "lab", "list"], "team", "lab"),
        (["-n", "team", "list", "-n", "other"], "other", ""),
        (["--context", "lab", "list", "--context", "home"], "", "home"),
        (["list"], "", ""),
    ],
)
def test_where_to_look_may_stand_before_the_command(
    arguments: list[str], namespace: str, context: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []
    monkeypatch.setattr(cluster, "run", lambda work, how, where: asked.append((where, how.context)))
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert asked == [(namespace, context)]


def test_version_is_an_option_too() -> None:
    runner = CliRunner()
    assert runner.invoke(app, ["--version"]).output == runner.invoke(app, ["version"]).output
    assert runner.invoke(app, ["--version"]).exit_code == 0


def test_a_wrong_word_is_told_in_plain_words() -> None:
    told = CliRunner().invoke(app, ["mode", "run", "enforced"], env={"COLUMNS": "200"})
    assert told.exit_code == 2
    assert (
        "'enforced' is not allowed, expected Enforce, Shadow or Off; did you mean 'Enforce'?" in told.stderr
    )
    assert "Value error" not in told.stderr


def test_a_word_in_another_case_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "run", lambda *_: None)
    assert CliRunner().invoke(app, ["mode", "run", "shadow"]).exit_code == 0
    told = CliRunner().invoke(app, ["why", "run", "-o", "jsno"], env={"COLUMNS": "200"})
    assert "'jsno' is not allowed, expected text, json or yaml; did you mean 'json'?" in told.stderr


# -- lists on 80 columns ------------------------------------------------------------------------------------


def long(name: str, namespace: str) -> dict[str, Any]:
    obj = w.whole("over", w.stopped(), namespace)
    obj["metadata"]["name"] = name
    return obj


def test_namespace_name_state_and_reason_stay_on_80_columns_and_names_differ() -> None:
    found = [
        long(f"sweep-of-forty-characters-or-so-{i:02d}", "a-namespace-" + "n" * 40 + str(i)) for i in (1, 2)
    ]
    head, *lines = jobs.table(found, jobs.fields(wide=False, everywhere=True), NOW, Terminal(80))
    assert head.split() == ["NAMESPACE", "NAME", "STATE", "REASON"]
    assert all(length(line) <= 80 for line in (head, *lines))
    cells = [line.split() for line in lines]
    assert all(cell[2] == "Stopped" for cell in cells)
    assert cells[0][0] != cells[1][0]
    assert cells[0][1] != cells[1][1]
    assert all("…" in cell[0] for cell in cells)


def test_wide_drops_nothing() -> None:
    chosen = jobs.fields(wide=True, everywhere=True)
    head, line = jobs.table([w.whole("over", w.stopped())], chosen, NOW, Terminal(80))
    assert head.split() == [field.column.title for field in chosen]
    assert line.endswith("/retained/team/over-abcde/1-9f2c41d0-160")


@pytest.mark.parametrize(
    ("text", "columns", "cut"),
    [("abcdefgh", 8, "abcdefgh"), ("abcdefgh", 7, "abc…fgh"), ("abcdefgh", 4, "ab…h"), ("abcdefgh", 1, "…")],
)
def test_a_name_is_cut_in_its_middle(text: str, columns: int, cut: str) -> None:
    assert Terminal().cut_middle(text, columns) == cut
    assert Terminal(unicode=False).cut_middle(text, columns) == cut.replace("…", "~")


def test_kubectl_shows_whether_a_pool_is_planned() -> None:
    pool = next(r for r in RESOURCES if r.kind == "GPUPool")
    assert pool.columns[0].name == "Ready"


# -- resume --step asks first -------------------------------------------------------------------------------


class Cluster:
    """An API server that has one RLHFJob and notes what is changed."""

    def __init__(self) -> None:
        self.changed: list[Any] = []

    async def merge_patch(self, resource: Any, name: str, body: Any, namespace: str, **_: Any) -> None:
        self.changed.append(body["spec"])

    async def get(self, *_: Any, **__: Any) -> Any:
        raise ApiError(403, "Forbidden", "who may change RLHFJobs may not read the operator's Lease")

    list = get  # nor any other


def resume(
    monkeypatch: pytest.MonkeyPatch,
    *,
    step: int | None = None,
    yes: bool = False,
    terminal: bool = False,
    answer: bool = False,
    record: JobRecord | None = None,
    **options: Any,
) -> tuple[Cluster, list[str]]:
    api, asked = Cluster(), []
    job = job_view.read(w.whole("over", record or w.stopped()))

    async def read(*_: Any) -> Any:
        return job

    def confirm(text: str) -> bool:
        asked.append(text)
        return answer

    monkeypatch.setattr(change, "read_job", read)
    monkeypatch.setattr(cluster, "run", lambda work, how, where: asyncio.run(work(api)))
    monkeypatch.setattr(change.sys, "stdin", SimpleNamespace(isatty=lambda: terminal))
    monkeypatch.setattr(change.typer, "confirm", confirm)
    function = change.resume.__wrapped__.__wrapped__  # without what makes a command of it
    function("over", step=step, request="again", yes=yes, **options)
    return api, asked


def test_a_step_that_is_in_safety_is_not_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    api, asked = resume(monkeypatch, step=160)
    assert api.changed[0]["resume"] == {"id": "again", "from": "Step", "step": 160, "forEvals": None}
    assert asked == []


def test_a_step_that_nobody_knows_of_is_refused_where_nobody_can_be_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(Failure) as failure:
        resume(monkeypatch, step=55)
    assert failure.value.code is Exit.REFUSED
    assert "no checkpoint of step 55 of team/over is known: in safety is step 160" in str(failure.value)
    api, asked = resume(monkeypatch, step=55, yes=True)
    assert len(api.changed) == 1
    assert asked == []


@pytest.mark.parametrize("answer", [True, False])
def test_on_a_terminal_it_is_asked(answer: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if answer:
        api, asked = resume(monkeypatch, step=55, terminal=True, answer=True)
        assert len(api.changed) == 1
        assert asked[0].endswith("Try it?")
    else:
        with pytest.raises(Failure, match="stays stopped"):
            resume(monkeypatch, step=55, terminal=True, answer=False)


@pytest.mark.parametrize(
    ("source", "again", "spared", "said"),
    [
        (change.Source.BEST, False, None, ""),
        (change.Source.LATEST, False, None, "the evals for which its rule stopped it are remembered there"),
        (change.Source.BEST, True, None, "its rule stopped it soon after an earlier resume too"),
        (change.Source.BEST, True, 8, ""),
        (change.Source.LATEST, False, 8, ""),
    ],
)
def test_where_its_rule_would_stop_it_again_the_way_past_it_is_offered(
    source: change.Source,
    again: bool,
    spared: int | None,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    record = w.stopped()
    record = replace(record, resume_id="earlier", evals=record.evals[-2:]) if again else record
    resume(monkeypatch, record=record, source=source, for_evals=spared)
    told = capsys.readouterr().err
    offered = f"evalstop resume over -n team --from {source.value} --for-evals 8"
    assert (offered in told) is bool(said)
    assert said in told


def test_the_key_for_it_offers_the_same() -> None:
    record = replace(w.stopped(), resume_id="earlier", evals=w.stopped().evals[-2:])
    for known, offered in ((w.stopped(), False), (record, True)):
        wish = wishes.resume(job_view.read(w.whole("over", known)))
        assert isinstance(wish, wishes.Wish)
        assert ("--for-evals 8" in wish.follows) is offered


# -- facts --------------------------------------------------------------------------------------------------


def event(reason: str, message: str, second: int) -> dict[str, Any]:
    when = f"2025-11-13T02:18:{second:02d}Z"
    return {
        "reason": reason,
        "message": message,
        "lastTimestamp": when,
        "metadata": {"creationTimestamp": when},
    }


def test_history_tells_each_thing_once_and_in_its_order() -> None:
    """Events come after the status that they tell of; on main they stood below later things, and twice."""
    job = job_view.read(w.whole("over", w.stopped()))
    decision = job.record.decision
    assert decision is not None
    kept = job.record.retained[0]
    events = [
        event(
            "Retained", f"checkpoint of step {kept.step} is at /retained/team/over-abcde/1-9f2c41d0-160", 23
        ),
        event("Queued", "waits", 59),
    ]
    told = history.timeline(job, events)
    assert [entry.at for entry in told] == sorted(entry.at for entry in told)
    pairs = [(entry.reason, entry.message) for entry in told]
    assert len(pairs) == len(set(pairs))
    stages = [entry.message for entry in told if entry.reason == "Stop"]
    assert stages[:2] == ["decided", "best checkpoint retained and verified"]
    assert len(stages) == 5


def test_one_event_and_its_condition_are_one_thing_at_the_conditions_time() -> None:
    job = job_view.read(w.whole("healthy", w.running()))
    since = job.condition("Running")
    assert since is not None
    late = event("Running", "all members are ready now", 0)
    late["lastTimestamp"] = "2025-11-13T02:13:23Z"  # 3 s after the status
    told = [entry for entry in history.timeline(job, [late]) if entry.reason == "Running"]
    assert [(entry.at, entry.message) for entry in told] == [(w.START + 2.0, "all members are ready now")]


def test_a_node_of_several_pods_is_named_once() -> None:
    assert places(("node-3", "node-3")) == "node-3 (2 pods)"
    assert places(("node-1", "node-3", "node-3")) == "node-1, node-3 (2 pods)"
    assert places(()) == ""


def test_a_stop_by_its_user_is_not_called_past_its_best() -> None:
    assert "past its best" not in STATES["Stopped"].meaning
