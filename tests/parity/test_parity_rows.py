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
        self.runs = {"simulator": self.events(sim), "cluster": self.events(cluster)}
        self.stays = {
            where: {job.key: job.stays for job in timeline.jobs}
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
        if waited := re.match(r"in the (\w+) it waited for (\S+), which left", words):
            assert (waited[1] == "cluster") is (moved > 0)
            start = self.runs[waited[1]][mover].time
            assert any(0 <= start - stay.freed < 1.5 for stay in self.stays[waited[1]][waited[2]])

    def queue(self, words: str, mover: tuple[str, str, int], moved: float) -> None:
        if made_way := re.match(rf"made way for {EVENT}, in the simulator for {EVENT}$", words):
            here, there = event_of(*made_way.group(1, 2, 3)), event_of(*made_way.group(4, 5, 6))
            assert here[1] != there[1]
            assert 0 <= self.runs["cluster"][here].time - self.runs["cluster"][mover].time < 30
            assert 0 <= self.runs["simulator"][there].time - self.runs["simulator"][mover].time < 30
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
            taker = re.match(rf"made way for {EVENT} at (\d+\.\d) s; in the \w+ it never did", d.cause)
            assert taker
            assert float(taker[4]) >= d.event.time - ROUNDED
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
