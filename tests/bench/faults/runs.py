"""One run from its manifest to its verdict."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import shutil
import time
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from controller.api import convert
from controller.kube.client import Api
from controller.kube.errors import ApiError, NotFound
from controller.kube.resources import RLHFJOBS
from controller.policy.job import conditions as c
from controller.policy.job.record import JobRecord
from controller.policy.job.rule_in_use import RuleInUse
from controller.policy.types import Attempt, EvalPoint, Mode, Verb
from tests.bench.faults import oracle, stage
from tests.bench.faults.mischief import Mischief
from tests.bench.faults.plan import Plan
from tests.bench.faults.stage import Slot, Stage
from tests.bench.faults.truth import Eval, Truth
from tests.bench.faults.witness import Seen, Witness

START = 240.0  # s within which a run's first life must begin: it may wait for GPUs
SETTLE = 180.0  # s within which a run must be settled once nothing goes wrong any more
GONE = 60.0  # s within which a deleted RLHFJob must be gone


@dataclass(slots=True)
class Outcome:
    plan: Plan
    name: str
    verdict: oracle.Verdict = field(default_factory=oracle.Verdict)
    end: str = ""  # Completed | Stopped | Failed | "": it did not settle
    stopped_by: str = ""
    settle: float = 0.0  # s from the last fault's, or the trainer's, end until nothing moved any more
    lives: int = 0
    evals: int = 0
    missed: int = 0  # faults that met nothing
    looking: bool = False  # over, and a checkpoint that is gone is still asked for
    hindrances: frozenset[str] = frozenset()  # why its best was not in safety, at one time or another
    trouble: str = ""  # what went wrong with the bench or the run, in words

    @property
    def failed(self) -> bool:
        v = self.verdict
        return bool(v.lost or v.false_stops or v.untrue or self.trouble)


class Runner:
    """Runs plans on a stage. ``failures``: folder for what is left of runs that failed."""

    def __init__(self, stage: Stage, api: Api, witness: Witness, mischief: Mischief, failures: Path) -> None:
        self._stage, self._api, self._witness = stage, api, witness
        self._mischief, self._failures = mischief, failures
        self.under_way: set[str] = set()

    async def run(self, plan: Plan, slot: Slot) -> Outcome:
        name = f"r{plan.seed:07d}"
        outcome = Outcome(plan, name)
        truth = self._stage.truth / name
        truth.mkdir()
        (truth / "back.json").write_text(json.dumps(plan.back))
        if plan.waits:
            (truth / "noted").touch()
        (slot.checkpoints / name).mkdir(mode=0o777)
        body = stage.job(name, slot, truth, self._stage.truth / "gpus", plan)
        began = time.time()
        self.under_way.add(name)
        faults: asyncio.Task[Any] | None = None
        noting: asyncio.Task[Any] | None = None
        try:
            await self._api.create(RLHFJOBS, body)
            if not await _until(lambda: (truth / "life.jsonl").is_file(), START):
                outcome.trouble = f"no trainer began within {START:.0f} s"
            else:
                faults = asyncio.create_task(self._faults(plan, name, slot, outcome))
                noting = asyncio.create_task(self._note(name, truth)) if plan.waits else None
                await self._to_its_end(plan, name, slot, outcome, faults)
            self._judge(outcome, slot, truth, began)
            if outcome.failed:
                await self._keep(outcome, slot, truth)
        except Exception as error:  # one run's trouble must not end the others
            where = traceback.extract_tb(error.__traceback__)[-1]
            outcome.trouble = f"the bench failed: {error!r} at {where.filename}:{where.lineno}"
        finally:
            tasks = [task for task in (faults, noting) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with contextlib.suppress(ApiError):
                await self._clear(name, slot, outcome)
            self.under_way.discard(name)
            self._witness.forget(name)
            await asyncio.to_thread(_remove, slot, name, truth)
        return outcome

    # -- what happens in it -------------------------------------------------------------------------------

    async def _faults(self, plan: Plan, name: str, slot: Slot, outcome: Outcome) -> None:
        rng = random.Random(f"carrying out {plan.seed}")

        async def one(at: float, act: Any) -> None:
            await asyncio.sleep(at)
            if await act() is False:
                outcome.missed += 1

        async with asyncio.TaskGroup() as group:
            for fault in plan.faults:
                own = random.Random(rng.random())
                group.create_task(
                    one(fault.at, lambda f=fault, r=own: self._mischief.carry_out(f, name, slot, r))
                )
            if plan.act:
                group.create_task(one(plan.act_at, lambda: self._act(plan, name, slot)))

    async def _note(self, name: str, folder: Path) -> None:
        """Tell the trainer, again and again, which of its evals the operator surely has in the status.

        One that waits for its last one is owed its best however slow the machine is; one that only lingers
        for some seconds may be over before an operator that was killed is there again.
        """
        file = folder / "noted"
        while True:
            truth = Truth.read(folder)
            evals = truth.lives[-1].evals if truth.lives else []
            if evals:
                newest = list(self._witness.of(name, RLHFJOBS.kind))[-1:]  # it has the newest evals of all
                since = oracle.noted(truth, evals[-1], self._mischief.acute(), _shown(newest))
                if since is not None and since <= time.time():
                    new = file.with_suffix(".new")
                    new.write_text(f"{evals[-1].life} {evals[-1].step}")
                    new.rename(file)  # whoever reads it meanwhile finds the old text or the new one
            await asyncio.sleep(0.5)

    async def _act(self, plan: Plan, name: str, slot: Slot) -> None:
        async def change(**spec: Any) -> None:
            with contextlib.suppress(ApiError):
                await self._api.merge_patch(RLHFJOBS, name, {"spec": spec}, slot.namespace)

        if plan.act == "Stopped":
            await change(runState="Stopped")
            return
        await change(mode="Off")
        if plan.act == "Off-Enforce":
            await asyncio.sleep(5.0)
            await change(mode="Enforce")

    async def _to_its_end(
        self, plan: Plan, name: str, slot: Slot, outcome: Outcome, faults: asyncio.Task[Any]
    ) -> None:
        """Until all faults were carried out and the run is over, and nothing moves in it any more."""
        await faults
        clear = max((end for _, end in self._mischief.spans(name)), default=0.0)
        deadline = time.time() + SETTLE
        while True:
            obj = self._witness.newest(name)
            record = convert.record((obj or {}).get("status"))
            outcome.end = _end(record)
            if outcome.end and not self._witness.access_pods(name):
                if record.access is None or not self._watched(name):
                    break
                # What rotation took is asked for some minutes more; nothing comes of it where none is owed.
                if record.access.tries >= 2 and not self._still_owed(outcome, slot):
                    outcome.looking = True
                    break
            # What befalls the neighbours holds this run up, too.
            troubles = [end for _, end in self._mischief.spans(name)]
            lived = _last_line(self._stage.truth / name)
            clear = max([clear, lived, *troubles])
            if time.time() > max(deadline, clear + SETTLE):
                outcome.end = ""
                outcome.trouble = f"not settled {SETTLE:.0f} s after the last fault: {_summary(record)}"
                break
            await asyncio.sleep(0.25)
        lived = _last_line(self._stage.truth / name)
        last = max([lived, *(end for _, end in self._mischief.spans(name) if end <= time.time())])
        outcome.settle = max(0.0, time.time() - last)

    # -- the verdict -------------------------------------------------------------------------------------

    def _judge(self, outcome: Outcome, slot: Slot, folder: Path, began: float) -> None:
        name, verdict = outcome.name, outcome.verdict
        truth = Truth.read(folder)
        outcome.lives, outcome.evals = len(truth.lives), sum(len(life.evals) for life in truth.lives)
        troubles = [span for span in self._mischief.spans(name) if span[1] >= began]
        obj = self._witness.newest(name)
        if obj is None or not truth.lives:
            return
        record = convert.record(obj.get("status"))
        rule = Rule(obj)
        outcome.hindrances = self._hindrances(name)
        self._judge_safety(outcome, verdict, truth, slot)
        oracle.judge_claims(verdict, truth, _claims(record, slot))
        decision, at = record.decision, self._witness.suspended_at(name)
        if decision is None or decision.mode is not Mode.ENFORCE or at is None:
            return
        outcome.stopped_by = decision.by
        if decision.by == "User":
            return
        forbidden = self._off_since(name, at)
        stop = oracle.Stop(at, decision.by, decision.message, forbidden)
        oracle.judge_stop(verdict, truth, stop, rule.says_stop, troubles)

    def _still_owed(self, outcome: Outcome, slot: Slot) -> bool:
        name, verdict = outcome.name, oracle.Verdict()
        self._judge_safety(outcome, verdict, Truth.read(self._stage.truth / name), slot)
        return bool(verdict.lost)

    def _judge_safety(self, outcome: Outcome, verdict: oracle.Verdict, truth: Truth, slot: Slot) -> None:
        name = outcome.name
        obj = self._witness.newest(name)
        if obj is None or not self._watched(name):
            return
        # Of a run that is settled nothing more will come, however long its checkpoints still lie there.
        until = float("inf") if outcome.end else time.time()
        places = (slot.checkpoints / name / ".evalstop", slot.retained)
        troubles, acute = self._mischief.spans(name), self._mischief.acute()
        shown = _shown(self._witness.of(name, RLHFJOBS.kind))
        oracle.judge_safety(verdict, truth, places, troubles, acute, until, Rule(obj).ignored, shown)

    def _hindrances(self, name: str) -> frozenset[str]:
        found = set()
        for seen in self._witness.of(name, RLHFJOBS.kind):
            for said in (seen.obj.get("status") or {}).get("conditions") or ():
                if said["type"] in (c.SECURED, c.RETAINED) and said["status"] != "True":
                    found.add(said["reason"])
        return frozenset(found)

    def _watched(self, name: str) -> bool:
        """Whether nobody took the product's hands off the run: with mode Off nothing is owed."""
        return all(seen.obj["spec"].get("mode") != "Off" for seen in self._witness.of(name, RLHFJOBS.kind))

    def _off_since(self, name: str, at: float) -> float | None:
        since = None
        for seen in self._witness.of(name, RLHFJOBS.kind):
            if seen.at > at:
                break
            if seen.obj["spec"].get("mode") != "Off":
                since = None
            elif since is None:
                since = seen.at
        return since

    # -- afterwards --------------------------------------------------------------------------------------

    async def _clear(self, name: str, slot: Slot, outcome: Outcome) -> None:
        try:
            found = await self._api.get(RLHFJOBS, name, slot.namespace)
            await self._api.delete(RLHFJOBS, name, slot.namespace, found["metadata"]["uid"])
        except NotFound:
            return
        if not await _until(lambda: self._witness.newest(name) is None, GONE) and not outcome.trouble:
            outcome.trouble = f"the RLHFJob is not gone {GONE:.0f} s after its deletion"
        # Its pods lock GPUs and write into folders that the next run gets: they go first.
        await _until(lambda: not _has_pods(self._witness, name), GONE)

    async def _keep(self, outcome: Outcome, slot: Slot, truth: Path) -> None:
        folder = self._failures / outcome.name
        folder.mkdir(parents=True, exist_ok=True)
        plan = outcome.plan.described()
        text = {"plan": plan, "outcome": {k: v for k, v in asdict(outcome).items() if k != "plan"}}
        (folder / "verdict.json").write_text(json.dumps(text, indent=1, default=str) + "\n")
        troubles = [asdict(t) for t in self._mischief.troubles]
        (folder / "troubles.json").write_text(json.dumps(troubles, indent=1) + "\n")
        self._witness.write(outcome.name, folder / "timeline.jsonl")
        await asyncio.to_thread(self._copy, folder, outcome.name, slot, truth)

    def _copy(self, folder: Path, name: str, slot: Slot, truth: Path) -> None:
        shutil.copytree(truth, folder / "truth", dirs_exist_ok=True)
        listing = []
        for place in (slot.checkpoints / name, slot.retained):
            listing += [f"{p} {p.stat().st_size}" for p in sorted(place.rglob("*")) if p.is_file()]
        (folder / "files.txt").write_text("\n".join(listing) + "\n")
        for log in self._failures.parent.glob("*.log"):
            (folder / log.name).write_bytes(log.read_bytes()[-2_000_000:])
        for what, arguments in {
            "events.txt": ("get", "events", "-n", slot.namespace, "--sort-by=.lastTimestamp"),
            "pods.txt": ("get", "pods", "-n", slot.namespace, "-o", "yaml"),
        }.items():
            with contextlib.suppress(Exception):
                (folder / what).write_text(self._stage.plane.kubectl(*arguments))


