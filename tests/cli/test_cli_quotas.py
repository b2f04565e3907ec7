"""Quotas as people see them in the terminal, from the pool's own plan on: `why`, `queue` and `pools`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.cli import explanation, job_view, pools, queue, why
from controller.cli.terminal import Terminal
from controller.operator.reconcile import pool_status
from controller.policy.job import conditions as c
from controller.policy.pool.plan import plan_pool
from controller.policy.types import JobState, JobView, NodeView, PolicySpec, PoolSnapshot, Quota
from controller.web import positions
from controller.web.positions import PlannedPool
from tests.support import cli_world as w

NOW = w.START + 900.0
FREE = Terminal(unicode=False)
QUOTAS = (Quota(("product",), 2), Quota(("lab-a", "lab-b"), 0, 2))


def waits(key: str, at: float) -> JobView:
    return JobView(key, at, 0, 1, 2, since=at)


def planned() -> PlannedPool:
    """Two nodes of two GPUs: one lent to nobody's namespace, the other all that the labs may have."""
    lent, own = (
        JobView(key, 0.0, 0, 1, 2, state=JobState.ADMITTED, nodes=(node,), bound=((node, 2),), since=w.START)
        for key, node in (("guest/lent", "n1"), ("lab-a/first", "n2"))
    )
    jobs = (
        lent,
        own,
        waits("guest/next", w.START),
        waits("lab-b/more", w.START),
        waits("product/own", NOW - 60),
    )
    nodes = (NodeView("n1", 2), NodeView("n2", 2))
    snapshot = PoolSnapshot("a100", PolicySpec("fifo"), nodes, jobs, quotas=QUOTAS)
    return PlannedPool(snapshot, plan_pool(snapshot, NOW), NOW)


def page(name: str, reason: str, message: str) -> str:
    told = w.condition(c.ADMITTED, False, reason, message)
    job = job_view.read(w.whole(name, replace(w.queued(), conditions=(w.ACCEPTED, told)), "product"))
    return "\n".join(why.page(job, explanation.explain(job, NOW), FREE))


def test_why_says_how_a_waiting_job_stands_with_its_quota() -> None:
    told = {one.key: one for one in planned().plan.waiting}
    own, more = told["product/own"], told["lab-b/more"]
    assert page("own", own.reason, own.message).startswith(
        "product/own: Queued (WaitingForGPUs: needs 1 x 2 GPUs at once; 0 are free, at most 0 on one node; "
        "it fits into the 2 GPUs guaranteed to namespace product (0 in use), so borrowed runs give way where "
        "that makes room)"
    )
    at_limit = page("more", more.reason, more.message)
    assert at_limit.startswith(
        "product/more: Queued (AtQuotaLimit: needs 1 x 2 GPUs; the pool's quota allows 2 at most to "
        "namespace lab-b and 1 more, of which 2 are in use)"
    )
    assert "evalstop pools a100    # its namespace has all that it may; see who has what" in at_limit


def test_queue_says_who_is_guaranteed_who_borrows_and_who_is_at_the_limit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = positions.queue(planned(), NOW, 9)
    queue._show([one.model_dump(by_alias=True) for one in told.items])
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [(row[0], row[1], row[4]) for row in rows] == [
        ("1", "product/own", "WaitingForGPUs"),
        ("2", "guest/next", "WaitingForGPUs"),
        ("-", "lab-b/more", "AtQuotaLimit"),
    ]
    for row, said in zip(rows, ("quota guaranteed", "quota borrows", "quota at limit"), strict=True):
        assert said in " ".join(row)


def test_a_pools_page_has_a_row_for_each_quota() -> None:
    found, pool = planned(), w.pool("a100")
    around = pool_status.Surroundings({}, [])
    status = pool_status.planned(pool, found.snapshot, found.plan, around, (), NOW)
    lines = pools.page({**pool, "status": status}, NOW, FREE)
    told = [line.split() for line in lines]
    at = told.index(["QUOTA", "OF", "GUARANTEED", "LIMIT", "USED", "BORROWED", "WAITING"])
    assert told[at + 1 : at + 3] == [
        ["product", "2", "-", "0", "0", "2"],
        ["lab-a,", "lab-b", "0", "2", "2", "2", "2"],
    ]
