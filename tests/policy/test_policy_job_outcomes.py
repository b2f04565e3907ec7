"""What a pool's plan writes into its jobs' records: which writes, in which order, and which are left out."""

from __future__ import annotations

from dataclasses import dataclass, replace

from controller.policy.job import Condition, Decision, Desired, JobRecord
from controller.policy.job.record import AdmissionRecord
from controller.policy.pool import Verb, after, outcomes
from controller.policy.types import (
    Admission,
    Grant,
    HeldBack,
    Mode,
    PolicySpec,
    PoolPlan,
    Preemption,
    Proposal,
    Refusal,
    Waiting,
)

NOW = 1000.0
ASKED = Proposal(60, 30, "Declined", 3.0, 3.0)


@dataclass
class Job:
    record: JobRecord
    desired: Desired


def job(name: str, **record) -> Job:
    desired = Desired(f"ns/{name}", f"uid-{name}", 1, "reward", 1, 1, PolicySpec("scan"))
    return Job(JobRecord(**record), desired)


def written(plan: PoolPlan, jobs: dict[str, Job], **told) -> list[tuple[str, str]]:
    return [(write.key, str(write.verb)) for write in outcomes(plan, jobs, NOW, **told)]


def test_the_order_of_the_writes() -> None:
    stopped = job("stopped", decision=Decision("scan", Mode.ENFORCE, ASKED, "", 900.0, pods_gone_at=950.0))
    jobs = {
        f"ns/{n}": job(n)
        for n in ("grant", "preempt", "admit", "refuse", "lift", "hold", "policy_state", "wait")
    }
    jobs["ns/stopped"] = stopped
    plan = PoolPlan(
        waiting=(Waiting("ns/wait", 1, "Queued", "for 4 GPUs"), Waiting("ns/refuse", 2, "Queued", "told")),
        policy_states=(("ns/mark", (1,)), ("ns/admit", (2,)), ("ns/preempt", (3,))),
        held_back=(HeldBack("ns/hold", "NobodyWaits", "nobody"),),
        lifted=("ns/lift",),
        refusals=(Refusal("ns/refuse", "offer", "TooLarge", "8 of 4"),),
        admissions=(Admission("ns/admit", ("n0",), "ns/stopped"),),
        preemptions=(Preemption("ns/preempt", "ShorterJobWaits"),),
        grants=(Grant("ns/grant", ASKED),),
    )
    assert written(plan, jobs) == [
        ("ns/grant", "grant"),
        ("ns/preempt", "preemption"),
        ("ns/admit", "admission"),
        ("ns/refuse", "refusal"),
        ("ns/lift", "lifted-refusal"),
        ("ns/hold", "held-back"),
        ("ns/mark", "policy_state"),
        ("ns/stopped", "handover"),
        ("ns/wait", "waiting"),
    ]
    policy_states = {
        write.key: write.policy_state for write in outcomes(plan, jobs, NOW) if write.policy_state is not None
    }
    assert policy_states == {"ns/admit": (2,), "ns/preempt": (3,), "ns/mark": (1,)}


def test_a_handover_whose_note_a_crash_prevented_is_noted_later_and_once() -> None:
    stopped = job("a", decision=Decision("scan", Mode.ENFORCE, ASKED, "", 900.0, pods_gone_at=1100.0))
    runs = job("b", admission=AdmissionRecord(1, ("n0",), 950.0, "ns/a"))
    jobs = {"ns/a": stopped, "ns/b": runs, "ns/c": job("c", admission=AdmissionRecord(1, (), 1.0, "ns/gone"))}
    (write,) = outcomes(PoolPlan(), jobs, NOW)
    assert (write.key, write.verb, write.what) == ("ns/a", Verb.HANDOVER, "ns/b")
    stopped.record = after(write, stopped.record, stopped.desired, NOW)
    decision = stopped.record.decision
    assert decision is not None
    assert (decision.handed_to, decision.handed_at) == ("ns/b", 1100.0)
    assert written(PoolPlan(), jobs) == []


def test_what_is_known_is_not_written_again() -> None:
    why, held = Waiting("ns/a", 1, "Queued", "4 GPUs"), HeldBack("ns/a", "NobodyWaits", "nobody")
    waits = job("a")
    for plan in (PoolPlan(waiting=(why,)), PoolPlan(held_back=(held,))):
        (write,) = outcomes(plan, {"ns/a": waits}, NOW)
        waits.record = after(write, waits.record, waits.desired, NOW)
        assert written(plan, {"ns/a": waits}) == []


def test_new_numbers_in_an_old_reason_wait_a_new_reason_does_not() -> None:
    waits = job("a")
    waits.record = replace(
        waits.record, conditions=(Condition("Admitted", False, "Queued", "4 GPUs", 1.0, 1),)
    )
    numbers = PoolPlan(waiting=(Waiting("ns/a", 1, "Queued", "3 GPUs"),))
    reason = PoolPlan(waiting=(Waiting("ns/a", 1, "TooLarge", "3 GPUs"),))
    assert written(numbers, {"ns/a": waits}, just_written={"ns/a"}) == []
    assert written(numbers, {"ns/a": waits}) == [("ns/a", "waiting")]
    assert written(reason, {"ns/a": waits}, just_written={"ns/a"}) == [("ns/a", "waiting")]


def test_a_refusal_is_lifted_once() -> None:
    refused = job("a")
    (write,) = outcomes(
        PoolPlan(refusals=(Refusal("ns/a", "o", "TooLarge", "8", True),)), {"ns/a": refused}, NOW
    )
    refused.record = after(write, refused.record, refused.desired, NOW)
    assert refused.record.refusal is not None
    (write,) = outcomes(PoolPlan(lifted=("ns/a",)), {"ns/a": refused}, NOW)
    assert after(write, refused.record, refused.desired, NOW).refusal is None
