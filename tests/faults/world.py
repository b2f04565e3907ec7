"""One small world: trainers and an operator that share a pool, a disk and a clock.

Acts change it (acts.py), ticks let it go on, and the oracle watches what comes of it (oracle.py).
"""

from __future__ import annotations

import errno
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from controller.policy.job.record import JobRecord, Operation
from controller.policy.job.types import AccessView, Event, ScrapeOutcome, ScrapeView, StartAccess
from controller.policy.stopping.noise import ROBUST_MOST, robust
from controller.policy.types import Admission
from tests.faults import product
from tests.faults.cluster import Access, Cluster, Job, Json
from tests.faults.disk import Disk, Killed
from tests.faults.oracle import Oracle
from tests.faults.shell import Crash, Operator, Thought
from tests.faults.situations import SITUATIONS
from tests.faults.trainer import Eval, Files, Life, Saved, fingerprint, read

TICK = 5.0  # s
SCRAPE = 15.0  # s between scrapes
YOUNG = 8  # evals of a process that a gate without standard errors may judge again
START = 1_795_000_000.0
NO_POD = ScrapeView(ScrapeOutcome.NO_PODS, "no pod", at=0.0)
REFUSED = ScrapeView(ScrapeOutcome.UNREACHABLE, "connection refused", at=0.0)

LAYOUTS = ("Plain", "HuggingFace", "HuggingFace/FSDP")
RULES: dict[str, Json] = {
    "declines2": {"kDeclines": {"k": 2}},
    "declines3": {"kDeclines": {"k": 3}},
    "drawdown": {"drawdown": {}},
    "default": {},
}


