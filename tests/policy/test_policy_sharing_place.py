"""Who gets a residency or a group, and what those who wait are told."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from controller.policy.sharing import (
    NEVER,
    NO_GROUP_FITS,
    SECOND,
    GroupSupply,
    Resident,
    SharingPlan,
    SharingSettings,
    WorkerGroup,
    fit_into,
    plan_placements,
)
from tests.policy.sharing_world import FAMILY, GB, group, profile, resident, supply

LIGHT, MIDDLE, HEAVY = profile("light", 90, 10), profile("middle", 75, 25), profile("heavy", 40, 60)
PACK, SPREAD = SharingSettings(placement="Pack"), SharingSettings()
ISOLATED = SharingSettings(placement="Isolated")
NOW = 1000 * SECOND


def plan(
    settings: SharingSettings, has: GroupSupply, *jobs: Resident, overdue: tuple[str, ...] = ()
) -> SharingPlan:
    return plan_placements(jobs, has, settings, NOW, overdue)


def where(found: SharingPlan) -> list[tuple[str, str, bool]]:
    return [(one.key, one.group, one.opens) for one in found.placed]


FULLER = group(resident("x", LIGHT), resident("y", LIGHT), name="wg-2")
EMPTIER = group(resident("z", LIGHT), name="wg-1")


@pytest.mark.parametrize(
    ("settings", "free", "expected"),
    [
        (PACK, 16, [("a", "wg-2", False)]),
        (SPREAD, 16, [("a", "wg-7", True)]),
        (SPREAD, 0, [("a", "wg-1", False)]),
        (ISOLATED, 16, [("a", "wg-7", True)]),
        (ISOLATED, 0, []),
    ],
)
def test_where_a_job_goes(
    settings: SharingSettings, free: int, expected: list[tuple[str, str, bool]]
) -> None:
    has = supply(EMPTIER, FULLER, free=free, next_number=7)
    assert where(plan(settings, has, resident("a", LIGHT))) == expected


def test_one_plan_opens_a_group_and_fills_it() -> None:
    jobs = [resident(name, LIGHT) for name in "abcd"]
    assert where(plan(PACK, supply(free=16), *jobs)) == [
        ("a", "wg-1", True), ("b", "wg-1", False), ("c", "wg-1", False),
    ]  # fmt: skip


def test_who_waits_is_told_the_duties() -> None:
    has = supply(group(resident("x", HEAVY)))
    found = plan(SPREAD, has, resident("a", HEAVY))
    assert found.placed == ()
    assert found.wait is not None
    assert (found.wait.key, found.wait.reason) == ("a", NO_GROUP_FITS)
    assert found.wait.message.startswith("duty 0.60 + 0.60 > 0.80 in wg-3; a new group needs 16 GPUs")


def test_a_message_names_three_groups_and_how_many_more() -> None:
    groups = [group(resident(f"x{n}", HEAVY), name=f"wg-{n}") for n in range(5)]
    found = plan(SPREAD, supply(*groups), resident("a", HEAVY))
    assert found.wait is not None
    assert found.wait.message.count("duty 0.60 + 0.60") == 3
    assert "2 groups more" in found.wait.message


@pytest.mark.parametrize(
    ("job", "has", "words"),
    [
        (resident("a", LIGHT, family="70b"), supply(), "there is no family '70b', only 7b"),
        (resident("a", LIGHT, state_bytes=60 * GB), supply(free=16), "host memory 60.0 + 60.0 > 100.0 GB"),
        (resident("a", LIGHT, private_gpus=8), supply(EMPTIER, private=4), "4 of 8 private GPUs are free"),
        (resident("a", LIGHT, private_gpus=8), supply(free=20), "16 GPUs and 8 private ones, 20 are free"),
    ],
)
def test_what_else_a_job_waits_for(job: Resident, has: GroupSupply, words: str) -> None:
    found = plan(SPREAD, has, job)
    assert found.placed == ()
    assert found.wait is not None
    assert words in found.wait.message


def test_residency_and_private_gpus_come_together_or_not_at_all() -> None:
    job = resident("a", LIGHT, private_gpus=8)
    assert where(plan(SPREAD, supply(EMPTIER, private=7), job)) == []
    assert where(plan(SPREAD, supply(EMPTIER, private=8), job)) == [("a", "wg-1", False)]
    both = [job, replace(job, key="b")]
    assert where(plan(SPREAD, supply(EMPTIER, free=15), *both)) == [("a", "wg-1", False)]


def test_gpus_of_a_group_without_residents_are_had() -> None:
    own = WorkerGroup("wg-1", "7b")
    assert where(plan(ISOLATED, supply(own), resident("a", LIGHT))) == [("a", "wg-1", False)]
    other = {"7b": FAMILY, "8b": replace(FAMILY, name="8b")}
    has = GroupSupply((WorkerGroup("wg-1", "8b"),), other, 0, None, 2)
    found = plan(SPREAD, has, resident("a", LIGHT))
    assert (found.closes, where(found)) == (("wg-1",), [("a", "wg-2", True)])


def busy(name: str, ends: int, *, of: str = "light", count: int = 1) -> WorkerGroup:
    """A group whose residents end after so many seconds; nobody fits beside heavy ones."""
    kind = HEAVY if of == "heavy" else LIGHT
    return group(*(resident(f"{name}-{n}", kind, ends=NOW + ends * SECOND) for n in range(count)), name=name)


def test_backfill_lets_pass_who_ends_before() -> None:
    has = GroupSupply((busy("wg-1", 100, of="heavy"),), {"7b": FAMILY}, 20, None, 2)
    head = resident("head", HEAVY, private_gpus=8, lasts=900 * SECOND)
    short = resident("short", LIGHT, lasts=90 * SECOND)
    long = resident("long", LIGHT, lasts=200 * SECOND)
    found = plan(ISOLATED, has, head, long, short)
    assert where(found) == [("short", "wg-2", True)]
    assert found.wait is not None
    assert found.wait.reservation is not None
    assert found.wait.reservation.at == NOW + 100 * SECOND
    assert where(plan(replace(ISOLATED, backfill=False), has, head, long, short)) == []


def test_backfill_lets_pass_who_takes_nothing_of_it() -> None:
    has = GroupSupply((busy("wg-1", 100, of="heavy"),), {"7b": FAMILY}, 28, None, 2)
    head = resident("head", HEAVY, private_gpus=28, max_slowdown_percent=0)  # all of the 44
    assert where(plan(ISOLATED, has, head, resident("long", LIGHT, lasts=900 * SECOND))) == []
    roomy = replace(has, free=38)  # 54: ten are left then
    small = resident("small", LIGHT, private_gpus=10, lasts=900 * SECOND)
    joins = GroupSupply((*roomy.groups, busy("wg-9", 5000)), roomy.families, 38, None, 10)
    found = plan(PACK, joins, head, small, replace(small, key="second"))
    assert where(found) == [("small", "wg-9", False)], "the ten are counted once"


def test_nobody_joins_a_group_that_is_waited_for_unless_in_time() -> None:
    has = supply(busy("wg-1", 100))
    head = resident("head", HEAVY, max_slowdown_percent=0)
    long, short = resident("long", LIGHT, lasts=200 * SECOND), resident("short", LIGHT, lasts=50 * SECOND)
    assert where(plan(SPREAD, has, head, long)) == []
    assert where(plan(SPREAD, has, head, short)) == [("short", "wg-1", False)]


def test_a_group_that_an_overdue_job_waits_for_takes_no_newcomer_at_all() -> None:
    has = supply(busy("wg-1", 100))
    head = resident("head", HEAVY, max_slowdown_percent=0)
    short = resident("short", LIGHT, lasts=50 * SECOND)
    assert where(plan(SPREAD, has, head, short, overdue=("head",))) == []
    assert where(plan(SPREAD, has, head, short, overdue=("short",))) == [("short", "wg-1", False)]


def test_a_reservation_may_be_a_residency() -> None:
    has = supply(busy("wg-1", 300, count=3), busy("wg-2", 100, count=3))
    found = plan(SPREAD, has, resident("head", LIGHT))
    assert found.wait is not None
    assert found.wait.reservation is not None
    assert (found.wait.reservation.groups, found.wait.reservation.at) == (
        frozenset({"wg-2"}), NOW + 100 * SECOND,
    )  # fmt: skip


def test_where_nobody_knows_ends_nobody_knows_when() -> None:
    has = supply(group(resident("x", HEAVY)))
    found = plan(SPREAD, has, resident("head", HEAVY), resident("b", LIGHT))
    assert found.wait is not None
    assert found.wait.reservation is not None
    assert found.wait.reservation.at == NEVER
    assert where(found) == []


def test_a_job_that_can_never_start_keeps_nothing_from_others() -> None:
    head = resident("head", LIGHT, state_bytes=60 * GB)
    found = plan(SPREAD, supply(EMPTIER), head, resident("b", LIGHT))
    assert where(found) == [("b", "wg-1", False)]
    assert found.wait is not None
    assert found.wait.reservation is None


@pytest.mark.parametrize("seed", range(60))
def test_no_plan_breaks_a_limit(seed: int) -> None:
    """Random pools: GPUs are had once, every group still fits, the order is kept without backfill."""
    draw = random.Random(seed)
    kinds = [LIGHT, MIDDLE, HEAVY, profile("new", steps=3), None]
    groups = []
    for n in range(draw.randrange(4)):
        groups.append(busy(f"wg-{n}", draw.randrange(1, 500), count=draw.randrange(3)))
    settings = SharingSettings(draw.choice(["Isolated", "Pack", "Spread"]), draw.random() < 0.5)
    private = draw.choice([None, 30])
    has = GroupSupply(tuple(groups), {"7b": FAMILY}, draw.randrange(70), private, 9)
    jobs = [
        resident(
            f"j{n}", draw.choice(kinds), private_gpus=draw.randrange(12), lasts=draw.randrange(800) * SECOND,
            namespace=draw.choice(["research", "research", "other"]),
        )
        for n in range(8)
    ]  # fmt: skip
    found = plan_placements(jobs, has, settings, NOW)
    assert found == plan_placements(jobs, has, settings, NOW), "it is a function"
    free, left, open_now = has.free, private, {one.name: one for one in groups}
    for name in found.closes:
        assert not open_now.pop(name).residents
        free += FAMILY.gpus
    by_key = {job.key: job for job in jobs}
    for placed in found.placed:
        job = by_key[placed.key]
        if placed.opens:
            free -= FAMILY.gpus
            assert placed.group not in open_now
            open_now[placed.group] = WorkerGroup(placed.group, "7b")
        before = open_now[placed.group]
        assert fit_into(job, before, FAMILY, settings).fits
        assert settings.placement != "Isolated" or not before.residents
        open_now[placed.group] = before.joined(job)
        if left is None:
            free -= job.private_gpus
        else:
            left -= job.private_gpus
    assert free >= 0
    assert left is None or left >= 0
    if not settings.backfill:
        assert [one.key for one in found.placed] == [job.key for job in jobs[: len(found.placed)]]
