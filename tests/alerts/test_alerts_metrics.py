"""What alerts and dashboards ask for is there; and metrics do not grow with the number of jobs."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from unused_registries import registries, unused

from controller.operator.process.job_gauges import STATES
from controller.operator.process.metrics import Metrics
from controller.policy.job import Mark
from controller.policy.job import conditions as c
from controller.policy.job.record import Condition, Decision, JobRecord, RuleRecord
from controller.policy.job.types import ScrapeOutcome
from controller.policy.types import Mode, Proposal, Verb, Verdict
from deploy.grafana import dashboards

NAME = re.compile(r"\b(evalstop_\w+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)\s*(=~|!~|=|!=)\s*"([^"]*)"')
NOW = 1_800_000_000.0


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Name of each sample that an operator or an extender can export -> its labels."""
    folder = tmp_path_factory.mktemp("extender")
    made = unused(folder)
    samples: dict[str, set[str]] = {}
    for collector in (one for registry in registries(made) for one in registry._collector_to_names):
        labels = set(collector._labelnames)
        (family,) = collector.describe()
        endings = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
        for ending in endings.get(family.type, ("",)):
            samples[family.name + ending] = labels | ({"le"} if ending == "_bucket" else set())
    return samples


def asked(alerts: Path) -> Iterator[tuple[str, str]]:
    """(where, PromQL) of everything that is shipped."""
    for group in yaml.safe_load(alerts.read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]
    for dashboard in dashboards.DASHBOARDS:
        for panel in dashboard.panels:
            for expression, _ in panel.queries:
                yield f"{dashboard.title}: {panel.title}", expression


def test_alerts_and_dashboards_ask_for_metrics_and_labels_that_there_are(
    alerts: Path, exported: dict[str, set[str]]
) -> None:
    values = {
        "mark": {str(mark) for mark in Mark},
        "state": set(STATES),
        ("evalstop_scrapes_total", "outcome"): {str(outcome) for outcome in ScrapeOutcome},
    }
    seen = 0
    for where, expression in asked(alerts):
        found = NAME.findall(expression)
        assert found, f"{where}: {expression}"
        for name, matchers in found:
            seen += 1
            assert name in exported, f"{where}: nobody exports {name}"
            for label, _, value in MATCHER.findall(matchers):
                assert label in exported[name], f"{where}: {name} has no label {label}, but {exported[name]}"
                known = values.get((name, label)) or values.get(label)
                if known is not None:
                    assert set(value.split("|")) <= known, f"{where}: {label}={value!r}, there are {known}"
    assert seen > 60


def test_every_metric_is_in_the_docs(exported: dict[str, set[str]], repository: Path) -> None:
    text = "".join(
        (repository / "docs" / page).read_text() for page in ("operate/operator.md", "operate/extender.md")
    )
    for name in exported:
        base = (
            re.sub(r"_(bucket|sum|count)$", "", name)
            if f"{name.rpartition('_')[0]}_sum" in exported
            else name
        )
        assert f"`{base}" in text, (
            f"docs/operate/operator.md and docs/operate/extender.md do not tell of {base}"
        )


def test_legends_and_groupings_name_labels_that_there_are(exported: dict[str, set[str]]) -> None:
    for dashboard in dashboards.DASHBOARDS:
        for panel in dashboard.panels:
            for expression, legend in panel.queries:
                parts = re.findall(r"by \(([^)]*)\)", expression)
                grouped = {label.strip() for part in parts for label in part.split(",")}
                of_metric = set().union(*(exported[name] for name, _ in NAME.findall(expression)))
                assert grouped <= of_metric | {"instance"}, f"{panel.title}: {grouped - of_metric}"
                named = set(re.findall(r"{{(\w+)}}", legend))
                assert named <= (grouped or of_metric) | {"instance"}, f"{panel.title}: {legend}"


def test_every_query_of_the_dashboards_is_promql(promtool: Path, tmp_path: Path) -> None:
    queries = [query for d in dashboards.DASHBOARDS for panel in d.panels for query, _ in panel.queries]
    parsable = [re.sub(r"\$__(rate_interval|range)", "5m", query) for query in queries]
    rules = [{"record": f"query:{i}", "expr": query} for i, query in enumerate(parsable)]
    path = tmp_path / "queries.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    done = subprocess.run([promtool, "check", "rules", path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules)} rules found" in done.stdout
    path.write_text(path.read_text().replace("sum(", "sum((", 1))
    assert subprocess.run([promtool, "check", "rules", path], capture_output=True, timeout=60).returncode != 0


