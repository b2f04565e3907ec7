"""Every row of a report obeys the rule of its cause (docs/parity.md), as read from the row's own words."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from parity_world import CALIBRATED, told

from controller.parity.compare import Difference, compare
from controller.parity.scatter import drawn, shaken
from controller.parity.sides import KINDS
from controller.parity.simulated import simulated
from controller.parity.timeline import Event, Timeline
from controller.parity.trial import compressed, trial
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
    """Two runs, and what a row may say of them."""

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
                    time <= start and self.was(other, after[2], time - sign * shift)
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

    def queue(self, words: str, mover: tuple[str, str, int], moved: float) -> None:
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
            # One of its stays that the late run has had not begun in the early one.
            begun = sum(stay.admitted < start for stay in self.stays[held[4]][held[2]])
            ended = [stay.freed for stay in self.stays[held[1]][held[2]]]
            assert min(range(len(ended)), key=lambda n: abs(ended[n] - float(held[3]))) >= begun
            return
        here, there = rf"{AFTER} \(simulator: {WHEN}\)", rf"{AFTER} \(cluster: {WHEN}\)"
        if after := re.match(rf"in the cluster it came {here}, in the simulator {there}(; .*)?$", words):
            for where, other, (gap, moment, when) in (
                ("cluster", "simulator", after.group(1, 2, 3)),
                ("simulator", "cluster", after.group(4, 5, 6)),
            ):
                assert self.was(where, moment, self.runs[where][mover].time - float(gap))
                if when == "never":
                    assert len(self.times(other, moment)) < len(self.times(where, moment))
                else:
                    assert self.was(other, moment, float(when.removesuffix(" s")))
            assert after[2] != after[5] or "leaving" in after[2]  # of another stay of the same job
            return
        said = re.match(
            rf"in the (\w+) {EVENT} came (\d+\.\d) s before it, in the (\w+) (after it|not at all)", words
        )
        assert said
        late, early = self.runs[said[1]], self.runs[said[6]]
        assert (said[1] == "cluster") is (moved > 0)
        other = event_of(*said.group(2, 3, 4))
        if mover[2] > 1:  # it waited already
            assert self.stays[said[1]][mover[1]][mover[2] - 2].freed <= late[other].time
        gap = late[mover].time - late[other].time
        assert gap == pytest.approx(float(said[5]), abs=0.06)
        assert borne_out(gap, abs(moved))
        if said[7] == "after it":
            assert early[other].time > early[mover].time
        else:
            assert other not in early

    def follows(self, words: str, mover: tuple[str, str, int], moved: float | None) -> None:
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
        if d.kind == "queue":
            mine, other = ("cluster", "simulator") if d.sim is None else ("simulator", "cluster")
            if vain := re.match(rf"decided {AFTER} \({other}: {WHEN}\); (.*)$", d.cause):
                assert self.was(mine, vain[2], d.event.time - float(vain[1]))
                assert vain[3] == "never" or self.was(other, vain[2], float(vain[3].removesuffix(" s")))
                left = self.stays[mine][d.event.key][d.event.nth - 1].freed
                if first := re.match(rf"before it had left, {EVENT} had got other GPUs", vain[4]):
                    begun = self.runs[mine][event_of(*first.group(1, 2, 3))].time
                    assert d.event.time < begun < left + 1.5
                else:
                    assert vain[4] == "nobody else had got its GPUs when it was back"
                return
            taker = re.match(rf"made way for {EVENT} at (\d+\.\d) s; in the {other} (.*)$", d.cause)
            assert taker
            assert float(taker[4]) >= d.event.time - ROUNDED
            start = event_of(*taker.group(1, 2, 3))
            if after := re.fullmatch(rf"that came after {MOMENT}", taker[5]):
                assert any(time <= self.runs[other][start].time for time in self.times(other, after[1]))
            elif taker[5] == "that start is not":
                assert start not in self.runs[other]
            else:
                assert taker[5] == "it never did for that job"
        elif d.kind == "follows":
            self.follows(d.cause, d.event.name, None)
        else:
            assert d.kind in ("delay", "unexplained")


def without_nodes(timeline: Timeline) -> Timeline:
    """As in recordings of before."""
    return Timeline(
        tuple(replace(job, stays=tuple(replace(s, nodes=()) for s in job.stays)) for job in timeline.jobs)
    )


def played(policy: str, seed: int) -> tuple[Timeline, Timeline]:
    """The trial as simulated, and with other delays, as a cluster might have run it."""
    sixty = trial(read([TRACE]), minutes=25.0)
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
    checked = Checked(sim, cluster, differences)
    for difference in differences:
        checked.row(difference)
