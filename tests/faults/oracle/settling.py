"""S4 and S5, and what of S3 shows in the end: all comes to rest, and nothing is owed."""

from __future__ import annotations

from tests.faults.cluster import Job
from tests.faults.oracle.base import Violation
from tests.faults.oracle.safety import Safety

SETTLE, STILL = 400, 25  # rounds of 20 s until all has to be at rest, and for how many it has to be


class Settling(Safety):
    def settle(self) -> None:
        """Without new faults: everything comes to rest in a bounded number of passes, and nothing is owed."""
        world = self.world
        world.out_until = world.no_space_until = world.down_until = 0.0
        world.operator.fuse, world.operator.stale = None, 0
        world.pages.clear()
        world.next_access.clear()
        world.claims_out_until = min(
            world.claims_out_until, world.now
        )  # claims that failed are tried again later
        world.cluster.stuck.clear()
        for node in world.cluster.nodes.values():
            node.ready = True
        if world.pool is None:
            world.tick(4)
        for job in world.jobs.values():
            for access in job.access.values():
                access.ends = min(access.ends, world.now + 60.0)
                access.runs = min(access.runs, access.ends)
                if access.hangs:
                    access.hangs, access.ran, access.failed = False, True, "Killed"
        still, before = 0, None
        for _ in range(SETTLE):
            if still < 6:
                world.tick(4)
            else:
                world.tick(1, 20.0)
            now = self._state()
            still = still + 1 if now == before else 0
            before = now
            if still >= STILL:
                break
        else:
            raise Violation(f"S4 all: not at rest after {SETTLE * 20} s: {before}")
        self.settled = True
        for job in world.jobs.values():
            self.look(job)
            if not job.gone:
                self._user_acts(job)
        self._idle_gpus()

    def _state(self) -> list[object]:
        found: list[object] = []
        for job in self.world.jobs.values():
            record = self.world.operator.record(job.obj)
            d = record.decision
            found.append(
                (
                    job.gone,
                    record.attempt,
                    record.admission is not None,
                    d and (d.at, d.retained_at, d.suspended_at, d.pods_gone_at),
                    record.secured,
                    record.retained,
                    [k.step for k in record.pinned],
                    record.finished,
                    record.resume_id,
                    len(job.live_pods),
                    job.child,
                    len(job.lives),
                )
            )
        return found

    def _user_acts(self, job: Job) -> None:
        record = self.world.operator.record(job.obj)
        running = job.child is not None and not job.child.suspended and job.child.finished is None
        refused = (c := record.condition("Accepted")) is not None and not c.status
        if "deletionTimestamp" in job.obj["metadata"]:
            self.fail("S5", job, "deleted by its user, but it is still there")
        if job.spec("runState", "Run") == "Stopped" and (running or job.live_pods):
            self.fail("S5", job, "runState is Stopped, but it runs")
        resume, said = job.spec("resume"), record.condition("Resumed")
        # Asked to go on from a checkpoint that is not there it does not go on from another one, and says so.
        waits = resume and record.resume_id != resume["id"] and said is not None and not said.status
        if job.spec("runState", "Run") == "Run" and not job.trained and record.finished is None:
            d = record.decision
            if d is not None and d.by == "User" and not refused and not waits:
                self.fail("S5", job, "runState is Run, but its user's stop stands")
        asked = resume and record.resume_id != resume["id"] and job.spec("runState", "Run") == "Run"
        if asked and not refused and (said is None or said.status):
            self.fail("S5", job, f"resume {resume['id']}: neither carried out nor refused")
        d = record.decision
        copies = record.condition("BestCheckpointRetained")
        best = record.best
        # One that only waits may still be looked for: what counts as the best was copied all the same.
        copied = best and any(k.at >= d.at and k.stands_for(best) for k in record.retained) if d else False
        owed = d is not None and d.suspended_at is not None and d.deferred_at is not None and not copied
        if owed and d.retained_at is None and (copies is None or copies.status):
            self.fail("S5", job, "suspended before its best was copied, and nothing was copied since")
        wanted = job.spec("checkpoints.pins") or ()
        pinned = record.condition("CheckpointsPinned")
        if wanted and pinned is None and job.lives and not refused:
            self.fail("S5", job, f"pins {wanted}: nothing is said of them")
        touched = job.spec("mode", "Enforce") == self.world.cap == "Enforce"
        admits = touched and not refused and self.world.pool is not None
        if running and record.admission is None and record.finished is None and admits:
            self.fail("S3", job, "it runs, but nobody has admitted it")
        goes_on = self.case(job).asked_to_go_on and record.admission is None  # and waits for GPUs again
        if job.trained and record.finished is None and record.condition("Failed") is None and not goes_on:
            said = sorted((c.type, c.reason) for c in record.conditions if not c.status)
            if not any("End" in reason or "Lost" in reason or "Gone" in reason for _, reason in said):
                self.fail("S3", job, f"its training ended ({job.trained}), and nothing says so: {said}")

    def _idle_gpus(self) -> None:
        """Nobody waits for GPUs that are free, and none are kept for who is gone."""
        world = self.world
        if world.pool is None or not isinstance(world.operator._pool(), object):
            return
        if isinstance(world.operator._pool(), tuple):
            return
        free = {n.name: n.gpus - world.cluster.used(n.name) for n in world.cluster.nodes.values()}
        for job in world.jobs.values():
            if job.gone:
                continue
            record = world.operator.record(job.obj)
            said = record.condition("Admitted")
            accepted = record.condition("Accepted")
            if (
                record.admission is None
                and record.decision is None
                and record.finished is None
                and not job.trained
                and job.child is not None
                and job.spec("runState", "Run") == "Run"
                and accepted is not None
                and accepted.status
                and sum(max(0, f) // job.gpus for f in free.values()) >= job.replicas
                and (said is None or said.reason not in ("BackingOff",))
            ):
                self.fail("S3", job, f"GPUs are free ({free}), it waits: {said and said.reason}")