class World:
    """
    Args:
        config: what is fixed for a history (`drawn`). root: an empty folder of its own.
    """

    def __init__(self, config: Json, root: Path | None = None) -> None:
        self.config = config
        shm = "/dev/shm" if Path("/dev/shm").is_dir() else None
        self.root = root or Path(tempfile.mkdtemp(prefix="evalstop-faults-", dir=shm))
        self.now = START
        self.clock_ahead = 0.0
        self.cluster = Cluster({"n1": 2, "n2": 1})
        self.pool: Json | None = product.gpupool()
        self.cap = "Enforce"  # how far the pool lets the operator go, or did when there last was one
        self.disk = Disk()
        self.disk.broken = self._errno
        self.disk.free = lambda path: 0 if self.now < self.no_space_until else 1 << 40
        self.out_until = 0.0  # s, until when the store does not answer
        self.no_space_until = 0.0
        self.claims_out: Json = {}  # what befalls claims,
        self.claims_out_until = 0.0  # s, until then
        self.next_access: list[Json] = []  # what befalls the next access Jobs
        self.down_until = 0.0  # s, until when no operator runs
        self.pages: dict[str, list[Callable[[], ScrapeView]]] = {}  # what the next scrapes meet instead
        self._shown: dict[str, tuple[object, ScrapeView]] = {}
        self.outliving: list[tuple[Job, Access]] = []  # given up by the operator, and going on all the same
        self.counts: Counter[str] = Counter()
        self.events: list[tuple[float, str, Event]] = []
        self.log: list[str] = []
        self.talks = False
        self.operator = Operator(self)
        self.oracle = Oracle(self)
        self.lives = 0
        self.random = Random(config["seed"])
        for name in ("a", "b")[: config["jobs"]]:
            self.submit(name)

    def close(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    def saw(self, what: str) -> None:
        assert what in SITUATIONS, what
        self.counts[what] += 1

    def say(self, text: str) -> None:
        if self.talks:
            self.log.append(f"{self.now - START:7.0f} {text}")

    # -- jobs --------------------------------------------------------------------------------------------

    @property
    def jobs(self) -> dict[str, Job]:
        return self.cluster.jobs

    def submit(self, name: str, folder: str | None = None) -> Job:
        c = self.config
        mount = str(self.root / "work")
        number = self.cluster.number()
        first = name == "a"
        layout = c["layout"] if first else "Plain"
        metrics = [{"name": product.METRIC, "direction": c["direction"]}]
        if c["guard"] and first:
            metrics.append({"name": product.GUARD, "role": "Guardrail", "stopRule": RULES["declines2"]})
        spec: Json = {
            "gang": {"replicas": c["replicas"] if first else 1, "gpusPerReplica": 1},
            "metrics": metrics,
            "mode": c["mode"] if first else "Enforce",
            "priority": 5 if first else 0,
            "checkpoints": {
                "location": {"volumeClaim": {"claimName": "work", "path": f"/{folder or name}"}},
                "layout": layout.partition("/")[0],
                "retention": {"volumeClaim": {"claimName": "kept"}},
                "maxStepLag": c["lag"],
                "retain": c.get("retain", "BeforeSuspend"),
            },
        }
        if RULES[c["rule"]]:
            spec["stopRule"] = RULES[c["rule"]]
            spec["modifiers"] = [{"gate": {}}] if c["gate"] else []
        if c.get("contended") and first:
            usual = [{"patience": {"evals": 2}}, {"gate": {}}]
            spec["modifiers"] = [*spec.get("modifiers", usual), {"onlyWhenContended": {}}]
        obj = product.rlhfjob(name, f"uid{number:05d}-{name}", mount, **spec)
        obj["metadata"]["creationTimestamp"] = "2026-11-18T00:00:00Z"
        files = Files(self.root / "work" / (folder or name), layout)
        before = self.jobs.get(f"team/{name}")
        if before is not None:
            files = before.files
        job = Job(
            name,
            obj,
            files,
            self.now,
            spec["gang"]["replicas"],
            1,
            names_itself=c["page"],
            serves=c["serves"],
        )
        (self.root / "retained").mkdir(exist_ok=True)
        self.jobs[job.key] = job
        return job

    def edit(self, job: Job, **change: Any) -> None:
        """A user writes the spec; ``a__b`` is field ``a.b``."""
        fields = {path.replace("__", "."): value for path, value in change.items()}
        self.say(f"{job.name}: edit {fields}")
        self.oracle.edited(job, fields)
        job.obj = product.edited(job.obj, fields)
        job.version += 1

    def delete(self, job: Job) -> None:
        if "deletionTimestamp" in job.obj["metadata"]:
            return
        self.say(f"{job.name}: deleted by its user")
        job.obj = {
            **job.obj,
            "metadata": {**job.obj["metadata"], "deletionTimestamp": "2026-11-22T09:00:00Z"},
        }
        job.version += 1
        self.collect(job)

    def collect(self, job: Job) -> None:
        """An object that is being deleted and has no finalizer is gone, and its child with it."""
        if "deletionTimestamp" in job.obj["metadata"] and not job.finalizer and not job.gone:
            job.gone, job.child = True, None
            job.access.clear()
            self.oracle.deleted(job)
            self.say(f"{job.name}: gone")

    # -- time --------------------------------------------------------------------------------------------

    def tick(self, times: int = 1, seconds: float = TICK) -> None:
        for _ in range(times):
            self.now += seconds
            if self.pool is not None:
                self.cap = self.pool["spec"].get("modeCap", "Enforce")
            self.cluster.tick(self.now)
            for job in self.jobs.values():
                self._start_process(job)
                self._serve(job)
            self._access_jobs()
            up = self._operate()
            self.oracle.tick(seconds, up)

    def _operate(self) -> bool:
        """One round of the operator; whether it made it whole."""
        if self.now < self.down_until:
            return False
        op, whole = self.operator, self.operator.stale == 0 and self.operator.fuse is None
        try:
            op.sync()
            self._scrape(op)
            op.round()
        except Crash:
            self.saw("crash")
            self.say("operator dies")
            self.oracle.died()
            self.operator = Operator(self)
            self.operator.latest = op.latest
            return False
        return whole

    def _scrape(self, op: Operator) -> None:
        for key in list(op.cache):
            job = self.jobs[key]
            if op.next_scrape.get(key, 0.0) > self.now:
                continue
            pods = [p for p in job.live_pods if p.index == 0 and p.node and p.deleting is None]
            record = op.record(op.cache[key].obj)
            if record.admission is None or record.finished is not None or not pods:
                if record.admission is not None:
                    op.scraped(key, NO_POD)
                continue
            op.next_scrape[key] = self.now + SCRAPE
            view = self._other_page(job) or self.page(job)
            op.scraped(key, view)
            self.oracle.scraped(job, view)

    def _other_page(self, job: Job) -> ScrapeView | None:
        """The page that a scrape of this job meets in place of its own."""
        if not self.pages.get(job.key):
            return None
        if not job.names_itself:
            self.oracle.case(job).fooled = True  # nothing tells it from its own; the job may be made anew
        return self.pages[job.key].pop(0)()

    def page(self, job: Job) -> ScrapeView:
        """What job's own trainer shows now; the same object until it shows something else."""
        life = job.life
        if life is None:
            return REFUSED
        shows = (life.text, len(life.evals), life.step, life.checkpoint_step, life.served, life.evaluator)
        life.read = True
        known = self._shown.get(job.uid)
        if known is None or known[0] != shows:
            uid = job.uid if job.names_itself else None
            view = product.page(life, uid, 0.0, life.pod, life.pod_created, 1000)
            known = self._shown[job.uid] = (shows, view)
        return known[1]

    # -- trainers ----------------------------------------------------------------------------------------

    def new_life(self, number: int) -> str:
        self.lives += 1
        return f"{number}-{Random(self.lives * 7919 + self.config['seed']).getrandbits(32):08x}"

    def _start_process(self, job: Job) -> None:
        if job.life is not None or job.trained or self.now < job.restarts_at or job.gone:
            return
        ready = [p for p in job.live_pods if p.ready and p.deleting is None]
        if len(ready) < job.replicas or job.child is None:
            return
        pod = next(p for p in ready if p.index == 0)
        run = job.run
        number = run.attempt if run is not None else 0
        life = Life(self.new_life(number), number, pod.uid, pod.created, self.now)
        life.tells = self.config.get("tells", True)
        life.by_hand = job.child.attempt != number
        source = self._resumes_from(job, life)
        if source is not None:
            life.source = source
            life.resumed = life.step = source.step
            life.before = (
                *(e for e in source.life.branch if e.step <= source.step),
                # Others that started from this very checkpoint have evaluated it too.
                *(e for o in job.lives if o.source is source for e in o.evals if e.step == source.step),
            )
            life.checkpoint_step = source.step
            last = next((e for e in reversed(life.before) if not e.fault), None)
            job.level = last.score if last is not None else 0.5
        if run is not None:
            life.served = run.request_id
        previous = job.lives[-1] if job.lives else None
        life.evaluator = previous.evaluator if previous is not None else "1"
        job.lives.append(life)
        job.next_from = None
        self.oracle.born(job, life, source)
        self.say(f"{job.name}: process {life.text} starts in {pod.uid} from step {life.resumed}")

    def _resumes_from(self, job: Job, life: Life) -> Saved | None:
        files, run = job.files, job.run
        asked = run.resume_path if run is not None else ""
        if asked and not any(s.life.number == life.number and s.life.pod for s in files.saved):
            found = fingerprint(read(Path(asked)))
            source = next((s for s in files.saved if s.print == found), None)
            self.oracle.resumed(job, life, asked, source)
            return source
        if job.next_from is not None:
            there = files.at(job.next_from)
            return there or files.newest()
        return files.newest()

    def _serve(self, job: Job) -> None:
        """A trainer does what it is asked for by its run file."""
        life, run = job.life, job.run
        if life is None or run is None or not job.serves or run.request_id <= life.served:
            return
        if run.checkpoint and life.saving is None and life.step > (life.checkpoint_step or 0):
            job.files.save(life, life.step, anew=True)
        life.served = run.request_id

    def evaluate(self, job: Job, score: float, fault: str = "", guard: float | None = None) -> Eval | None:
        life = job.life
        if life is None:
            return None
        e = Eval(life.step, score, life, self.now, life.evaluator, fault, guard)
        e.stderr = self.config["stderr"]
        if fault == "nothing":
            e.samples = 0
        self._mark_jumps(e)
        self._saw_best(job, e)
        life.evals.append(e)
        self.say(f"{job.name}: {life.text} eval {score:.3f} at step {e.step} {fault}")
        return e

    def _mark_jumps(self, e: Eval) -> None:
        """Mark what a gate may take for no eval, with a margin: it judges by what it was shown."""
        stderr, early = self.config["stderr"], [b for b in e.life.evals if b.evaluator == e.evaluator]
        e.young = sum(1 for b in early if not b.fault) < (1 if stderr is not None else YOUNG)
        known = [*(b for b in e.life.branch if not b.fault and b.step < e.step), e]  # one eval of a step
        last = known[-2:]
        scale = robust([b.score for b in known[:-1]][-ROBUST_MOST:])
        limit = 4.5 * stderr if stderr is not None else None if scale is None else 4.0 * scale
        if len(last) == 2 and limit is not None and abs(last[0].score - last[1].score) > limit:
            last[0].jumps = last[1].jumps = True
        if limit is not None:
            self._mark_followers(known, limit)
        if stderr is None and e.young:  # those before there was a scale are judged again
            for at, one in enumerate(known):
                others = [b.score for b in known if b is not one]
                scale = robust(others)
                if scale is not None and abs(one.score - others[max(0, at - 1)]) > 4.0 * scale:
                    one.jumps = True

    def _mark_followers(self, known: list[Eval], limit: float) -> None:
        """Mark those after a jump that a gate may drop with it: each near the jump, and far from before it.

        A jump that both evals after it bear out, with a margin, counts for sure; else they are judged by
        the last one before it.
        """
        for at in range(max(1, len(known) - 3), len(known) - 1):
            before, jump, after = known[at - 1].score, known[at].score, known[at + 1 : at + 3]
            if abs(jump - before) <= limit:
                continue
            shares = [(e.score - before) / (jump - before) for e in after]
            sure = len(after) == 2 and min(shares) >= 0.6
            for e in after:
                e.follows = not sure and abs(e.score - before) > limit

    def _saw_best(self, job: Job, e: Eval) -> None:
        """A new best may come while something is made sure of the former one."""
        sign, before = self.oracle.sign(job), [b.score for b in e.life.branch if not b.fault]
        if e.fault or (before and sign * e.score <= max(sign * score for score in before)):
            return
        if any(a.operation == "secure" and self.now < a.ends for a in job.access.values()):
            self.saw("row 2: a newer best while a secure Job runs")
        decision = self.operator.record(job.obj).decision
        if decision is not None and decision.suspended_at is None:
            self.saw("row 5: a newer best under a stop")

    def leave_over(self) -> None:
        """What an earlier run left in the first job's folder: a life of no pod wrote it."""
        job = next(iter(self.jobs.values()))
        before = Life("0-1", 0, "", 0.0, 0.0)
        for step in (20, 40):
            job.files.leftover(before, step)
        for saved in job.files.saved:
            saved.lies = True
        self.saw("row 11: leftovers in the folder")

    # -- access Jobs -------------------------------------------------------------------------------------

    def access_job(self, job: Job, action: StartAccess, manifest: Json) -> Access:
        fate: Json = self.next_access.pop(0) if self.next_access else {}
        if action.operation is Operation.CLAIM and self.now < self.claims_out_until:
            fate = self.claims_out
        starts, takes = fate.get("starts", 5.0), fate.get("takes", 10.0)
        made = Access(
            action.request_id,
            manifest,
            self.now,
            self.now + starts,
            self.now + starts + takes,
            hangs=fate.get("hangs", False),
            kill_at=fate.get("kill"),
            beside=fate.get("beside"),
            operation=str(action.operation),
        )
        if fate.get("late"):  # it is the end of the work that changes the store
            made.runs = made.ends
        self.say(f"{job.name}: access Job {made.id} {fate or ''}")
        return made

    def access_view(self, access: Access) -> AccessView:
        over = self.now >= access.ends and not access.hangs
        message = access.message if over else None
        moved = access.created if access.hangs else min(self.now, access.ends)
        ahead = self.operator.latest - self.now  # all times are the API server's, as the operator knows it
        since, moved, now = access.created + ahead, moved + ahead, self.now + ahead
        return product.access_view(access.manifest, message, access.failed, since, moved, now)

    def _access_jobs(self) -> None:
        for job in list(self.jobs.values()):
            for access in list(job.access.values()):
                limit = product.deadline(access.manifest)
                running = access.hangs or self.now < access.ends
                if running and limit is not None and self.now - access.created > limit:
                    access.failed, access.ends, access.hangs = "DeadlineExceeded", self.now, False
                    access.ran, access.message = True, None
                    continue
                if not access.ran and self.now >= access.runs and not access.hangs:
                    access.ran = True
                    self._run_access(job, access)

    def forgotten(self, job: Job, access: Access | None) -> None:
        """The operator has given up an access Job. Where its node is thought dead, its program goes on."""
        if self.config.get("outlive") and access is not None and not access.ran:
            self.outliving.append((job, access))

    def _run_access(self, job: Job, access: Access) -> None:
        """Run the program of an access Job: in the midst of one given up before it, if there is one."""
        old = next((one for one in self.outliving if one[0].files is job.files), None)
        if old is None:
            self._work(job, access)
            return
        self.outliving.remove(old)
        self.saw("row 19: a worker outlives its request")
        begun: list[Access] = []

        def newer() -> None:
            begun.append(access)
            self._work(job, access)

        former, late = old
        self.disk.begin(1 + self.random.randrange(80), newer)
        said = product.carry_out(late.manifest, str(self.root / "retained"))
        self.disk.begin()
        self.oracle.changed(former)
        self.oracle.changed(job)
        self.say(f"{former.name}: {late.id}, given up, goes on -> {said}")
        if not begun:
            newer()

    def _work(self, job: Job, access: Access) -> None:
        if access.kill_at is not None:
            self.disk.begin(access.kill_at, self.disk.kill)
        elif access.beside is not None:
            self.disk.begin(access.beside, lambda: self._beside(job))
        else:
            self.disk.begin()
        try:
            self.oracle.changed(job)
            access.message = product.carry_out(access.manifest, str(self.root / "retained"))
        except Killed:
            access.failed = "Killed"
            self.saw("access Job killed")
            self.oracle.killed(job, access)
        else:
            if access.operation == "claim" and job.life is not None and json.loads(access.message)["ok"]:
                job.life.claimed = True
        self.disk.begin()
        self.say(f"{job.name}: {access.id} -> {access.message or access.failed}")

    def _beside(self, job: Job) -> None:
        """What a trainer does in the middle of an access Job's work."""
        self.saw("trainer writes beside an access Job")
        life = job.life
        if life is not None and life.saving is not None:
            job.files.go_on(life)
        else:
            job.files.rotate(1, files=self.random.choice((None, 1, 2)))

    def _errno(self) -> int | None:
        return errno.EIO if self.now < self.out_until else None

    # -- what the operator does, for the oracle ------------------------------------------------------------

    def planned(self, thought: Thought) -> None:
        self.oracle.planned(thought)

    def written(self, job: Job, before: JobRecord, after: JobRecord) -> None:
        self.oracle.written(job, before, after)
        if before.access is not None and before.access.operation is Operation.DETACH:
            kept = {
                k.path
                for k in (after.secured, after.beside, *after.pinned)
                if k is not None and k.method == "copy"
            }
            if kept - {k.path for k in (before.secured, before.beside, *before.pinned) if k is not None}:
                self.saw("row 11: a linked pin is copied")

    def told(self, job: Job, event: Event) -> None:
        self.events.append((self.now, job.key, event))
        if event.reason == "StopTakenBack":
            self.saw("row 5: a stop is taken back")
        if event.reason == "BestCheckpointLost" and "changed" in event.message:
            self.saw("row 11: a changed pin is told")
        self.say(f"{job.name}: Event {event.reason}: {event.message}")

    def suspending(self, job: Job, thought: Thought, reason: str) -> None:
        self.say(f"{job.name}: suspended, {reason}")
        decision = thought.record.decision
        if decision is not None and decision.deferred_at is not None and decision.by != "User":
            self.saw("row 5: suspended before its copy is made")
        self.oracle.suspending(job, thought, reason)

    def starting(self, job: Job, thought: Thought) -> None:
        self.say(f"{job.name}: started")
        self.oracle.starting(job)

    def granting(self, thought: Thought) -> None:
        self.oracle.dirty = True

    def admitting(self, thought: Thought, admission: Admission) -> None:
        self.oracle.admitting(thought.job, admission)
