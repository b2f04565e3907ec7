"""`evalstop rollouts JOB`, and what `why`, `top` and `pools` say of rollout actors."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controller.cli import explanation, job_view, pools, rollouts, top
from controller.cli.jobs import table
from controller.cli.terminal import Terminal
from controller.policy.actor_types import Actor, ActorState
from controller.policy.job.record import JobRecord
from controller.policy.job.rollout_record import RolloutRecord, StepAside, StepMeasured, StepPlan, StepRow
from tests.support import cli_world as w

FREE = Terminal()
NOW = w.START + 900.0
PLAN = StepPlan(
    41, 3, "LongestFirst", "Planned", "3 actors: 12.6 s, 37 GPU-seconds; fastest 4 with 12.1 s", 12.6, 37.2
)
ROWS = (
    StepRow(
        39, NOW - 60.0, 12.9, 12.4, 21.5, 3, 3, 37.0, 36.1, 0, 0, 9.1, "LongestFirst", "Planned"
    ),
    StepRow(
        40, NOW - 38.0, 14.2, 12.6, 22.0, 4, 3, 45.3, 37.2, 3, 1, 0.0, "LongestFirst", "KeptCount"
    ),
)  # fmt: skip
ACTORS = (
    Actor(7, "node-1", 1, ActorState.RUNNING, NOW - 800.0, bound=NOW - 799.0),
    Actor(9, "node-2", 1, ActorState.RECALLED, NOW - 300.0, "team/next", NOW + 4.0, NOW - 298.0),
    Actor(11, "node-2", 1, ActorState.RUNNING, NOW - 100.0, bound=NOW - 99.0),
    Actor(12, "node-3", 1, ActorState.STARTING, NOW - 2.0),
)
SPEC: dict[str, Any] = {
    "gpusPerActor": 1,
    "actors": {"min": 2, "max": 4, "static": 3},
    "template": {"spec": {"containers": [{"name": "engine", "image": "engine:1"}]}},
}


def record(**change: Any) -> JobRecord:
    account = RolloutRecord(PLAN, held=3600.0, lent=540.0, failed=1, recent=ROWS)
    return replace(w.running(), actors=ACTORS, actor_starts=13, rollout=account, **change)


def whole(found: JobRecord, **spec: Any) -> dict[str, Any]:
    obj = w.whole("run", found)
    obj["spec"]["rollout"] = SPEC | spec
    return obj


def page(found: JobRecord, **spec: Any) -> list[str]:
    return rollouts.page(job_view.read(whole(found, **spec)), NOW, FREE)


def test_the_page(repository: Path) -> None:
    shown = page(record())
    text = (repository / "docs" / "use" / "rollouts.md").read_text()
    (block,) = re.findall(r"^```\n(\$ evalstop rollouts run\n.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert block.splitlines()[1:] == shown


def test_a_base_actor_that_was_let_go_is_a_right() -> None:
    lent = page(replace(record(), actors=ACTORS[:1]))
    assert lent[0] == (
        "team/run: Running, 1 rollout actor (2 to 4, mode Enforce), "
        "1 base actor let go, with a right of return"
    )
    shadow = page(replace(record(), actors=ACTORS[:1]), mode="Shadow")
    assert "2 base actors let go" in shadow[0], "static is 3"


def test_what_shadow_would_have_saved_and_who_was_put_aside_is_told() -> None:
    known = record().rollout
    assert known is not None
    assert known.measured is None or not known.measured.failures
    aside = StepMeasured(40, 14.2, failures="actor 7 faulty: it has weights 3, expected 4")
    shown = page(replace(record(), rollout=replace(known, saved=720.0, measured=aside)), mode="Shadow")
    assert "  saved   0.20 GPU-hours that carrying plans out would have saved (Shadow)" in shown
    assert "  aside   step 40: actor 7 faulty: it has weights 3, expected 4" in shown
    under_way = StepAside(41, 0.0, 1, "actor 8 lost: no token for 120 s")
    newer = replace(known, measured=aside, aside=under_way)
    assert "  aside   step 41: actor 8 lost: no token for 120 s" in page(replace(record(), rollout=newer))
    dearer = page(replace(record(), rollout=replace(known, saved=-360.0, starved=2)), mode="Shadow")
    assert "  saved    0.10 GPU-hours that carrying plans out would have cost more (Shadow)" in dearer
    assert "  starved  2 times in a row its trainer had no actor left and queued again" in dearer


def test_before_the_first_step() -> None:
    shown = page(replace(record(), rollout=None))
    assert "  steps  none has been announced yet" in shown
    assert not any(line.lstrip().startswith("STEP") for line in shown)


def test_a_status_that_cannot_be_read_is_told() -> None:
    obj = whole(record())
    obj["status"]["rollout"]["plan"]["step"] = "x"
    (line,) = rollouts.page(job_view.read(obj), NOW, FREE)
    assert "cannot read its status" in line


def test_the_document_has_planned_beside_measured() -> None:
    found = rollouts.document(job_view.read(whole(record())), NOW)
    assert json.loads(json.dumps(found)) == found
    assert [one["kind"] for one in found["actors"]] == ["base", "base", "spare", "leaves"]
    assert found["actors"][-1]["recalledFor"] == "team/next"
    assert found["rights"] == 0
    assert found["steps"][1]["seconds"] == {"planned": 12.6, "measured": 14.2, "whole": 22.0}
    assert found["steps"][1]["actors"] == {"planned": 3, "measured": 4}
    assert (found["steps"][1]["moved"], found["steps"][0]["lentGPUSeconds"]) == (3, 9.1)


@pytest.mark.parametrize("part", ["actors", "rollout", "summary"])
def test_a_change_of_what_is_shown_is_seen_and_no_other(part: str) -> None:
    obj, other = whole(record()), whole(record())
    other["status"]["printed"] = {"reason": "Other"}
    assert rollouts._shown(obj) == rollouts._shown(other)
    other["status"][part] = None
    assert rollouts._shown(obj) != rollouts._shown(other)


def test_why_has_a_sentence_about_actors() -> None:
    job = job_view.read(whole(record()))
    told = explanation.explain(job, NOW)
    assert dict(told.facts)["actors"] == (
        "2 Running, 1 Recalled, 1 Starting; step 40 took 14.2 s (12.6 planned) with 4 actors: KeptCount; "
        "1 ended or were put aside unasked"
    )
    assert "evalstop rollouts run -n team" in [command for command, _ in told.next_steps]
    plain = explanation.explain(job_view.read(w.whole("healthy", w.running())), NOW)
    assert "actors" not in dict(plain.facts)


def test_top_and_pools_show_actors_where_there_are_any() -> None:
    view = top.View(None, "team", "")  # type: ignore[arg-type]  # nothing is asked
    plain = w.whole("healthy", w.running())
    view.jobs = {"team/healthy": plain}
    assert not any("ACTORS" in line for line in view.picture(NOW, FREE, None))
    view.jobs["team/run"] = whole(record())
    pool = w.pool("a100") | {"status": w.pool_status() | {"actors": 3, "lent": 1}}
    view.pools = {"/a100": pool}
    lines = view.picture(NOW, FREE, None)
    assert "6 of 8 GPUs used, 3 for rollout actors, 1 lent, 2 running" in lines[1]
    rows = {line.split()[0]: line.split()[-1] for line in lines if line.startswith(("healthy", "run"))}
    assert rows == {"healthy": "-", "run": "4/3"}
    pool["status"] |= {"shared": 2}
    assert "3 for rollout actors, 1 lent, 2 of worker groups, 2 running" in view.picture(NOW, FREE, None)[1]
    head, row = table([pool], pools.FIELDS, NOW, FREE)
    named = dict(zip(head.split(), row.split(), strict=True))
    assert (named["GROUPS"], named["ACTORS"], named["LENT"]) == ("2", "3", "1")
    assert pools.GROUPS in pools.columns([pool], wide=False)
    assert pools.GROUPS not in pools.columns([w.pool("a100")], wide=False)
    assert "  shared    2 of 8 GPUs in worker groups: evalstop groups --pool a100" in pools.page(
        pool, NOW, FREE
    )


def test_top_counts_no_actor_whose_pod_waits_for_what_may_not_come() -> None:
    waits = replace(ACTORS[0], state=ActorState.STARTING, waits="ErrImageNeverPull")
    view = top.View(None, "team", "")  # type: ignore[arg-type]  # nothing is asked
    view.jobs = {"team/run": whole(replace(record(), actors=(waits, *ACTORS[1:])))}
    (line,) = [line for line in view.picture(NOW, FREE, None) if line.startswith("run")]
    assert line.split()[-1] == "3/3", "it was 4/3"
