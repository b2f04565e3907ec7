"""Every row of a report obeys the rule of its cause (docs/understand/parity.md), by its own words."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from parity_world import CALIBRATED, DELAYS, told

from controller.parity.compare import Difference, compare
from controller.parity.compressed_trace import compress_trace, compressed
from controller.parity.pairing import paired
from controller.parity.run_pair import KINDS
from controller.parity.run_timeline import SKEW
from controller.parity.scatter import drawn, shaken
from controller.parity.simulated import simulated
from controller.parity.timeline import Event, Stay, Timeline
from sim import specs
from sim.traces import read

TRACE = Path(__file__).resolve().parents[2] / "examples" / "traces" / "sixty.jsonl"
POLICIES = ("fifo", "srtf", "las:first_threshold=60000,second_threshold=180000")
ROUNDED = 0.1  # s: of two numbers with one digit
SHIFT = r"(\d+\.\d) s (later|earlier)"
EVENT = r"(start|preempt|stop|end) of (\S+?)(?: \(number (\d+)\))?"
MOMENT = r"(start of \S+(?: \(number \d+\))?|\S+'s (?:leaving|coming (?:back )?into the queue))"
AFTER = rf"(\d+\.\d) s after {MOMENT}"
WHEN = r"(\d+\.\d s|never)"
HELD = r"held GPUs until (\d+\.\d) s"
LEAD = re.compile(rf"{SHIFT}, (past|passed by) {EVENT} \({SHIFT}\)(?:: (.*))?$")


def seconds(number: str, way: str) -> float:
    return float(number) * (-1 if way in ("earlier", "shorter") else 1)


def event_of(kind: str, key: str, number: str | None) -> tuple[str, str, int]:
    return kind, key, int(number or 1)


def borne_out(by: float, moved: float) -> bool:
    """Of numbers that were rounded."""
    return by * moved >= 0 and abs(by) >= abs(moved) / 2 - ROUNDED


class Checked:
    """Two runs, paired, and what a row may say of them."""

    def __init__(self, sim: Timeline, cluster: Timeline, differences: tuple[Difference, ...]) -> None:
        assert {d.kind for d in differences} <= set(KINDS) - {"unexplained"}
        self.runs = {"simulator": self.events(sim), "cluster": self.events(cluster)}
        self.stays = {
            where: {job.key: job.stays for job in timeline.jobs}
            for where, timeline in (("simulator", sim), ("cluster", cluster))
        }
        self.submitted = {
            where: {job.key: job.submitted for job in timeline.jobs}
            for where, timeline in (("simulator", sim), ("cluster", cluster))
        }
        self.differing = {d.event.name for d in differences}

    @staticmethod
    def events(timeline: Timeline) -> dict[tuple[str, str, int], Event]:
        return {event.name: event for event in timeline.events()}

    def shift(self, name: tuple[str, str, int]) -> float:
        return self.runs["cluster"][name].time - self.runs["simulator"][name].time

    def row(self, d: Difference) -> None:
        lead = LEAD.match(d.cause)
        if lead is None:
            self.without_a_size(d)
            return
        own, partner = seconds(*lead.group(1, 2)), seconds(*lead.group(7, 8))
        whom = event_of(*lead.group(4, 5, 6))
        assert own == pytest.approx(self.shift(d.event.name), abs=0.06)
        assert partner == pytest.approx(self.shift(whom), abs=0.06)
        mover, moved = (d.event.name, own) if lead.group(3) == "past" else (whom, partner)
        # What is explained is at least half of what changed the two's places, in its direction.
        assert borne_out(moved, own - partner if mover == d.event.name else partner - own)
        words = lead.group(9) or ""
        check = getattr(self, d.kind)
        check(words, mover, moved)

    def stay(self, where: str, name: tuple[str, str, int]) -> Stay:
        """The one that a start begins or a preemption ends."""
        time = self.runs[where][name].time
        (found,) = (s for s in self.stays[where][name[1]] if time in (s.admitted, s.decided))
        return found

    def since(self, where: str, name: tuple[str, str, int]) -> float:
        """From when on a job had waited for a start."""
        stays = self.stays[where][name[1]]
        place = stays.index(self.stay(where, name))
        return stays[place - 1].freed if place else self.submitted[where][name[1]]

    def waits(self, where: str, key: str, now: float) -> bool:
        stays = self.stays[where][key]
        began = [self.submitted[where][key], *(stay.freed for stay in stays)]
        return any(since <= now < stay.admitted for since, stay in zip(began, stays, strict=False))

    def trained(self, where: str, key: str, before: float) -> float:
        lost = DELAYS["start_delay"] + DELAYS["suspend_delay"]
        return sum(max(0, s.freed - s.admitted - lost) for s in self.stays[where][key] if s.freed <= before)

    def times(self, where: str, moment: str) -> list[float]:
        """When such things were in that run."""
        if said := re.fullmatch(EVENT, moment):
            event = self.runs[where].get(event_of(*said.group(1, 2, 3)))
            return [] if event is None else [event.time]
        key, what = moment.split("'s ")
        stays = self.stays[where][key]
        if what == "leaving":
            return [stay.freed for stay in stays]
        return [stay.freed for stay in stays[:-1]] if "back" in what else [self.submitted[where][key]]

    def was(self, where: str, moment: str, at: float) -> bool:
        """Whether there was such a thing then, as rounded."""
        return any(time == pytest.approx(at, abs=0.06) for time in self.times(where, moment))

    def came(self, where: str, moment: str, gap: str, at: float) -> bool:
        """Whether there was such a thing so long before; what was noted later is said to be 0.0 s."""
        more = SKEW if float(gap) == 0 else 0.0
        return any(abs(time - at + float(gap)) <= 0.06 + more for time in self.times(where, moment))

    def delay(self, words: str, mover: tuple[str, str, int], moved: float) -> None:
        parts = re.findall(r"took (\d+\.\d) s (longer|shorter) than", words)
        assert parts
        assert borne_out(sum(seconds(*part) for part in parts), moved)

    def carried(self, words: str, mover: tuple[str, str, int], moved: float) -> None:
        by = [seconds(*said) for said in re.findall(SHIFT, words)]
        if trained := re.search(r"trained (\d+\.\d) s (less|more)", words):
            by.append(float(trained[1]) * (-1 if trained[2] == "more" else 1))
        assert by
        assert borne_out(sum(by), moved)
        if after := re.match(rf"(?:in the (\w+) )?it came after {MOMENT}, which was {SHIFT}$", words):
            shift = seconds(*after.group(3, 4))
            for where in (after[1],) if after[1] else ("simulator", "cluster"):
                other, sign = ("simulator", 1) if where == "cluster" else ("cluster", -1)
                # It was then that much before itself in the other run, and not after the event in this one.
                start = self.runs[where][mover].time
                assert any(
                    time <= start + SKEW and self.was(other, after[2], time - sign * shift)
                    for time in self.times(where, after[2])
                )
        elif held := re.match(rf"in the (\w+) (\S+) {HELD}, in the (\w+) until (\d+\.\d) s$", words):
            self.held(held[1], held[2], float(held[3]), mover, moved)
            assert self.was(held[4], f"{held[2]}'s leaving", float(held[5]))
            assert float(held[5]) <= self.runs[held[4]][mover].time + ROUNDED

    def held(self, where: str, key: str, until: float, mover: tuple[str, str, int], moved: float) -> None:
        """It held GPUs shortly before the start that came later."""
        assert (where == "cluster") is (moved > 0)
        start = self.runs[where][mover].time
        assert self.was(where, f"{key}'s leaving", until)
        assert start - abs(moved) / 2 - ROUNDED <= until <= start + ROUNDED

    def another_first(self, words: str, mover: tuple[str, str, int], moved: float) -> None:
        if made_way := re.match(rf"made way for {EVENT}, in the simulator for {EVENT}$", words):
            here, there = event_of(*made_way.group(1, 2, 3)), event_of(*made_way.group(4, 5, 6))
            assert here[1] != there[1]
            assert 0 <= self.runs["cluster"][here].time - self.runs["cluster"][mover].time < 30
            assert 0 <= self.runs["simulator"][there].time - self.runs["simulator"][mover].time < 30
            return
        if held := re.match(
            rf"in the (\w+) (\S+) {HELD}, in the (\w+) it had not got any before (\d+\.\d) s$", words
        ):
            self.held(held[1], held[2], float(held[3]), mover, moved)
            start = self.runs[held[4]][mover].time
            assert float(held[5]) == pytest.approx(start, abs=0.06)
            # The stay of that number had not begun in the early one, if it has it at all.
            (stay,) = (
                s for s in self.stays[held[1]][held[2]] if s.freed == pytest.approx(float(held[3]), abs=0.06)
            )
            assert all(s.admitted >= start for s in self.stays[held[4]][held[2]] if s.began == stay.began)
            return
        said = re.match(
            rf"in the (\w+) {EVENT} came (\d+\.\d) s before it, in the (\w+) (after it|not at all); (.*)$",
            words,
        )
        assert said
        late, early = self.runs[said[1]], self.runs[said[6]]
        assert (said[1] == "cluster") is (moved > 0)
        other = event_of(*said.group(2, 3, 4))
        assert self.since(said[1], mover) <= late[other].time
        gap = late[mover].time - late[other].time
        assert gap == pytest.approx(float(said[5]), abs=0.06)
        assert borne_out(gap, abs(moved))
        if said[7] == "after it":
            assert early[other].time > early[mover].time
        else:
            assert other not in early
        assert self.submitted[said[1]][other[1]] <= early[mover].time
        soon = late[other].time <= early[mover].time + 1.5
        assert soon or self.stay(said[1], other).freed >= late[mover].time - 1.5
        words, _, first = said[8].partition("; first of these two jobs' differences: ")
        self.why_first(words, said[6], mover, other)
        if first:  # the order follows from it
            before = event_of(*re.fullmatch(EVENT, first).groups())  # type: ignore[union-attr]
            assert before in self.differing
            assert before[1] in (mover[1], other[1])
            assert late[before].time < late[other].time

    def why_first(
        self, words: str, early: str, mover: tuple[str, str, int], other: tuple[str, str, int]
    ) -> None:
        if there := re.match(r"there (\S+) was not in the queue when it started", words):
            assert there[1] == other[1]
            assert not self.waits(early, other[1], self.runs[early][mover].time)
            return
        found = re.findall(r"(\S+) had trained (\d+\.\d) s (less|more)", words)
        for key, number, way in found:
            name = mover if key == mover[1] else other
            assert name[1] == key
            here, there = (
                self.trained(w, key, self.runs[w][name].time)
                if name in self.runs[w]
                else self.trained(w, key, self.stays[w][key][-1].admitted)
                for w in ("cluster", "simulator")
            )
            assert here - there == pytest.approx(float(number) * (-1 if way == "less" else 1), abs=0.06)
        assert found or re.match(rf"it came {AFTER} \(", words)

    def after_another(self, words: str, mover: tuple[str, str, int], moved: float) -> None:
        here, there = rf"{AFTER} \(simulator: {WHEN}\)", rf"{AFTER} \(cluster: {WHEN}\)"
        if after := re.match(rf"in the cluster it came {here}, in the simulator {there}(; .*)?$", words):
            for where, other, (gap, moment, when) in (
                ("cluster", "simulator", after.group(1, 2, 3)),
                ("simulator", "cluster", after.group(4, 5, 6)),
            ):
                assert self.came(where, moment, gap, self.runs[where][mover].time)
                if when == "never":
                    assert len(self.times(other, moment)) < len(self.times(where, moment))
                else:
                    assert self.was(other, moment, float(when.removesuffix(" s")))
            assert after[2] != after[5] or "leaving" in after[2]  # of another stay of the same job
            return
        raise AssertionError(words)

    def took(self, where: str, preempted: tuple[str, str, int], start: tuple[str, str, int]) -> None:
        """It started on one of those nodes when they were free, or with others that were freed for it."""
        left, took = self.stay(where, preempted), self.stay(where, start)
        assert left.freed - SKEW <= took.admitted < left.freed + 30
        assert not (left.nodes and took.nodes) or set(left.nodes) & set(took.nodes)

    def nobody_took(self, where: str, preempted: tuple[str, str, int]) -> None:
        """The job itself was back first, or nobody came within a while."""
        left = self.stay(where, preempted)
        back = [s.admitted for s in self.stays[where][preempted[1]] if s.admitted >= left.freed]
        others = [
            s.admitted
            for key, stays in self.stays[where].items()
            for s in stays
            if key != preempted[1]
            and (not (left.nodes and s.nodes) or set(left.nodes) & set(s.nodes))
            and left.freed - SKEW <= s.admitted < min([*back, left.freed + 1.0])
        ]
        assert not others

    def follows(self, words: str, mover: tuple[str, str, int], moved: float) -> None:
        if re.match(rf"after {EVENT}$", words):
            self.earlier(words, mover)
        elif "; first of these two jobs' differences: " in words:
            self.another_first(words, mover, moved)
        else:
            self.carried(words, mover, moved)

    def order(self, words: str, mover: tuple[str, str, int], moved: float) -> None:
        if words.startswith("in the cluster it came "):
            self.after_another(words, mover, moved)
        else:
            assert "first of these two jobs' differences" not in words
            self.another_first(words, mover, moved)

    def earlier(self, words: str, mover: tuple[str, str, int]) -> None:
        """A difference of the same job."""
        said = re.match(rf"after {EVENT}$", words)
        assert said
        earlier = event_of(*said.group(1, 2, 3))
        assert earlier[1] == mover[1]
        assert earlier in self.differing

    def unexplained(self, words: str, mover: tuple[str, str, int], moved: float) -> None:
        assert not words

    def without_a_size(self, d: Difference) -> None:
        """A tie, or what only one of the two has."""
        if d.kind == "tie":
            said = re.findall(r"(\d+\.\d) s (?:from|in the cluster|before)", d.cause)
            assert said
            assert all(float(apart) <= 1.0 for apart in said)
            return
        assert (d.sim is None) or (d.cluster is None)
        mine, other = ("cluster", "simulator") if d.sim is None else ("simulator", "cluster")
        if d.kind == "order" and d.cause.startswith("made way"):
            taker = re.match(rf"made way for {EVENT} at (\d+\.\d) s; in the {other} (.*)$", d.cause)
            assert taker
            start = event_of(*taker.group(1, 2, 3))
            self.took(mine, d.event.name, start)
            assert self.since(mine, start) <= d.event.time
            if after := re.fullmatch(rf"that came after {MOMENT}", taker[5]):
                assert any(
                    time <= self.runs[other][start].time + SKEW for time in self.times(other, after[1])
                )
            elif taker[5] == "that start is not":
                assert start not in self.runs[other]
            else:
                assert taker[5] == "it never did for that job"
        elif d.kind == "order" and d.event.kind == "start":
            back = re.match(rf"it came {AFTER} \({other}: {WHEN}\); in the {other} it (.*)$", d.cause)
            assert back
            assert self.came(mine, back[2], back[1], d.event.time)
            assert back[4] == (
                "waited on" if self.waits(other, d.event.key, d.event.time) else "was on GPUs already"
            )
        elif d.kind == "order":
            vain = re.match(rf"decided {AFTER} \({other}: {WHEN}\); (.*)$", d.cause)
            assert vain
            assert self.came(mine, vain[2], vain[1], d.event.time)
            assert vain[3] == "never" or self.was(other, vain[2], float(vain[3].removesuffix(" s")))
            left = self.stay(mine, d.event.name).freed
            if first := re.match(rf"before it had left, {EVENT} had got other GPUs", vain[4]):
                begun = self.runs[mine][event_of(*first.group(1, 2, 3))].time
                assert d.event.time < begun < left + 1.5
            elif went := re.match(
                rf"its GPUs went to {EVENT}, which came into the queue (\d+\.\d) s later", vain[4]
            ):
                start = event_of(*went.group(1, 2, 3))
                self.took(mine, d.event.name, start)
                assert self.since(mine, start) - d.event.time == pytest.approx(float(went[4]), abs=0.06)
            else:
                assert vain[4] == "nobody else had got its GPUs when it was back"
                self.nobody_took(mine, d.event.name)
        elif d.kind == "follows" and d.cause.startswith("in the"):
            over = re.match(rf"in the {other} it was (stopped|at its end) at (\d+\.\d) s$", d.cause)
            assert over
            assert float(over[2]) <= d.event.time + ROUNDED
        elif d.kind == "follows":
            self.earlier(d.cause, d.event.name)
        else:
            assert d.kind in ("delay", "unexplained")


def without_nodes(timeline: Timeline) -> Timeline:
    """As in recordings of before."""
    return Timeline(
        tuple(replace(job, stays=tuple(replace(s, nodes=()) for s in job.stays)) for job in timeline.jobs)
    )


def played(policy: str, seed: int) -> tuple[Timeline, Timeline]:
    """The trial as simulated, and with other delays, as a cluster might have run it."""
    sixty = compress_trace(read([TRACE]), minutes=25.0)
    spec = compressed(specs.policy(policy), sixty.speed)
    rng = random.Random(seed)
    other = shaken(sixty, CALIBRATED, rng)
    sim = simulated(sixty, spec, CALIBRATED.latencies)
    return sim, simulated(other, spec, CALIBRATED.latencies, partial(drawn, CALIBRATED, rng))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("nodes", [True, False])
def test_every_row_obeys_its_rule(policy: str, seed: int, nodes: bool) -> None:
    sim, cluster = played(policy, seed)
    assert all(stay.nodes for run in (sim, cluster) for job in run.jobs for stay in job.stays)
    if not nodes:
        sim, cluster = without_nodes(sim), without_nodes(cluster)
    differences = compare(policy, sim, cluster, told(cluster), CALIBRATED).differences
    checked = Checked(*paired(sim, cluster), differences)
    for difference in differences:
        checked.row(difference)
