"""Every alert that is shipped fires when it should, keeps silent when it should, and has its page."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from alert_cases import CASES, HOUR, Case, Series, calls, lag, marked, requests

from deploy.local.prometheus import acquire

STEP = "30s"


def rules(alerts: Path) -> dict[str, dict[str, Any]]:
    found = yaml.safe_load(alerts.read_text())
    return {rule["alert"]: rule for group in found["groups"] for rule in group["rules"]}


def books(series: Series, checks: list[dict[str, Any]]) -> dict[str, Any]:
    given = [{"series": name, "values": values} for name, values in series.items()]
    return {"interval": STEP, "input_series": given, "alert_rule_test": checks}


def write(folder: Path, name: str, alerts: Path, tests: list[dict[str, Any]], only: str = "") -> Path:
    """A file for promtool. ``only``: of one rule, or every test would evaluate them all at every moment."""
    rule_file = alerts
    if only:
        rule_file = folder / f"{name}.rules.yaml"
        group = {"name": "one", "rules": [rules(alerts)[only]]}
        rule_file.write_text(yaml.safe_dump({"groups": [group]}))
    path = folder / f"{name}.yaml"
    content = {"rule_files": [str(rule_file)], "evaluation_interval": STEP, "tests": tests}
    path.write_text(yaml.safe_dump(content))
    return path


def run(promtool: Path, *files: Path) -> None:
    done = subprocess.run([promtool, "test", "rules", *files], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr


def firing(case: Case, rule: dict[str, Any]) -> dict[str, Any]:
    annotations = {**rule["annotations"], "summary": case.summary}
    said = {"exp_labels": {**rule["labels"], **case.labels}, "exp_annotations": annotations}
    return {"eval_time": case.at, "alertname": case.alert, "exp_alerts": [said]}


def test_every_alert_has_its_case(alerts: Path) -> None:
    assert [case.alert for case in CASES] == list(rules(alerts))


def test_every_alert_fires_and_keeps_silent(promtool: Path, alerts: Path, tmp_path: Path) -> None:
    shipped = rules(alerts)
    files = []
    for case in CASES:
        most = {"EvalStopNoiseUnknown": 400, "EvalStopNoLeader": 10}.get(case.alert, 75)
        times = [f"{minutes}m" for minutes in (1, 5, 10, 20, 30, 45, 60, 75, 400) if minutes <= most]
        quiet = [{"eval_time": at, "alertname": case.alert, "exp_alerts": []} for at in times]
        tests = [books(case.fires, [firing(case, shipped[case.alert])]), books(case.silent, quiet)]
        files.append(write(tmp_path, case.alert, alerts, tests, only=case.alert))
    run(promtool, *files)


def test_the_checker_is_not_blind(promtool: Path, alerts: Path, tmp_path: Path) -> None:
    """A case turned round must fail, or the test above would prove nothing."""
    case = CASES[8]
    nothing = {"eval_time": case.at, "alertname": case.alert, "exp_alerts": []}
    said = firing(case, rules(alerts)[case.alert])
    for name, test in (("silent", books(case.silent, [said])), ("loud", books(case.fires, [nothing]))):
        path = write(tmp_path, name, alerts, [test], only=case.alert)
        with pytest.raises(AssertionError, match=case.alert):
            run(promtool, path)


def test_a_healthy_installation_fires_nothing(promtool: Path, alerts: Path, tmp_path: Path) -> None:
    """Two replicas, two extenders, some trouble that passes, one failover: for three hours."""
    hours = 3 * HOUR
    series: Series = {
        'evalstop_leader{instance="a"}': f"1x200 0x{hours}",
        'evalstop_leader{instance="b"}': f"0x202 1x{hours}",
        'evalstop_leader_epoch{instance="a"}': f"1x{hours}",
        'evalstop_leader_epoch{instance="b"}': f"_x202 2x{hours}",
        'evalstop_passes_total{kind="job",result="wrote"}': f"0+3x{hours}",
        'evalstop_unreadable_jobs{instance="a"}': f"0x{hours}",
        'evalstop_clock_skew_seconds{instance="a"}': f"0.4x{hours}",
        'evalstop_clock_skew_seconds{instance="b"}': f"-0.8x{hours}",
        "evalstop_decision_log_dropped_total": f"0x{hours}",
        'evalstop_scrapes_total{outcome="Ok"}': f"0+100x{hours}",
        'evalstop_scrapes_total{outcome="Timeout"}': f"0+1x{hours}",
        'evalstop_scrape_lag_seconds{instance="a"}': f"0.2x{hours}",
        'evalstop_unhealthy_jobs{mark="WouldStop"}': f"2x{2 * HOUR} 0x{HOUR}",
        'evalstop_circuit_breaker_open{instance="a"}': f"0x{hours}",
        'evalstop_stops_held_back_total{reason="HourlyLimit"}': f"0x100 1x{hours}",
        "evalstop_gang_timeouts_total": f"0x50 1x{hours}",
        'evalstop_pools_with_scheduler{instance="a"}': f"1x{hours}",
        'evalstop_extender_ready{instance="x"}': f"1x{hours}",
        'evalstop_extender_ready{instance="y"}': f"1x50 0x4 1x{hours}",
        'evalstop_extender_ignorable{instance="x"}': f"0x{hours}",
        'evalstop_extender_certificate_expiry_timestamp_seconds{certificate="serving"}': f"3e7x{hours}",
        'evalstop_extender_request_seconds_bucket{verb="filter",le="0.001"}': f"0+9x{hours}",
        'evalstop_extender_request_seconds_bucket{verb="filter",le="+Inf"}': f"0+9x{hours}",
    }
    series |= lag(slow=f"0+60x{hours}", fast=f"0+60x{hours}")
    series |= calls("patch-status", "200", f"0+30x{hours}") | calls("patch-status", "409", f"0+1x{hours}")
    series |= calls("get", "503", "0+1x10 10x8000") | requests("200", f"0+9x{hours}")
    for mark, most in (("Unwatched", 8), ("Unsafe", 5), ("Stuck", 8), ("Blind", 3)):
        series |= marked(mark, " ".join([f"1800+30x{most} 0x50"] * 4) + f" 0x{hours}")
    minutes = (1, 10, 60, 101, 103, 120, 170)
    checks = [
        {"eval_time": f"{minute}m", "alertname": name, "exp_alerts": []}
        for name in rules(alerts)
        for minute in minutes
    ]
    run(promtool, write(tmp_path, "healthy", alerts, [books(series, checks)]))


def test_promtool_finds_nothing_wrong_with_the_file(promtool: Path, alerts: Path) -> None:
    done = subprocess.run([promtool, "check", "rules", alerts], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"SUCCESS: {len(CASES)} rules found" in done.stdout


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.alert)
def test_every_alert_says_how_bad_it_is_and_where_to_read_on(
    case: Case, alerts: Path, repository: Path
) -> None:
    rule = rules(alerts)[case.alert]
    assert set(rule["labels"]) == {"severity"}
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    assert rule["annotations"]["runbook"] == f"docs/operate/alerts.md#{case.alert.lower()}"
    page = (repository / "docs" / "operate" / "alerts.md").read_text()
    entry = re.search(rf"^## {case.alert}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert entry is not None, f"docs/operate/alerts.md has no entry {case.alert}"
    assert len(entry[1].split()) > 30, "what it means, how to find out more, what mends it"
    assert "`" in entry[1], "a runbook names commands or fields"


def test_the_page_has_no_entry_without_an_alert(alerts: Path, repository: Path) -> None:
    page = (repository / "docs" / "operate" / "alerts.md").read_text()
    assert re.findall(r"^## (EvalStop\w+)$", page, re.MULTILINE) == list(rules(alerts))


def test_what_was_tried_is_told_where_no_way_leads_to_prometheus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("EVALSTOP_PROMETHEUS", str(tmp_path / "nowhere"))
    with pytest.raises(acquire.ToolsMissing) as told:
        acquire.obtain(cache=tmp_path)
    message = str(told.value)
    for part in (
        "EVALSTOP_PROMETHEUS=",
        "no folder with both programs",
        "cache ",
        "no apt-get",
        "PATH: no",
    ):
        assert part in message
