"""Pages of the dashboard, made from the feed for one viewer. Charts are drawn in a thread of their own."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from controller import names
from controller.api.values import timestamp
from controller.frozen import dataclass
from controller.policy.job import (
    Cure,
    Finding,
    RuleInUse,
    alone_best,
    course,
    curve_marks,
    evidence,
    found_gone,
    lone_peak,
    losses,
    lost_best,
    other_rules,
    other_rules_sentence,
    promise,
    residency,
    shadow_record,
    ways_on,
    were_right,
)
from controller.policy.pool import Handover as StoredHandover
from controller.policy.stopping.graded import Graded
from controller.policy.types import Verb
from controller.policy.wording import ELSEWHERE, UID, about, counted
from controller.web.dashboard import charts
from controller.web.dashboard.access import Viewer
from controller.web.dashboard.feed import Feed, Job, Pool
from controller.web.dashboard.groups import ShownGroup, groups_of
from controller.web.dashboard.groups import lanes as turns
from controller.web.dashboard.jobs import PAGE, Listing, ListQuery, Row, listing, row
from controller.web.dashboard.lanes import lanes_svg
from controller.web.dashboard.lineup import line_up
from controller.web.dashboard.queues import Found, Queues
from controller.web.dashboard.rollouts import loans, rollouts
from controller.web.dashboard.run_chart import RunChart, View, curve_svg
from controller.web.dashboard.savings import expected, savings, shares_run
from controller.web.dashboard.small_charts import RUNS_MAX, compare_svg, sparkline
from controller.web.dashboard.states import GROUPS, STATES
from controller.web.dashboard.whatif import what_if

_FEW = 8  # of what is newest, on the overview
_HOLDERS = 5  # namespaces named as having a pool's GPUs
FEW_POINTS = 8  # up to which there is nothing to see larger


class NotThere(Exception):
    """There is no such page for this viewer."""


@dataclass(frozen=True, slots=True)
class Page:
    """A template with its values. ``announce``: what a screen reader is told when it changes."""

    template: str
    title: str
    announce: str
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Handover:
    """A stop and what became of its GPUs, as far as the viewer may know."""

    pool: str
    source: str
    target: str
    by: str
    gpus: int
    stages: tuple[tuple[str, float], ...]  # (stage, s after the decision)
    decided: str


class Pages:
    """Makes pages from a feed."""

    def __init__(self, feed: Feed, queues: Queues) -> None:
        self._feed, self._queues = feed, queues
        self._sparks: dict[str, tuple[str, str]] = {}  # by job: its version, and the line drawn for it

    def rows(self, viewer: Viewer) -> list[Row]:
        now = time.time()
        return [row(job, now) for job in self._feed.jobs() if viewer.sees(job.namespace)]

    def pools(self, viewer: Viewer) -> list[Pool]:
        return self._feed.pools() if viewer.pools else []

    async def overview(self, viewer: Viewer, query: Mapping[str, str], narrow: bool) -> Page:
        rows = self.rows(viewer)
        counts = Counter(r.state.group for r in rows)
        pools = self.pools(viewer)
        saved = savings(r.job for r in rows)
        # Whose GPUs have been held longest for nothing comes first.
        attention = sorted((r for r in rows if r.needs_attention), key=lambda r: (-r.waste, r.since))
        backs = self._handovers(pools, viewer)
        counted = {group: counts.get(group, 0) for group in GROUPS}
        announce = f"{counted['running']} running, {counted['waiting']} waiting, {counted['stopped']} stopped"
        if attention:
            announce += f"; {attention[0].job.key} is {attention[0].state.word}"
        values = {
            "counts": counted,
            "total": len(rows),
            "attention": attention[:_FEW],
            "attention_total": len(attention),
            "pools": pools,
            "bars": await self._bars(pools, True),  # cards are narrow, whatever the page is
            "backs": backs[:_FEW],
            "savings": saved,
            "viewer": viewer,
        }
        return Page("overview.html", "Overview", announce, values)

    async def jobs(self, viewer: Viewer, query: Mapping[str, str], narrow: bool) -> Page:
        rows = self.rows(viewer)
        found: Listing = listing(rows, ListQuery.of(query))
        values = {
            "listing": found,
            "groups": GROUPS,
            "pool_names": sorted({r.job.pool for r in rows}),
            "namespaces": sorted({r.job.namespace for r in rows}),
            "sparks": {r.job.key: self._spark(r.job) for r in found.rows},
            "runs_max": RUNS_MAX,
            "viewer": viewer,
        }
        announce = f"{counted(found.total, 'job')}: " + ", ".join(
            f"{found.counts[g]} {g}" for g in GROUPS if found.counts.get(g)
        )
        return Page("jobs.html", "Jobs", announce, values)

    async def job(self, viewer: Viewer, key: str, query: Mapping[str, str], narrow: bool) -> Page:
        namespace = key.partition("/")[0]
        job = self._feed.job(key) if viewer.sees(namespace) else None
        if job is None:
            raise NotThere(f"there is no RLHFJob {key} that you may read; it may have been deleted")
        asked = await asyncio.to_thread(what_if, job, query)  # it loads NumPy the first time
        curve = curve_of(job, view=view_of(query))
        drawn = other = ""
        if curve.course.points:
            drawn = await asyncio.to_thread(curve_svg, curve, "c", narrow)
        if asked.outcome is not None and curve.course.points:
            changed = curve_of(job, other_stop=asked.outcome.stopped_step, view=curve.view)
            other = await asyncio.to_thread(curve_svg, changed, "w", narrow)
        record, desired = job.record, job.desired
        shown = row(job, time.time())
        place = await self._place(job) if shown.state.group == "waiting" else None
        actors = rollouts(job, lambda who: self._by_uid(who, viewer))
        lanes = ""
        if actors is not None and actors.lanes is not None:
            lanes = await asyncio.to_thread(lanes_svg, actors.lanes, "l", narrow)
        newest = job.record.evals[-1] if job.record.evals else None
        announce = f"{key} is {shown.state.word}"
        if newest is not None:
            announce += f", {job.desired.metric} {newest.score:.4g} at step {newest.step}"
        values = {
            "job": job,
            "row": shown,
            "cures": [(one, cure(job, one)) for one in shown.marks],
            "outcome": were_right(job.record.outcome),
            "lost": lost_best(record),
            "losses": losses(record),
            "alone": alone_best(record),
            "evidence": evidence(record, desired.direction),
            "promise": promise(desired.rule, record.evals_seen),
            "others": other_rules_sentence(
                await asyncio.to_thread(
                    other_rules, record, desired.rule.name, desired.direction, desired.scale
                )
            ),
            "ways_on": ways_on(record, f"{job.name} -n {job.namespace}"),
            "curve": curve,
            "views": views(curve),
            "wrong_view": view_problem(query),
            "awaits": awaits(job),
            "not_counted": not_counted(job),
            "chart": drawn,
            "residency": record.residency if record.residency and record.residency.group else None,
            "charged": residency.charged(record),
            "rollouts": actors,
            "lanes_chart": lanes,
            "saving": next(iter(savings([job]).stops), None),
            "place": place,
            "stages": stages_of(job, self._handed_to(job, viewer)),
            "what_if": asked,
            "what_if_chart": other,
            "viewer": viewer,
        }
        return Page("job.html", key, announce, values)

    async def compare(self, viewer: Viewer, query: Mapping[str, str], narrow: bool) -> Page:
        """Return up to six runs on one step axis. Runs that the viewer may not read are as if not there."""
        wanted = list(dict.fromkeys(one.strip() for one in query.get("runs", "").split(",") if one.strip()))
        found, missing = [], []
        for key in wanted[:RUNS_MAX]:
            job = self._feed.job(key) if viewer.sees(key.partition("/")[0]) else None
            if job is None:
                missing.append(key[:130])
            else:
                found.append(job)
        now, view = time.time(), view_of(query)
        curves = tuple(replace(curve_of(job), view=view) for job in found)
        names = tuple(job.key for job in found)
        drawn = ""
        if any(curve.course.points for curve in curves):
            drawn = await asyncio.to_thread(compare_svg, curves, names, "v", narrow)
        better = {True: "lower is better", False: "higher is better"}
        metrics = sorted({f"{job.desired.metric}: {better[job.desired.minimizes]}" for job in found})
        values = {
            "runs": [(row(job, now), curve) for job, curve in zip(found, curves, strict=True)],
            "names": names,
            "missing": missing,
            "over": wanted[RUNS_MAX:],
            "metrics": metrics,
            "view": view,
            "wrong_view": view_problem(query),
            "chart": drawn,
            "viewer": viewer,
        }
        return Page("compare.html", "Compare", f"{counted(len(found), 'run')} compared", values)

    def _spark(self, job: Job) -> str:
        known = self._sparks.get(job.key)
        if known is None or known[0] != job.version:
            curve = curve_of(job)
            drawn = sparkline(curve.course, curve.best, not job.desired.minimizes)
            known = self._sparks[job.key] = (job.version, drawn)
        return known[1]

    async def all_pools(self, viewer: Viewer, query: Mapping[str, str], narrow: bool) -> Page:
        pools = self.pools(viewer)
        values = {"pools": pools, "bars": await self._bars(pools, True), "viewer": viewer}
        announce = ", ".join(
            f"{p.name}: {p.status.free or 0} of {p.status.capacity or 0} free" for p in pools
        )
        return Page("pools.html", "Pools", announce, values)

    async def pool(self, viewer: Viewer, name: str, query: Mapping[str, str], narrow: bool) -> Page:
        pool = self._feed.pool(name) if viewer.pools else None
        if pool is None:
            raise NotThere(f"there is no GPUPool {name} that you may read")
        rows = [r for r in self.rows(viewer) if r.job.pool == name]
        found = await self._queue(name)
        waiting: list[dict[str, Any]] = []
        if found.queue is not None:
            for place in found.queue.items:
                seen = viewer.sees(place.job.partition("/")[0])
                waiting.append({"place": place, "key": place.job if seen else "", "job": None})
        else:
            queued = [r for r in rows if r.state.group == "waiting"]
            queued.sort(key=lambda r: (-r.job.priority, r.job.record.queued_at or r.job.created))
            waiting = [{"place": None, "key": r.job.key, "job": r} for r in queued]
        running = sorted((r for r in rows if r.state.group == "running"), key=lambda r: r.job.key)
        values = {
            "pool": pool,
            "amiss": [c for c in pool.status.conditions if c.status is (c.type == names.HELD_BACK)],
            "holders": _holders(running),
            "first_why": _why_first(waiting),
            "bar": (await self._bars([pool], narrow))[name],
            "queue": found,
            "waiting": waiting,
            "running": running,
            "most": PAGE,
            "backs": self._handovers([pool], viewer),
            "groups": await self._groups_of(name, viewer),
            "loans": loans((j for j in self._feed.jobs() if j.pool == name), lambda who: _named(who, viewer)),
            "shadow": shadow_record(r.job.record for r in rows),
            "viewer": viewer,
        }
        announce = f"{name}: {counted(pool.status.free or 0, 'GPU')} free, {pool.status.queued or 0} waiting"
        return Page("pool.html", f"Pool {name}", announce, values)

    async def all_groups(self, viewer: Viewer, query: Mapping[str, str], narrow: bool) -> Page:
        live = await self._queues.groups()
        found = groups_of(self._feed, live, viewer)
        values = {"groups": found, "problem": live.problem, "viewer": viewer}
        held = sum(one.group.turn is not None for one in found)
        announce = f"{counted(len(found), 'worker group')}, turns in {held}"
        return Page("groups.html", "Worker groups", announce, values)

    async def group(self, viewer: Viewer, name: str, query: Mapping[str, str], narrow: bool) -> Page:
        live = await self._queues.groups()
        shown = next((one for one in groups_of(self._feed, live, viewer) if one.name == name), None)
        if shown is None:
            raise NotThere(f"there is no worker group {name} that you may see; it may have been closed")
        group, found, drawn = shown.group, turns(shown.group, time.time()), ""
        if found is not None:
            drawn = await asyncio.to_thread(lanes_svg, found, "t", narrow)
        values = {
            "shown": shown,
            "problem": live.problem,
            "lanes": found,
            "lanes_chart": drawn,
            "viewer": viewer,
        }
        announce = f"{name} is {group.state}"
        if group.turn is not None:
            announce += f", {group.turn.job} has the turn"
        return Page("group.html", f"Group {name}", announce, values)

    async def saved(self, viewer: Viewer, query: Mapping[str, str], narrow: bool) -> Page:
        rows = self.rows(viewer)
        found = savings(r.job for r in rows)
        drawn = ""
        known = saved_over_time(found.stops)
        if known and known[-1][0] - known[0][0] >= 60.0:  # of one moment there is no course to draw
            drawn = await asyncio.to_thread(charts.saved_svg, known, "s", narrow)
        announce = f"{about(found.hours, 'GPU-hours')} saved by {counted(len(found.stops), 'stop')}"
        values = {
            "savings": found,
            "range": expected(found.stops, shares_run(r.job for r in rows)),
            "chart": drawn,
            "viewer": viewer,
        }
        return Page("savings.html", "Savings", announce, values)

    def _handed_to(self, job: Job, viewer: Viewer) -> str:
        """Return who got a job's GPUs: by name for those who may list it."""
        to = job.record.decision.handed_to if job.record.decision is not None else None
        return self._by_uid(to, viewer) if to else ""

    def _by_uid(self, who: str, viewer: Viewer) -> str:
        """Return a job that a status tells of by its name or its uid: by name for those who may list it."""
        if who.startswith(UID):
            uid = who.removeprefix(UID)
            who = next((other.key for other in self._feed.jobs() if uid and other.uid == uid), who)
        return who if "/" in who and viewer.sees(who.partition("/")[0]) else ELSEWHERE

    # -- parts -------------------------------------------------------------------------------------------

    async def _bars(self, pools: Iterable[Pool], narrow: bool) -> dict[str, str]:
        bars = {}
        for number, pool in enumerate(pools):
            status = pool.status
            free, held, foreign = status.free or 0, status.held or 0, status.foreign or 0
            parts = (pool.used, held, foreign, free)
            drawn = await asyncio.to_thread(charts.gpus_svg, *parts, f"g{number}", narrow, status.shared)
            bars[pool.name] = drawn
        return bars

    async def _queue(self, name: str) -> Found:
        """Return the operator's own plan; where it cannot be asked for, the policy's order by the
        statuses."""
        found, pool = await self._queues.of(name), self._feed.pool(name)
        if found.queue is not None or pool is None:
            return found
        jobs = [job for job in self._feed.jobs() if job.pool == name]
        return Found(line_up(pool, jobs, time.time()), found.problem)

    async def _groups_of(self, pool: str, viewer: Viewer) -> list[ShownGroup]:
        """Return a pool's worker groups; none is asked for where it offers no sharing."""
        found = self._feed.pool(pool)
        if found is None or found.spec is None or found.spec.spec.sharing is None:
            return []
        live = await self._queues.groups()
        return [one for one in groups_of(self._feed, live, viewer) if one.group.pool == pool]

    async def _place(self, job: Job) -> Any:
        found = await self._queue(job.pool)
        if found.queue is None:
            return None
        return next((place for place in found.queue.items if place.job == job.key), None)

    def _handovers(self, pools: Iterable[Pool], viewer: Viewer) -> list[Handover]:
        found = [handover(pool.name, back, viewer) for pool in pools for back in pool.status.last_handovers]
        return sorted(found, key=lambda b: b.decided, reverse=True)


