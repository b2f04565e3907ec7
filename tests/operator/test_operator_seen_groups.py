"""Worker groups for the queue API and for metrics, from the operator's cache and the newest reports."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from controller.api.convert import record
from controller.kube.cache import Cache
from controller.kube.resources import GPUPOOLS, RLHFJOBS, WORKERGROUPS
from controller.operator.reconcile.seen_groups import SeenGroups
from controller.operator.state.groups import Groups
from controller.policy.group_types import STAYS, ClosedGroup, GroupsPlan
from controller.policy.sharing import LOOK_AGAIN
from controller.web.group_report import checked
from controller.web.groups import Group
from tests.support import group_scene as scene


def nothing(*_: Any) -> None:
    pass


class World:
    """The scene in a cache, with a plan of the pool that closes ``wg-3`` for an overdue job."""

    def __init__(self) -> None:
        self.cache = Cache()
        self.touched: list[str] = []
        self.reports = Groups(self.cache, nothing, self.touched.append, nothing)
        for kind, obj in (
            (GPUPOOLS, scene.POOL), (RLHFJOBS, scene.A), (RLHFJOBS, scene.B),
            (WORKERGROUPS, scene.group(scene.A, scene.B, ready_at=scene.START - 2980.0)),
        ):  # fmt: skip
            self.cache.put(kind, obj)
        closed = GroupsPlan(closed=(ClosedGroup("wg-3", "team-c/old"),))
        planned = SimpleNamespace(plan=SimpleNamespace(sharing=closed))
        plans: Any = SimpleNamespace(planned=lambda pool: planned if pool == "research" else None)
        self.seen = SeenGroups(SimpleNamespace(cache=self.cache), plans, self.reports)  # type: ignore[arg-type]

    def group(self) -> Group:
        found = self.seen.group("wg-3")
        assert isinstance(found, Group)
        return found


def test_a_group_is_seen_with_its_newest_report() -> None:
    world = World()
    assert world.seen.names() == ["wg-3"]
    assert (world.group().reported, world.group().problem) == (None, "it has not reported yet")
    world.reports.failed("wg-3", "no answer within 5 s", scene.START)
    assert world.group().problem == "no answer within 5 s"
    world.reports.take("wg-3", 2, checked(scene.report()), scene.START)
    assert world.group() == scene.live()
    world.reports.failed("wg-3", "refused", scene.START)
    assert (world.group().reported, world.group().problem) == (scene.START, "refused")


def test_a_group_is_unanswered_from_the_first_question_to_the_next_report() -> None:
    world = World()
    assert world.group().unanswered is None
    first = [world.reports.failed("wg-3", "no answer", at) for at in (scene.START, scene.START + 5)]
    assert first == [True, False]  # the pool is told once
    assert world.group().unanswered == scene.START
    report = checked(scene.report())
    news = [world.reports.take("wg-3", 2, report, scene.START + at) for at in (9, 10)]
    assert news[0]
    assert world.group().unanswered is None


def test_a_silence_that_was_written_counts_until_this_process_has_a_report() -> None:
    world = World()
    silent = scene.group(
        scene.A, scene.B, ready_at=scene.START - 2980.0, conditions=(scene.SILENCE, scene.READY)
    )
    silent["metadata"]["resourceVersion"] = "2"
    world.cache.put(WORKERGROUPS, silent)
    assert (world.group().state, world.group().unanswered) == ("NoAnswer", scene.SILENCE.since)
    assert world.group().message == scene.SILENCE.message
    world.reports.failed("wg-3", "no answer", scene.START)
    assert world.group().unanswered == scene.SILENCE.since
    (found,) = world.seen.figures()
    assert (found.state, found.unanswered) == ("NoAnswer", scene.SILENCE.since)
    world.reports.take("wg-3", 2, checked(scene.report()), scene.START + 1)
    assert world.group().unanswered is None
    assert not world.reports.silent("wg-3", scene.START + 1e6)
    world.reports.failed("wg-3", "no answer", scene.START + 2)
    assert [world.reports.silent("wg-3", scene.START + at) for at in (31.9, 32.0)] == [False, True]


def test_jobs_are_planned_once_a_resident_has_been_too_slow_for_long_and_once_it_is_no_more() -> None:
    """By that somebody leaves; it was taken up with the next eval, hundreds of steps later or never."""
    world, cycle = World(), 100

    def take(released: int, waited: int) -> list[str]:
        told = scene.report()
        for one in told["residents"]:
            one["released"] = released
            one["turns"] = [[90, 10, step, waited] for step in range(released)][-8:]
        world.touched.clear()
        world.reports.take("wg-3", 2, checked(told), scene.START + released)
        return list(world.touched)

    assert take(0, 0) == ["team-a/math-a", "team-a/math-b"]
    steps = [released for released in range(1, STAYS + 3) if take(released, cycle)]
    # The first was under way, and the newest is; one had been slow for four steps before.
    assert steps == [STAYS - 2, STAYS + 2]
    assert [take(STAYS + 2 + more, cycle) for more in (1, 2)] == [[], []]
    better = [released for released in range(STAYS + 5, STAYS + 200) if take(released, 0)]
    assert len(better) == 1


def test_steps_of_a_start_before_count_only_where_this_process_saw_none_of_it() -> None:
    world = World()

    def above(number: int) -> int:
        obj = scene.group(scene.A, scene.B, number=number)
        obj["metadata"]["resourceVersion"] = str(number)
        world.cache.put(WORKERGROUPS, obj)
        world.reports.take("wg-3", number, checked(scene.report(admission=number)), scene.START)
        seen = world.reports.seen("team-a-math-b", record(scene.B["status"]))
        assert seen is not None
        return seen.slowness.above

    assert [above(2), above(3)] == [4, 0]


def test_a_report_of_an_earlier_start_says_nothing_of_this_one() -> None:
    world = World()
    world.reports.take("wg-3", 1, checked(scene.report(admission=1)), scene.START)
    assert (world.group().reported, world.group().turn) == (None, None)


def test_metrics_count_what_was_reported_of_the_present_start() -> None:
    world = World()
    (before,) = world.seen.figures()
    assert (before.state, before.reported, before.charged, before.released) == ("Ready", None, 0.0, 0)
    world.reports.take("wg-3", 2, checked(scene.report()), scene.START)
    (found,) = world.seen.figures()
    assert (found.residents, found.gpus, found.start, found.reported) == (("Joined",) * 2, 8, 2, scene.START)
    assert (found.released, found.lost, found.switches) == (80, 1, 78)
    assert (found.charged, found.vacant) == (5760.0 + 5940.0, 360.0)


def test_a_group_that_cannot_be_read_is_told_and_not_counted() -> None:
    world = World()
    broken = scene.group(scene.A, scene.B)
    broken["metadata"]["resourceVersion"] = "2"
    broken["status"]["number"] = "two"
    world.cache.put(WORKERGROUPS, broken)
    assert "number" in str(world.seen.group("wg-3"))
    assert world.seen.figures() == []
    assert world.seen.group("wg-9") == "it is gone"


def test_a_known_kind_is_measured_again_and_its_new_profile_counts() -> None:
    world = World()

    def take(held: int, at: float, residents: int = 1) -> bool:
        told = scene.report()
        for one in told["residents"]:
            one["turns"] = [[90, held, step, 0] for step in range(8)]
        told["residents"] = told["residents"][:residents]
        return world.reports.take("wg-3", 2, checked(told), at)

    def held() -> list[int]:
        (found,) = world.reports.profiles((), ["wg-3"])
        return [turn[1] for turn in found.turns]

    assert not take(10, 0.0, residents=2), "an unknown kind is measured alone"
    assert take(10, 1.0)
    assert not take(30, LOOK_AGAIN), "it was looked at a while ago only"
    assert held() == [10] * 6
    assert take(30, 1.0 + LOOK_AGAIN, residents=2)
    assert held() == [30] * 6
    assert not take(31, 2.0 + 2 * LOOK_AGAIN)