def _shown(versions: Iterable[Seen]) -> oracle.Shown:
    """When each eval was first seen in these versions of a run's status."""
    found: dict[tuple[str, int], float] = {}
    for seen in versions:
        for point in convert.record(seen.obj.get("status")).evals:
            found.setdefault((str(point.attempt), point.step), seen.at)
    return found


class Rule:
    """The stop rule of an RLHFJob as questions about evals: a fold, and nothing else of the product."""

    def __init__(self, obj: Any) -> None:
        self._use = RuleInUse.of(convert.desired(obj, None))

    def says_stop(self, evals: Sequence[Eval]) -> bool:
        """Whether it says stop on the last of these."""
        _, verdict = self._use.fold(self._use.rule.initial(), _points(evals))
        return verdict is not None and verdict.verb is Verb.STOP

    def ignored(self, evals: Sequence[Eval]) -> frozenset[int]:
        """Steps of the evals that its gate dropped, or lets wait until later ones bear them out."""
        state, steps = self._use.rule.initial(), set[int]()
        for point in _points(evals):
            state, _ = self._use.fold(state, [point])
            steps |= {*self._use.dropped(state)}
        return frozenset(steps | {*self._use.waiting(state)})


def _points(evals: Sequence[Eval]) -> list[EvalPoint]:
    attempt = Attempt.parse("1-0")  # rules do not look at it
    return [EvalPoint(e.step, e.score, attempt, e.stderr, e.samples) for e in evals]


