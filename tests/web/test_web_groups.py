"""Worker groups as people see them: from objects, a report, or from residents' own jobs alone."""

from __future__ import annotations

import asyncio
import copy
import json
from typing import Any

import pytest

from controller.policy.job.record import Condition
from controller.web import queue_api
from controller.web.group_report import BYTES, checked, read_report
from controller.web.groups import Around, Group, LatestReport, group, groups_of_jobs
from tests.support import group_scene as scene

JOBS = scene.JOBS
AT = scene.START


REPORTED = LatestReport(checked(scene.report()), AT, "")


def seen(latest: LatestReport = REPORTED, obj: Any = None, **change: Any) -> Group:
    return group(obj or scene.group(scene.A, scene.B, **change), Around(JOBS.get, scene.POOL, latest))


def test_a_report_tells_whose_turn_it_is_and_who_waits() -> None:
    found = seen()
    assert (found.state, found.namespace, found.gpus, found.start) == ("Ready", "team-a", 8, 2)
    assert found.turn is not None
    assert (found.turn.job, found.turn.function, found.turn.seconds) == ("team-a/math-a", "optim_step", 12.0)
    assert [(wait.job, wait.seconds) for wait in found.waiting] == [("team-a/math-b", 9.0)]
    assert found.loaded == "team-a/math-a"
    assert (found.most_residents, found.host_bytes) == (3, 192 * scene.GIB)
    a, b = found.residents
    assert (a.duty, a.held_seconds, a.switch_seconds, a.step) == (0.4, 20.0, 3.0, 40)
    assert (a.charged_gpu_seconds, b.charged_gpu_seconds, found.vacant_gpu_seconds) == (5760.0, 5940.0, 360.0)
    assert (b.slowdown, b.max_slowdown, b.lost) == (1.13, 1.1, 1)
    assert [(m.node, m.connected) for m in found.members] == [("gpu-1", True), ("gpu-2", True)]


def test_past_turns_have_times_of_the_clock_on_the_wall() -> None:
    turns = seen().recent
    assert [(turn.job, turn.counted) for turn in turns] == [
        ("team-a/math-a", True), ("team-a/math-b", False), ("team-a/math-a", True), ("team-a/math-b", True),
    ]  # fmt: skip
    last = turns[-1]
    assert (last.began - AT, last.granted - AT, last.ended - AT) == (-37.0, -34.0, -14.0)


def test_charges_of_earlier_starts_count() -> None:
    obj = scene.group(scene.A, scene.B)
    obj["status"]["residents"][0]["chargedGPUSeconds"] = 40.0
    assert seen(obj=obj).residents[0].charged_gpu_seconds == 5800.0


def test_without_a_report_all_but_turns_is_known() -> None:
    found = seen(LatestReport(problem="it does not answer"))
    assert (found.turn, found.waiting, found.recent, found.reported) == (None, (), (), None)
    assert found.problem == "it does not answer"
    assert [(one.job, one.slowdown, one.turns) for one in found.residents] == [
        ("team-a/math-a", 1.04, None),
        ("team-a/math-b", 1.13, None),
    ]
    assert found.residents[0].charged_gpu_seconds == 5400.0  # as of its newest eval


@pytest.mark.parametrize(
    ("change", "state", "reason"),
    [
        ({"closing": "Empty", "closing_message": "nobody is there"}, "Closing", "Empty"),
        ({"conditions": (), "bound_at": None, "members": ()}, "Opening", ""),
        ({"conditions": (Condition("Ready", False, "MemberLost", "pod-b is gone", AT, 1),)}, "NotReady",
         "MemberLost"),
    ],
)  # fmt: skip
def test_states(change: dict[str, Any], state: str, reason: str) -> None:
    found = seen(**change)
    assert (found.state, found.reason) == (state, reason)


def test_a_figure_of_another_group_is_not_shown() -> None:
    elsewhere = copy.deepcopy(scene.A)
    elsewhere["status"]["residency"]["group"] = "wg-4"
    around = Around({**JOBS, "team-a/math-a": elsewhere}.get, scene.POOL)
    found = group(scene.group(scene.A, scene.B), around)
    assert [one.slowdown for one in found.residents] == [None, 1.13]


def test_residents_jobs_alone_tell_of_their_groups() -> None:
    plain = scene.waiting("team-a", "next", "duty 0.60 + 0.60 > 0.80 in wg-3")
    (found,) = groups_of_jobs([scene.A, plain, scene.B])
    assert (found.name, found.family, found.pool) == ("wg-3", "qwen-7b", "research")
    assert found.namespace == "team-a"
    assert [(one.job, one.slowdown) for one in found.residents] == [
        ("team-a/math-a", 1.04),
        ("team-a/math-b", 1.13),
    ]
    assert (found.turn, found.reported) == (None, None)


BAD = (
    ({"now": -1}, "now"),
    ({"now": "1"}, "now"),
    ({"ready": 1}, "ready"),
    ({"vacant": 1 << 128}, "vacant"),
    ({"now": 1 << 62}, "now"),
    ({"now": float("nan")}, "now"),
    ({"loaded": ""}, "loaded"),
    ({"recent": [["a", 1, 2, 3]]}, "recent.0.4"),
    ({"recent": [["a", 1, 2, 3, True]] * 61}, "recent"),
    ({"gone": ["x" * 129]}, "gone.0"),
    ({"waiting": [{"resident": "a"}]}, "waiting.0.since"),
    ({"turn": {"resident": "a"}}, "turn.sequence"),
    ({"members": None}, "members"),
)


@pytest.mark.parametrize(("change", "field"), BAD)
def test_a_report_that_is_none_is_refused_by_field(change: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=rf"^the group's report: {field}: .* is not allowed: "):
        read_report(json.dumps(scene.report(**change)).encode())


def test_a_report_is_read_within_bounds() -> None:
    body = json.dumps(scene.report()).encode()
    assert read_report(body) == checked(scene.report())
    months = scene.report(vacant=10**24)  # 1,000 GPUs charge 18 digits in two weeks
    assert read_report(json.dumps(months).encode()).vacant == 10**24
    with pytest.raises(ValueError, match="bytes, at most"):
        read_report(body + b" " * BYTES)
    with pytest.raises(ValueError, match="not JSON"):
        read_report(body[:-1])


def asked(base: str, path: str) -> Any:
    return asyncio.run(queue_api.ask(base, path, 30.0))


def test_the_queue_api_serves_groups() -> None:
    with scene.operator() as way:
        (one,) = asked(way.address, queue_api.group_path())["items"]
        assert asked(way.address, queue_api.group_path("wg-3")) == one
        with pytest.raises(queue_api.Refused) as missing:
            asked(way.address, queue_api.group_path("wg-9"))
        with pytest.raises(queue_api.Refused) as unread:
            asked(way.address, queue_api.group_path("wg-4"))
    assert Group.model_validate(one) == scene.live()
    assert one["residents"][0]["chargedGPUSeconds"] == 5760.0
    assert (missing.value.status, missing.value.reason) == (404, "GroupNotFound")
    assert str(missing.value) == "there is no WorkerGroup 'wg-9'; there are: wg-3, wg-4"
    assert (unread.value.status, unread.value.reason) == (409, "GroupNotReadable")
    assert "status.number" in str(unread.value)