def _holders(running: Iterable[Row]) -> list[tuple[str, int]]:
    """Return the namespaces that have most of a pool's GPUs, with how many: five of them, then the rest."""
    found = Counter[str]()
    for one in running:
        found[one.job.namespace] += one.job.gpus
    most = found.most_common(_HOLDERS)
    rest = found.total() - sum(gpus for _, gpus in most)
    return [*most, ("others", rest)] if rest else most


def _why_first(waiting: Sequence[Mapping[str, Any]]) -> str:
    """Return why the first of a queue waits; "": nobody does."""
    if not waiting:
        return ""
    first = waiting[0]
    if (place := first["place"]) is not None:
        why = place.message if first["key"] else place.reason
        return str(why or place.reason or place.state)
    condition = first["job"].job.record.condition("Admitted")
    return str(condition.message if condition is not None else first["job"].state.meaning)


def cure(job: Job, one: Finding) -> Cure:
    """Return what to do about a mark of a job."""
    layout = job.record.layout_of(job.desired.layout)
    return one.cure().filled(job.name, job.namespace, job.pool, layout, one.message)


def curve_of(job: Job, other_stop: int | None = None, view: View | None = None) -> RunChart:
    """Return a run's chart: its whole course, as far as is kept; the best stays, however old."""
    record, decision = job.record, job.record.decision
    there = [one for one in record.retained if one not in found_gone(record)]
    kept = there[-1] if there else record.secured
    word = "stopped" if decision is not None and decision.suspended_at is not None else "stop"
    if decision is not None and str(decision.mode) == "Shadow":
        word = "would stop"
    proxy = job.desired.proxy.metric if job.desired.proxy is not None else "reward model's score (proxy)"
    return RunChart(
        metric=job.desired.metric or "score",
        course=course(record),
        best=(record.best.step, record.best.score) if record.best is not None else None,
        retained_step=kept.step if kept is not None else None,
        warned=warned_step(job),
        stopped=decision.proposal.step if decision is not None else None,
        stop_word=word,
        other_stop=other_stop,
        total=record.progress.total_steps if record.progress is not None else None,
        proxy_name=proxy,
        marks=curve_marks(record.curve),
        view=view,
    )


