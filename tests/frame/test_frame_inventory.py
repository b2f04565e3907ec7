"""What others see is what they saw before the rooms were made, but for the rows of words.toml."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from tests.frame import inventory, words
from tests.frame.__main__ import RECORDED, main

OLD = {
    "metrics": {
        "evalstop_trouble_seconds": {"labels": ["kind", "trouble"]},
        "evalstop_passes": {"labels": ["kind"]},
    },
    "fields": {
        "RLHFJob.status.scale": {"type": "object"},
        "RLHFJob.status.scale.since[]": {"type": "string"},
        "RLHFJob.status.scaled": {"type": "string"},
    },
}


def _lines(new: dict, **rows: dict) -> list[str]:
    return inventory.differences(OLD, new, {"renamed": {}, "gone": {}, "added": {}, **rows})


def test_this_tree_shows_what_was_recorded_but_for_the_table() -> None:
    found = inventory.inventory()
    assert all(found.values()), "each section finds something"
    recorded = inventory.load(RECORDED)
    rows = words.with_added(words.load()["inventory"], inventory.rows_of_new_members(recorded))
    assert inventory.differences(recorded, found, rows) == []


def test_the_record_has_what_users_know() -> None:
    known = inventory.load(RECORDED)
    assert known["commands"]["evalstop why --namespace"]["other names"] == ["-n"]
    assert known["fields"]["RLHFJob.status.best.step"]["type"] == "integer"
    assert known["settings"]["EVALSTOP_EXTENDER_RELIST_SECONDS"]["default"] == "1800.0"
    assert known["metrics"]["evalstop_plan_seconds"] == {"labels": ["kind"]}
    assert known["client"]["EvalStopClient.report_eval"]["arguments"].startswith("self, metric: str")
    assert known["chart values"]["operator.replicas"]["default"] == 2
    assert {"GPUsReleased", "TerminationTarget"} <= known["conditions"].keys()
    assert "AccessStalled" in known["reasons"]
    assert "BreakerOpen" in known["events"]


def test_nothing_differs_from_itself() -> None:
    assert _lines(copy.deepcopy(OLD)) == []


def test_what_is_otherwise_on_purpose_needs_its_row() -> None:
    new = copy.deepcopy(OLD)
    new["fields"]["RLHFJob.status.scale.since[]"]["type"] = "integer"
    assert _lines(new) == ['fields: RLHFJob.status.scale.since[]: type: was "string", is "integer"']
    assert _lines(new, changed={"fields": {"RLHFJob.status.scale": "it counts now"}}) == []
    (idle,) = _lines(OLD, changed={"fields": {"RLHFJob.status.scale": "it counts now"}})
    assert "no such entry" in idle


def test_what_is_gone_new_or_otherwise_is_named() -> None:
    new = copy.deepcopy(OLD)
    del new["metrics"]["evalstop_trouble_seconds"]
    new["metrics"]["evalstop_passes"]["labels"] = ["kind", "pool"]
    new["fields"]["RLHFJob.status.epoch"] = {"type": "integer"}
    assert _lines(new) == [
        'fields: RLHFJob.status.epoch: new, {"type": "integer"}',
        'metrics: evalstop_trouble_seconds: gone, was {"labels": ["kind", "trouble"]}',
        'metrics: evalstop_passes: labels: was ["kind"], is ["kind", "pool"]',
    ]


def test_a_row_names_an_entry_and_what_is_part_of_it() -> None:
    new = {
        "metrics": {
            "evalstop_unhealthy_job_seconds": {"labels": ["kind", "reason"]},
            "evalstop_passes": {"labels": ["kind"]},
        },
        "fields": {
            "RLHFJob.status.baseline": {"type": "object"},
            "RLHFJob.status.baseline.since[]": {"type": "string"},
            "RLHFJob.status.scaled": {"type": "string"},
        },
    }
    renamed = {
        "metrics": {"evalstop_trouble_seconds": "evalstop_unhealthy_job_seconds", "trouble": "reason"},
        "fields": {"RLHFJob.status.scale": "RLHFJob.status.baseline"},
    }
    assert _lines(new, renamed=renamed) == []
    assert len(_lines(new)) == 6


def test_what_went_and_came_has_a_reason_and_a_row_of_nothing_is_named() -> None:
    new = copy.deepcopy(OLD)
    del new["fields"]["RLHFJob.status.scaled"]
    new["metrics"]["evalstop_leaders"] = {"labels": []}
    rows = {
        "gone": {"fields": {"RLHFJob.status.scaled": "nobody read it"}},
        "added": {"metrics": {"evalstop_leaders": "asked for in issue 16"}},
    }
    assert _lines(new, **rows) == []
    assert _lines(copy.deepcopy(OLD), **rows) == [
        "words: inventory.gone.fields: 'RLHFJob.status.scaled': no such entry",
        "words: inventory.added.metrics: 'evalstop_leaders': no such entry",
    ]


def test_the_command_compares_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "words.toml"
    table.write_text("")
    path = tmp_path / "changed.json"
    changed = inventory.load(RECORDED)
    del changed["commands"]["evalstop why --namespace"]
    path.write_text(inventory.dumps(changed))
    assert main(["compare", str(RECORDED), str(path), "--words", str(table)]) == 1
    assert "commands: evalstop why --namespace: gone" in capsys.readouterr().out
    assert main(["compare", str(RECORDED), str(RECORDED), "--words", str(table)]) == 0
    assert main(["compare", str(RECORDED), str(tmp_path / "none.json"), "--words", str(table)]) == 2