def _claims(record: JobRecord, slot: Slot) -> list[oracle.Claim]:
    found = []
    kept = [("retained", k) for k in record.retained] + (
        [("secured", record.secured)] if record.secured else []
    )
    for what, k in kept:
        path = k.path
        for inside, outside in (("/ckpt", slot.checkpoints), ("/retained", slot.retained)):
            if path.startswith(inside + "/"):
                path = str(outside) + path.removeprefix(inside)
                break
        found.append(oracle.Claim(what, Path(path), k.step, k.score))
    return found


def _end(record: JobRecord) -> str:
    said = {x.type: x.status for x in record.conditions}
    if said.get(c.COMPLETED):
        return "Completed"
    if said.get(c.FAILED):
        return "Failed"
    if record.decision is not None and record.decision.suspended_at is not None and said.get(c.RELEASED):
        return "Stopped"
    return ""


def _summary(record: JobRecord) -> str:
    told = [f"{x.type}={x.status}/{x.reason}" for x in record.conditions]
    return f"{', '.join(told)}; access {record.access}; decision {record.decision}"


def _last_line(folder: Path) -> float:
    truth = Truth.read(folder)
    return max((life.last for life in truth.lives), default=0.0)


def _has_pods(witness: Witness, run: str) -> bool:
    there: dict[str, bool] = {}
    for seen in witness.of(run, "Pod"):
        phase = (seen.obj.get("status") or {}).get("phase")
        there[seen.name] = not (seen.deleted or phase in ("Succeeded", "Failed"))
    return any(there.values())


async def _until(true: Any, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.2)
    return True


def _remove(slot: Slot, name: str, truth: Path) -> None:
    shutil.rmtree(slot.checkpoints / name, ignore_errors=True)
    for entry in slot.retained.iterdir():
        if entry.name != "ballast":
            shutil.rmtree(entry, ignore_errors=True)
    shutil.rmtree(truth, ignore_errors=True)