def view_of(query: Mapping[str, str]) -> View | None:
    """Return the steps that an address asks for (``from``, ``to``); None: all, or it asks for none."""
    texts = query.get("from", ""), query.get("to", "")
    if not all(text.isascii() and text.isdigit() and len(text) <= 15 for text in texts):
        return None
    first, last = map(int, texts)
    return View(first, last) if first < last else None


def view_problem(query: Mapping[str, str]) -> str:
    """Return why the steps that an address asks for are not shown; "": they are, or it asks for none."""
    texts = [query.get(name, "") for name in ("from", "to")]
    if view_of(query) is not None or not any(texts):
        return ""
    first, last = (repr(text[:20]) for text in texts)
    return f"from {first} to {last}: expected two whole numbers, the lower one first. All steps are shown"


def not_counted(job: Job) -> str:
    """Return the best eval that is better than the best and counts for nothing, in a sentence; "": there is
    none."""
    desired = job.desired
    found = lone_peak(job.record, desired.modifiers, desired.direction, f"{job.name} -n {job.namespace}")
    return f"not counted: {found.sentence(desired.direction)}" if found is not None else ""


def awaits(job: Job) -> str:
    """Return which eval is better than the best and waits, in a sentence; "": none does."""
    record, one = job.record, job.record.awaiting
    if record.best is None or one is None:
        return ""
    sign = -1.0 if job.desired.minimizes else 1.0
    if sign * (one.score - record.best.score) <= 0.0:
        return ""
    return f"The better score at step {one.step} is not the best: no other eval bears such a jump out so far"


