"""A candidate's life in virtual time: taking over, renewing, losing, giving back, by a network that fails."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lease_world import Clocks, Fate, LeaseServer, Line, Replica

from controller.kube.errors import NotLeading, Refused
from controller.kube.lease import Timing
from tests.support import virtual_loop

TIMING = Timing(15, 10.0, 2.0)
TIMEOUT = 5.0


class LeaseWorld:
    def __init__(self) -> None:
        self.now = asyncio.get_running_loop().time
        self.server = LeaseServer(self.now)
        self.replicas: list[Replica] = []

    def start(
        self,
        name: str,
        clocks: Clocks | None = None,
        fate: Callable[[], tuple[float, Fate, float]] | None = None,
    ) -> Replica:
        line = Line(self.server, TIMEOUT, fate or (lambda: (0.01, "fine", 0.01)))
        replica = Replica(name, line, TIMING, clocks)
        self.replicas.append(replica)
        return replica

    async def until(self, check: Callable[[], bool], seconds: float = 600.0) -> float:
        """Wait; how long that took (s)."""
        began = self.now()
        while not check():
            assert self.now() - began < seconds, "it did not come true"
            await asyncio.sleep(0.01)
        return self.now() - began

    async def close(self) -> None:
        for replica in self.replicas:
            await replica.kill()


def story(main: Callable[[LeaseWorld], Awaitable[None]]) -> None:
    async def run() -> None:
        world = LeaseWorld()
        try:
            await main(world)
        finally:
            await world.close()

    virtual_loop.run(run())


def test_the_first_leads_at_once_and_the_second_waits() -> None:
    async def main(world: LeaseWorld) -> None:
        a = world.start("a")
        assert await world.until(lambda: a.leads) < 0.1
        b = world.start("b")
        await asyncio.sleep(600)
        assert (a.leads, b.leads) == (True, False)
        assert (a.leadership.epoch, a.leadership.role()) == (1, "leader: this process (a), term 1")
        assert b.leadership.role() == "standby: a holds Lease ns/lease"
        assert b.leadership.problem() is None, "a standby is ready"
        assert a.line.calls == pytest.approx(600 / TIMING.retry, rel=0.05), (
            "one write per period, and no more"
        )

    story(main)


def test_the_leader_is_killed() -> None:
    async def main(world: LeaseWorld) -> None:
        a = world.start("a")
        await world.until(lambda: a.leads)
        b = world.start("b")
        await asyncio.sleep(60)
        await a.kill()
        took = await world.until(lambda: b.leads)
        assert TIMING.duration - TIMING.retry - 0.1 < took < TIMING.duration + TIMING.retry
        assert b.leadership.epoch == 2

    story(main)


def test_the_leader_ends_and_gives_its_lease_back() -> None:
    async def main(world: LeaseWorld) -> None:
        a = world.start("a")
        await world.until(lambda: a.leads)
        b = world.start("b")
        await asyncio.sleep(60)
        await a.end()
        assert not a.leads
        with pytest.raises(NotLeading):
            a.leadership.check()
        assert await world.until(lambda: b.leads) < 1.3 * TIMING.retry
        assert b.leadership.epoch == 2

    story(main)


def test_a_leader_that_ends_in_the_middle_of_a_renewal_gives_its_lease_back_too() -> None:
    """The renewal takes effect, and its answer is never heard: the Lease is another version than was read."""

    async def main(world: LeaseWorld) -> None:
        fates: list[tuple[float, Fate, float]] = []
        a = world.start("a", fate=lambda: fates.pop(0) if fates else (0.01, "fine", 0.01))
        await world.until(lambda: a.leads)
        b = world.start("b")
        written = len(world.server.history)
        fates.append((0.01, "unanswered", 0.0))
        await world.until(lambda: len(world.server.history) > written)
        await a.end()
        assert await world.until(lambda: b.leads) < 1.3 * TIMING.retry

    story(main)


def test_what_another_has_taken_meanwhile_is_not_given_back() -> None:
    async def main(world: LeaseWorld) -> None:
        a = world.start("a")
        await world.until(lambda: a.leads)
        lease = world.server.get()
        spec = {"holderIdentity": "thief", "leaseTransitions": 9}
        world.server.patch({"spec": spec}, lease["metadata"]["resourceVersion"], "u1")
        await a.end()
        assert world.server.get()["spec"]["holderIdentity"] == "thief"

    story(main)


def test_a_container_that_starts_again_in_its_pod_goes_on_at_once_in_a_new_term() -> None:
    async def main(world: LeaseWorld) -> None:
        a = world.start("pod-a")
        await world.until(lambda: a.leads)
        await a.kill()
        again = world.start("pod-a")
        assert await world.until(lambda: again.leads) < 0.1
        assert again.leadership.epoch == 2

    story(main)


def test_a_leader_that_is_cut_off_stops_before_its_lease_is_taken() -> None:
    async def main(world: LeaseWorld) -> None:
        a = world.start("a")
        await world.until(lambda: a.leads)
        b = world.start("b")
        await asyncio.sleep(60)
        cut = world.now()
        a.line.fate = lambda: (0.0, "refused", 0.0)
        await world.until(lambda: not a.leads)
        stopped = world.now()
        assert stopped - cut <= TIMING.deadline
        await world.until(lambda: a.lost)
        await world.until(lambda: b.leads)
        assert world.now() - stopped > TIMING.duration - TIMING.deadline - TIMING.retry
        assert "was not renewed for 10 s: Lease ns/lease: ServiceUnavailable (503)" in str(a.task.exception())
        with pytest.raises(NotLeading, match="is not this process's any more: not renewed for"):
            a.leadership.check()

    story(main)


def test_a_lost_answer_and_a_strangers_edit_cost_nothing() -> None:
    async def main(world: LeaseWorld) -> None:
        fates: list[tuple[float, Fate, float]] = []
        a = world.start("a", fate=lambda: fates.pop(0) if fates else (0.01, "fine", 0.01))
        await world.until(lambda: a.leads)
        fates.append(
            (0.0, "unanswered", 0.0)
        )  # a renewal that took effect: its sender finds the version changed
        await asyncio.sleep(30)
        assert a.leads
        lease = world.server.get()
        world.server.patch({"metadata": {"labels": {"x": "y"}}}, lease["metadata"]["resourceVersion"], "u1")
        await asyncio.sleep(30)
        assert a.leads
        assert a.leadership.epoch == 1

    story(main)


@pytest.mark.parametrize("what", ["deleted", "taken"])
def test_a_lease_that_is_gone_or_anothers_ends_the_term_at_the_next_renewal(what: str) -> None:
    async def main(world: LeaseWorld) -> None:
        a = world.start("a")
        await world.until(lambda: a.leads)
        if what == "deleted":
            world.server.delete()
        else:
            lease = world.server.get()
            spec = {"holderIdentity": "thief", "leaseTransitions": 9}
            world.server.patch({"spec": spec}, lease["metadata"]["resourceVersion"], "u1")
        assert await world.until(lambda: a.lost) < TIMING.retry + 0.1
        assert not a.leads
        says = "is lost: it was deleted" if what == "deleted" else "is lost: thief has it"
        assert says in str(a.task.exception())

    story(main)


def test_the_server_says_that_a_later_term_has_begun() -> None:
    async def main(world: LeaseWorld) -> None:
        a = world.start("a")
        await world.until(lambda: a.leads)
        a.leadership.note_later_term("status.epoch: must be at least 7")
        assert not a.leads
        assert await world.until(lambda: a.lost) < 0.1
        assert "the API server refuses what this term (epoch 1) writes" in str(a.task.exception())

    story(main)


def test_numbers_rise_above_what_was_written_and_the_waiting_time_of_another_leader_passes() -> None:
    async def main(world: LeaseWorld) -> None:
        a = world.start("a")
        await world.until(lambda: a.leads)
        await a.leadership.rise_above(0)
        assert a.leadership.epoch == 1
        began = world.now()
        await a.leadership.rise_above(41)
        assert a.leadership.epoch == 42
        assert world.now() - began >= TIMING.duration
        assert world.server.get()["spec"]["leaseTransitions"] == 42
        assert a.leads
        await a.kill()
        b = world.start("b")
        await world.until(lambda: b.leads)
        assert b.leadership.epoch == 43

    story(main)


def test_a_renewal_that_waits_its_turn_does_not_bring_an_old_number_back() -> None:
    async def main(world: LeaseWorld) -> None:
        a = world.start("a", fate=lambda: (1.5 * TIMING.retry, "fine", 0.0))
        await world.until(lambda: a.leads)
        for above in (41, 57):  # whenever the renewal is due, it comes while the number is written
            await asyncio.sleep(TIMING.retry)
            await a.leadership.rise_above(above)
            assert a.leadership.epoch == above + 1
        numbers = [lease["spec"]["leaseTransitions"] for _, lease in world.server.history if lease]
        assert numbers == sorted(numbers)
        assert numbers[-1] == 58

    story(main)


def test_missing_rights_are_named_and_found_out_again() -> None:
    async def main(world: LeaseWorld) -> None:
        def refuse() -> tuple[float, Fate, float]:
            raise Refused(403, "Forbidden", 'leases.coordination.k8s.io "lease" is forbidden')

        a = world.start("a", fate=refuse)
        await asyncio.sleep(60)
        assert not a.task.done()
        problem = a.leadership.problem() or ""
        assert "no right to Lease ns/lease" in problem
        assert "apply Role evalstop-leader (get, create, patch)" in problem
        assert "EVALSTOP_LEADER_ELECT=false" in problem
        a.line.fate = lambda: (0.01, "fine", 0.01)
        assert await world.until(lambda: a.leads) < 3
        assert a.leadership.problem() is None

    story(main)


@given(st.integers(0, 2**32), st.floats(0.0, 0.5), st.floats(0.0, 8.0), st.booleans())
@settings(max_examples=60)
def test_never_two_lead_and_in_the_end_one_does(seed: int, faults: float, slow: float, die: bool) -> None:
    """Wall clocks are hours apart, others up to 5 % fast or slow; calls fail, hang, arrive late, lose their
    answers; processes die and new ones come. When the network is well again, somebody leads."""

    async def main(world: LeaseWorld) -> None:
        dice = random.Random(seed)
        trouble = [True]

        def fate() -> tuple[float, Fate, float]:
            if not trouble[0]:
                return (0.01, "fine", 0.01)
            bad: list[Fate] = ["refused", "unanswered", "late"]
            what: Fate = dice.choice(bad) if dice.random() < faults else "fine"
            return (dice.uniform(0, slow), what, dice.uniform(0, slow))

        def clocks() -> Clocks:
            return Clocks(dice.uniform(0.95, 1.05), dice.uniform(-1e6, 1e6), dice.uniform(-7200, 7200))

        def check() -> None:
            leading = [r for r in world.replicas if r.leads]
            assert len(leading) <= 1, [r.leadership.identity for r in leading]

        alive = [world.start(f"r{i}", clocks(), fate) for i in range(3)]
        for i in range(400):
            await asyncio.sleep(dice.uniform(0, 2))
            check()
            for j, replica in enumerate(alive):
                if replica.lost or (die and dice.random() < 0.01):
                    await replica.kill()
                    alive[j] = world.start(f"r{j}-{i}", clocks(), fate)
        trouble[0] = False
        healed = world.now()
        await world.until(lambda: any(r.leads for r in alive) or any(r.lost for r in alive), 60)
        while not any(r.leads for r in alive):
            alive = [world.start(f"{r.leadership.identity}'", clocks()) if r.lost else r for r in alive]
            await asyncio.sleep(1)
            check()
            assert world.now() - healed < 60
        terms = [lease["spec"]["leaseTransitions"] for _, lease in world.server.history if lease is not None]
        assert terms == sorted(terms)

    story(main)
