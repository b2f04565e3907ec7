"""Linked pins: copied once the run goes back to their step or before it, and told as lost once changed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.policy.job.record import JobRecord, Operation
from controller.policy.job.types import AccessView, Page, RunState, StartAccess
from controller.policy.types import Attempt, EvalPoint
from tests.support.policy_world import Job, PolicyWorld

KEY = "ns/a"
PINS = (Operation.SECURE, Operation.PIN)


class Linking(PolicyWorld):
    """Pins are links, or what ``method`` says. ``changed``: paths that any Job at the location finds so."""

    pace = 5.0

    def __init__(self, method: str = "link") -> None:
        super().__init__({"n1": 8})
        self.method = method
        self.changed: tuple[str, ...] = ()
        self.fails = ""  # why copies of pins fail
        self.log: list[StartAccess] = []

    def _access(self, job: Job, ask: StartAccess) -> AccessView:
        self.log.append(ask)
        if ask.operation is not Operation.DETACH:
            view = super()._access(job, ask)
            looks = ask.operation in (*PINS, Operation.CLAIM)
            method = self.method if ask.operation in PINS else ""
            return replace(view, method=method, changed=self.changed if looks else ())
        source = ask.source
        assert source is not None
        reason = "DigestMismatch" if source.path in self.changed else self.fails
        if reason:
            return AccessView(ask.request_id, ask.operation, True, False, reason, f"{reason}: {source.path}")
        path, digest = f"{source.path}.c0ffee00", source.digest
        view = AccessView(
            ask.request_id, ask.operation, True, True, "", "", source.step, path, digest, digest, source.bytes
        )
        return replace(view, method="copy")

    def detached(self) -> list[int]:
        return [ask.step for ask in self.log if ask.operation is Operation.DETACH]

    def messages(self, reason: str) -> list[str]:
        return [event.message for event in self.events if event.reason == reason]


def pinned_best(method: str = "link", **wish: object) -> tuple[Linking, Job]:
    world = Linking(method)
    job = world.submit(KEY)
    world.settle()
    speak(world, job, "1", 0, (0.5, 0.9, 0.7))
    job.wish(**wish)
    assert job.record.secured is not None
    assert (job.record.secured.step, job.record.secured.method) == (20, method)
    return world, job


def speak(world: Linking, job: Job, life: str, resumed: int, scores: tuple[float, ...]) -> None:
    """Have a process show evals of every tenth step after the one that it resumed from."""
    attempt = Attempt(job.record.attempt, life)
    points = tuple(EvalPoint(resumed + 10 * n, s, attempt) for n, s in enumerate(scores, 1))
    saved = resumed + 10 * len(points)
    job.checkpoints |= {point.step for point in points}
    page = Page(job.desired.uid, attempt)
    seen = {"points": points, "checkpoint_step": saved, "page": page, "resumed_step": resumed}
    world.scrape(KEY, **seen)
    world.go_on(60.0)


@pytest.mark.parametrize(
    ("method", "resumed", "copied"),
    [
        ("link", 10, [20]),
        ("link", 20, [20]),
        ("link", 0, [20]),
        ("link", 30, []),
        ("clone+link", 10, [20]),
        ("clone", 10, []),
        ("copy", 10, []),
    ],
)
def test_a_linked_pin_from_the_step_on_that_the_run_went_back_to_is_copied_once(
    method: str, resumed: int, copied: list[int]
) -> None:
    world, job = pinned_best(method)
    assert world.detached() == [], "its own process goes on from behind it"
    speak(world, job, "2", resumed, ())
    world.go_on(600.0)
    assert world.detached() == copied
    kept = job.record.secured
    assert kept is not None
    assert (kept.step, kept.score) == (20, 0.9)
    assert (kept.path, kept.method) == (("/pins/20.c0ffee00", "copy") if copied else ("/pins/20", method))
    assert ("/pins/20" in job.record.to_release) == bool(copied), "the link goes with the next Job"


def test_the_next_pin_lets_the_link_go_and_the_copy_stays() -> None:
    world, job = pinned_best()
    speak(world, job, "2", 10, ())
    speak(world, job, "2", 10, (0.95,))
    assert job.record.secured is not None
    assert (job.record.secured.step, job.record.secured.score) == (20, 0.95)
    assert any("/pins/20" in ask.release for ask in world.log if ask.operation is Operation.SECURE) or (
        job.record.secured.path == "/pins/20"
    )


def test_what_a_user_pinned_is_copied_too_and_one_path_is_copied_for_all_that_it_is_kept_for() -> None:
    world, job = pinned_best(pins=(10, 20))
    world.go_on(120.0)
    assert {kept.step for kept in job.record.pinned} == {10, 20}
    speak(world, job, "2", 0, ())
    world.go_on(300.0)
    assert sorted(world.detached()) == [10, 20]
    assert {kept.path for kept in job.record.pinned} == {"/pins/10.c0ffee00", "/pins/20.c0ffee00"}
    assert job.record.secured is not None
    assert job.record.secured.path == "/pins/20.c0ffee00"


def test_a_pin_that_was_written_over_first_is_lost_at_once_and_both_scores_are_told() -> None:
    world, job = pinned_best()
    world.changed = ("/pins/20",)
    speak(world, job, "2", 10, ())
    world.go_on(60.0)
    assert [best.step for best in job.record.changed_bests] == [20]
    told = world.messages("BestCheckpointLost")
    assert len(told) == 1
    assert "step 20 (0.9), was changed after it had been pinned" in told[0]
    assert "is at step 10 (0.5)" in told[0]
    assert job.record.secured is not None
    assert job.record.secured.step == 10


@pytest.mark.parametrize("kept_for", ["best", "user"])
def test_any_job_at_the_location_tells_of_a_changed_pin(kept_for: str) -> None:
    world, job = pinned_best(pins=(10,))
    world.go_on(120.0)
    world.changed = ("/pins/20",) if kept_for == "best" else ("/pins/10",)
    before = len(world.log)
    speak(world, job, "1", 0, (0.5, 0.9, 0.7, 0.6))  # a second process would claim; here a user pins
    job.wish(pins=(10, 30))
    world.go_on(20.0)
    assert [ask.operation for ask in world.log[before:]][:1] == [Operation.PIN]
    assert all(ask.operation is not Operation.DETACH for ask in world.log), "nobody went back"
    if kept_for == "best":
        assert "step 20 (0.9), was changed" in world.messages("BestCheckpointLost")[0]
        assert job.record.secured is not None
        assert job.record.secured.step == 30, "0.7: the best of those that still have one"
    else:
        assert "step 10: /pins/10: its files were changed" in world.messages("DigestMismatch")[0]


def test_a_copy_that_fails_is_told_and_tried_again_and_holds_up_no_new_best() -> None:
    world, job = pinned_best()
    world.fails = "OutOfSpace"
    speak(world, job, "2", 10, ())
    assert len(world.detached()) > 1
    assert "the run went back, and may write over the pin of step 20" in world.messages("PinAtRisk")[0]
    assert job.record.secured is not None
    assert job.record.secured.path == "/pins/20", "it stays on record: nothing has changed it"
    speak(world, job, "2", 10, (0.4, 0.95))
    assert job.record.secured is not None
    assert (job.record.secured.step, job.record.secured.score) == (30, 0.95)
    assert job.record.access is None, "what is at risk no longer is asked for no more"


def test_a_stop_asks_for_no_copy_of_its_pins_beside_the_one_it_makes() -> None:
    world, job = pinned_best()
    world.fails = "OutOfSpace"
    speak(world, job, "2", 10, ())
    job.wish(run_state=RunState.STOPPED)
    before = len(world.detached())
    world.go_on(120.0)
    assert len(world.detached()) == before
    assert [kept.step for kept in job.record.retained] == [20]


def test_what_was_copied_for_a_stop_is_not_lost_when_its_pin_changes_afterwards() -> None:
    world, job = pinned_best(pins=(10,))
    world.go_on(120.0)
    job.wish(run_state=RunState.STOPPED)
    world.go_on(120.0)
    world.changed = ("/pins/20",)
    job.wish(run_state=RunState.STOPPED, pins=(10, 30))
    world.go_on(60.0)
    assert any(ask.operation is Operation.PIN and ask.step == 30 for ask in world.log)
    assert job.record.secured is not None
    assert job.record.secured.step == 20
    assert world.messages("BestCheckpointLost") == []


def test_every_state_on_the_way_goes_on_after_a_crash() -> None:
    """The operator dies after each write: the request on record is found again, and asked for once."""
    world, job = pinned_best()
    world.slow = frozenset({Operation.DETACH})
    speak(world, job, "2", 10, ())
    waited = job.record.access
    assert waited is not None
    assert waited.operation is Operation.DETACH
    assert [a for a in world.asked if a.startswith("detach")] == [waited.request_id]
    world.slow = frozenset()
    ask = world.asked[waited.request_id]
    done = world._access(job, ask)
    others = tuple(a for a in job.observed.access if a.request_id != waited.request_id)
    job.observed = replace(job.observed, access=(*others, done))
    record: JobRecord = job.record
    world.go_on(5.0)
    after = job.record.secured
    job.record = record  # its write was lost
    job.observed = replace(job.observed, access=(*others, done))
    world.go_on(5.0)
    assert after is not None
    assert job.record.secured == replace(after, at=job.record.secured.at if job.record.secured else 0.0)