def views(curve: RunChart) -> list[tuple[str, View | None]]:
    """Return the parts of a run that one is likely to want to see larger, by name."""
    points, found = curve.course.points, list[tuple[str, View | None]]()
    if len(points) < FEW_POINTS:
        return found
    first, last = points[0].step, points[-1].step
    if curve.total is not None and curve.total > last:
        found.append(("up to now", View(first, last)))
    if curve.course.first is not None and first < curve.course.first < last:
        found.append(("evals kept one by one", View(curve.course.first, last)))
    about = curve.stopped if curve.stopped is not None else curve.best[0] if curve.best else None
    if about is not None:
        reach = max(1, (last - first) // 8)
        word = "around the stop" if curve.stopped is not None else "around the best"
        found.append((word, View(max(0, about - reach), about + reach)))
    return [("all", None), *found] if found else found


def warned_step(job: Job) -> int | None:
    """Return the eval from which on the rule has warned of the run, or asked it to give way; None: it does
    not.

    The rule is shown the evals that are kept once more, from its state before the oldest of them.
    """
    record = job.record
    if record.rule is None or not any(m.name == Graded.name for m in job.desired.modifiers):
        return None
    total = record.progress.total_steps if record.progress is not None else None
    use = RuleInUse.of(job.desired, total_steps=total)
    if use.params_hash != record.rule.params_hash:
        return None  # its state was made under other parameters
    found, state = None, record.rule.base
    for point in record.evals[record.rule.unjudged :]:
        state, verdict = use.observe(state, point)
        graded = verdict.grade is not None or verdict.verb is not Verb.CONTINUE
        found = (point.step if found is None else found) if graded else None
    stop = record.decision.proposal.step if record.decision is not None else None
    return None if found == stop else found


def stages_of(job: Job, handed_to: str) -> list[tuple[str, float | None]]:
    """Return how far a stop has come: (stage, when in s; None: not yet). ``handed_to``: who got its GPUs, as
    the viewer may know."""
    decision = job.record.decision
    if decision is None:
        return []
    if decision.held_nothing:
        return [("decided", decision.at)]
    return [
        ("decided", decision.at),
        ("best checkpoint retained, digest verified", decision.retained_at),
        ("suspended", decision.suspended_at),
        ("pods gone", decision.pods_gone_at),
        (f"GPUs handed to {handed_to}" if handed_to else "GPUs handed over", decision.handed_at),
    ]


def handover(pool: str, back: StoredHandover, viewer: Viewer) -> Handover:
    """Return a handover as the page shows it, without names of jobs that the viewer may not read."""
    times = (
        ("retained", back.retained),
        ("suspended", back.suspended),
        ("pods gone", back.pods_gone),
        ("running", back.running),
    )
    return Handover(
        pool=pool,
        source=_named(back.source, viewer),
        target=_named(back.target, viewer) if back.target else "",
        by=back.by,
        gpus=back.gpus,
        stages=tuple((name, max(0.0, at - back.decided)) for name, at in times if at is not None),
        decided=timestamp(back.decided),
    )


def _named(key: str, viewer: Viewer) -> str:
    return key if viewer.sees(key.partition("/")[0]) else ELSEWHERE


def saved_over_time(stops: Iterable[Any]) -> tuple[tuple[float, float], ...]:
    """Return (time in s, GPU-hours) of the stops whose saving is known, oldest first."""
    return tuple(sorted((s.at, s.hours) for s in stops if s.hours is not None))


__all__ = ["ELSEWHERE", "GROUPS", "STATES", "Handover", "NotThere", "Page", "Pages", "curve_of"]
