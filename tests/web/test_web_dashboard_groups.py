"""Worker groups on the dashboard, for viewers who may see all names, or some, or none."""

from __future__ import annotations

import urllib.error
import urllib.request
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest

from controller.policy.wording import ELSEWHERE
from controller.web.dashboard.access import Viewer
from controller.web.dashboard.groups import groups_of, lanes
from controller.web.dashboard.lanes import KINDS, lanes_svg
from controller.web.dashboard.queues import FoundGroups
from tests.support.dashboard_world import EVERYONE, KEY, running
from tests.support.group_scene import OBJECTS, SILENCE, live, operator, silent

OTHERS = Viewer("b", frozenset({"team-b"}), True)
TENANT = Viewer("a", frozenset({"team-a"}), False)
STRANGER = Viewer("c", frozenset({"team-b"}), False)


def fetch(base: str, path: str) -> str:
    request = urllib.request.Request(f"{base}/view{path}", headers={"Authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request, timeout=45) as answer:
        return str(answer.read().decode())


def status_of(base: str, path: str) -> int:
    try:
        fetch(base, path)
    except urllib.error.HTTPError as error:
        return error.code
    return 200


def test_pages_show_turns_waits_and_slow_downs() -> None:
    with operator() as way, running(OBJECTS, EVERYONE, way) as board:
        every, one = fetch(board.base, "/groups"), fetch(board.base, "/groups/wg-3")
        pool, job = fetch(board.base, "/pools/research"), fetch(board.base, "/jobs/team-a/math-b")
        pools = fetch(board.base, "/pools")
        assert status_of(board.base, "/groups/wg-9") == 404
    for page in (every, one):
        assert "team-a/math-a" in page
        assert "optim_step" in page
        assert "1.13 x (1.10)" in page
    assert "Turns in worker group wg-3 over time" in one
    assert "team-c/old" in one
    assert '<a href="/groups/wg-3">wg-3</a>' in pool
    for page in (pool, pools):
        assert "used 6, worker groups 8, reserved 0, others 0, free 2" in page
        assert ">used 6<" in page
        assert ">worker groups 8<" in page
    assert "1.13 times as long as alone, 1.10 is allowed" in job
    assert "longer for 4 steps" in job


def test_without_the_operator_all_but_turns_is_shown() -> None:
    with running(OBJECTS) as board:
        every, one = fetch(board.base, "/groups"), fetch(board.base, "/groups/wg-3")
    assert "Whose turn it is is not known here" in every
    assert "No turn is known" in one
    assert "1.13 x (1.10)" in one
    assert "gpu-2" in one


def test_a_group_that_does_not_answer_is_told_with_its_cure() -> None:
    with operator(silent()) as way, running(OBJECTS, EVERYONE, way) as board:
        every, one = fetch(board.base, "/groups"), fetch(board.base, "/groups/wg-3")
    assert "NoAnswer" in every
    assert "(as of " in every
    assert "silent since" in one
    assert "NoAnswer: GroupDoesNotAnswer: it has not answered since 07:55:00 UTC" in one
    assert "kubectl get pods -n evalstop-workers -l evalstop.dev/group=wg-3 -o wide" in one


def test_lanes_of_a_silent_group_end_with_what_is_not_known() -> None:
    group = silent()
    found = lanes(group, SILENCE.since + 47.0)
    assert found is not None
    assert group.reported == SILENCE.since - 5.0
    ends = [lane.bars[-1] for lane in found.lanes]
    assert [(bar.kind, bar.begin, bar.end) for bar in ends] == [
        ("does not answer", group.reported, SILENCE.since + 40.0)
    ] * 2
    late = lanes(group, SILENCE.since + 1e6)
    assert late is not None
    first = min(bar.begin for lane in late.lanes for bar in lane.bars)
    assert late.lanes[0].bars[-1].end - group.reported == group.reported - first, "turns stay to be seen"
    early = lanes(group, group.reported)
    assert early is not None
    assert all(bar.kind != "does not answer" for lane in early.lanes for bar in lane.bars)


def test_names_are_for_those_who_may_list_them() -> None:
    with operator() as way, running(OBJECTS, OTHERS, way) as board:
        for page in (fetch(board.base, "/groups"), fetch(board.base, "/groups/wg-3")):
            assert "math-" not in page
            assert "team-a" not in page
            assert "team-c" not in page
            assert ELSEWHERE in page
    with operator() as way, running(OBJECTS, TENANT, way) as board:
        page = fetch(board.base, "/groups/wg-3")
        assert "team-a/math-a" in page
        assert "team-c/old" not in page, "the overdue job is of another namespace"
    with operator() as way, running(OBJECTS, STRANGER, way) as board:
        assert "wg-3" not in fetch(board.base, "/groups")
        assert status_of(board.base, "/groups/wg-3") == 404


def test_who_may_not_list_groups_sees_those_of_the_jobs() -> None:
    with running(OBJECTS) as board:
        feed = board.feed
        assert feed.groups_known
        feed._group_watch = None
        (found,) = groups_of(feed, FoundGroups(problem="away"), TENANT)
    assert [who.job for who in found.group.residents] == ["team-a/math-a", "team-a/math-b"]
    assert found.group.members == ()


@pytest.mark.parametrize("narrow", [False, True])
def test_lanes_are_one_for_each_resident(narrow: bool) -> None:
    found = lanes(live())
    assert found is not None
    assert [lane.name for lane in found.lanes] == ["team-a/math-a", "team-a/math-b"]
    kinds = [[bar.kind for bar in lane.bars] for lane in found.lanes]
    assert kinds == [
        ["switches", "has the turn", "switches", "has the turn", "has the turn"],
        ["switches", "lost its turn", "switches", "has the turn"],
    ]
    bars = sorted((bar for lane in found.lanes for bar in lane.bars), key=lambda bar: bar.begin)
    assert all(one.end <= other.begin for one, other in pairwise(bars)), "one at a time"
    assert all(bar.kind in KINDS for bar in bars)
    text = " ".join(ET.fromstring(lanes_svg(found, "t", narrow)).itertext())
    assert all(word in text for word in ("team-a/math-b", "switches", "lost its turn"))
    assert lanes(live().model_copy(update={"recent": (), "turn": None})) is None