def test_the_dashboards_files_are_what_the_tables_say_and_their_panels_lie_side_by_side() -> None:
    assert dashboards.stale() == []
    for dashboard in dashboards.DASHBOARDS:
        value = json.loads((dashboards.FOLDER / dashboard.file).read_text())
        assert (value["uid"], value["title"]) == (dashboard.uid, dashboard.title)
        assert len({panel["id"] for panel in value["panels"]}) == len(value["panels"])
        taken: set[tuple[int, int]] = set()
        for panel in value["panels"]:
            place = panel["gridPos"]
            cells = {(x + place["x"], y + place["y"]) for x in range(place["w"]) for y in range(place["h"])}
            assert not taken & cells, f"{panel['title']} lies over another panel"
            assert place["x"] + place["w"] <= 24
            taken |= cells


# -- how jobs become numbers --------------------------------------------------------------------------------


def condition(type_: str, status: bool, reason: str = "Because", since: float = NOW - 100) -> Condition:
    return Condition(type_, status, reason, "words of one job", since, 1)


PROPOSAL = Proposal("kDeclines", "ConsecutiveDeclines", 70, 40, 3.0, 3.0, "three declines")
STOPPED = Decision("kDeclines", Mode.ENFORCE, PROPOSAL, "three declines", NOW - 500)
RUNNING = JobRecord(conditions=(condition(c.RUNNING, True, since=NOW - 900),))
STOPPING = JobRecord(conditions=(condition(c.TERMINATION, True),), decision=STOPPED)


def blind(reason: str) -> JobRecord:
    rule = RuleRecord("scan", 1, "x", (), (), Verdict(Verb.CONTINUE, reason, 0.0, 1.0))
    return replace(RUNNING, rule=rule)


def values(metrics: Metrics, name: str) -> dict[str, float]:
    families = text_string_to_metric_families(metrics.text().decode())
    return {
        next(iter(sample.labels.values())): sample.value
        for family in families
        if family.name == name
        for sample in family.samples
    }


def test_states_and_marks_follow_the_jobs() -> None:
    metrics = Metrics(lambda: NOW)
    metrics.jobs.note("ns/a", STOPPING)
    metrics.jobs.note("ns/b", replace(STOPPING, decision=replace(STOPPED, at=NOW - 9000)))
    metrics.jobs.note("ns/c", RUNNING)
    assert {k: v for k, v in values(metrics, "evalstop_jobs").items() if v} == {"Stopping": 2, "Running": 1}
    # A stop that was decided 500 s ago is on its way: only the other one is warned of.
    assert values(metrics, "evalstop_unhealthy_jobs")["Stuck"] == 1
    assert values(metrics, "evalstop_unhealthy_job_seconds")["Stuck"] == 9000
    assert values(metrics, "evalstop_unhealthy_job_seconds")["Unwatched"] == 0
    metrics.jobs.note("ns/a", RUNNING)
    metrics.jobs.forget("ns/b")
    metrics.jobs.forget("ns/never")
    assert {k: v for k, v in values(metrics, "evalstop_jobs").items() if v} == {"Running": 2}
    assert values(metrics, "evalstop_unhealthy_job_seconds")["Stuck"] == 0


@pytest.mark.parametrize("mark", list(Mark))
@pytest.mark.parametrize("where", [c.RUNNING, c.ADMITTED, c.COMPLETED, c.TERMINATION, ""])
def test_each_state_that_a_mark_can_lead_to_is_counted_by_its_own_word(mark: Mark, where: str) -> None:
    metrics = Metrics(lambda: NOW)
    warned = condition(c.ATTENTION, True, str(mark))
    held = (condition(where, True),) if where else ()
    metrics.jobs.note("ns/a", JobRecord(conditions=(*held, warned)))
    counted = {state: count for state, count in values(metrics, "evalstop_jobs").items() if count}
    assert counted == {c.summary((*held, warned)): 1}


def test_metrics_do_not_grow_with_jobs() -> None:
    """A thousand jobs that say a thousand different things have as many series as twenty."""

    def series(jobs: int) -> tuple[set[str], str]:
        metrics = Metrics(lambda: NOW)
        for i in range(jobs):
            stop = replace(STOPPED, proposal=replace(PROPOSAL, step=i), message=f"secret-{i}")
            record = replace(blind("NoiseUnknown"), evals_seen=i + 1, decision=stop)
            for kept in (record, STOPPING, RUNNING, JobRecord()):
                metrics.jobs.note(f"team-{i}/job-{i}", kept)
                metrics.record_changed(JobRecord(), kept)
            metrics.call("patch-status", "rlhfjobs", "200")
        text = metrics.text().decode()
        return {line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")}, text

    few, _ = series(20)
    many, text = series(1000)
    assert many == few
    assert "team-" not in text
    assert "job-" not in text
    assert "secret-" not in text


def test_reasons_without_end_are_one() -> None:
    metrics = Metrics(lambda: NOW)
    for i in range(500):
        metrics.record_changed(JobRecord(), replace(blind(f"Reason{i}"), evals_seen=1))
    text = metrics.text().decode()
    lines = [line for line in text.splitlines() if line.startswith("evalstop_verdicts_total{")]
    assert len(lines) < 100
    assert any('reason="Other"' in line for line in lines)
