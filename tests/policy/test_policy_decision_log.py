"""The decision log replays byte for byte, and says clearly what it cannot read."""

from __future__ import annotations

import json
import math

import pytest

from controller.policy import decision_log
from controller.policy.codec import decode, dumps, encode
from controller.policy.job.record import JobRecord
from controller.policy.job.types import Desired, Observed, ScrapeOutcome, ScrapeView
from controller.policy.types import EvalPoint, NodeView, PolicySpec, PoolSnapshot
from tests.support.policy_world import PolicyWorld, logged_plans


def recorded_run() -> list[str]:
    """A whole story, every plan of it logged."""
    with logged_plans() as lines:
        world = PolicyWorld({"n1": 2, "n2": 2})
        world.submit("ns/a", 2, 2)
        world.submit("ns/b", 2, 2)
        world.settle()
        for score in (0.1, 0.3, 0.5, math.nan, 0.45, 0.4, 0.35):
            world.scores("ns/a", score)
            world.settle()
    assert world.jobs["ns/b"].started == [1]
    return lines


def test_every_line_of_a_whole_story_replays_byte_for_byte() -> None:
    lines = recorded_run()
    assert len(lines) > 50
    replayed = list(decision_log.replay(lines))
    assert all(r.same for r in replayed)
    assert {r.kind for r in replayed} == {"job", "pool"}
    assert {r.subject for r in replayed} == {"ns/a", "ns/b", "p"}


def test_a_changed_decision_is_found() -> None:
    lines = recorded_run()
    stops = [i for i, text in enumerate(lines) if '"grants":[{' in text]
    entry = json.loads(lines[stops[0]])
    entry["decision"]["grants"] = []
    lines[stops[0]] = dumps(entry)
    differing = [r.line for r in decision_log.replay(lines) if not r.same]
    assert differing == [stops[0] + 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"v":5,"kind":"pool"', "line 1: not JSON .*cut off"),
        (
            '{"v":99,"kind":"pool"}',
            "line 1: version 99, this evalstop reads version 5: it is of a newer evalstop; "
            "replay it with the one that wrote it",
        ),
        (
            '{"v":1,"kind":"pool"}',
            "line 1: version 1, .* version 5: it is of an older evalstop; replay it with",
        ),
        ("[]", r"line 1: version None, .*; is it a decision log\?"),
        ('{"v":[4]}', r"line 1: version \[4\], .*; is it a decision log\?"),
        ('{"v":5,"kind":"soup","input":{},"now":1,"decision":{}}', "line 1: KeyError"),
        (
            '{"v":5,"kind":"pool","input":{"pool":3},"now":1,"decision":{}}',
            "PoolSnapshot.pool: expected str, got 3",
        ),
        ('{"v":5,"kind":"pool","input":{"poool":3},"now":1,"decision":{}}', "unknown field 'poool'"),
    ],
)
def test_what_cannot_be_read_is_named(text: str, message: str) -> None:
    with pytest.raises(decision_log.LogError, match=message):
        list(decision_log.replay([text]))


def test_non_finite_numbers_survive() -> None:
    view = ScrapeView(ScrapeOutcome.OK, points=(EvalPoint(1, math.inf), EvalPoint(2, -math.inf)))
    assert decode(Observed, json.loads(dumps(encode(Observed(scrape=view))))) == Observed(scrape=view)


def test_desired_and_snapshot_survive() -> None:
    desired = Desired("ns/a", "u", 1, "gold", 2, 1, PolicySpec("kDeclines", {"k": 3, "min_delta": 0.5}))
    assert decode(Desired, json.loads(dumps(encode(desired)))) == desired
    snapshot = PoolSnapshot("p", PolicySpec("fifo", {"backfill": True}), (NodeView("n", 2),), ())
    assert decode(PoolSnapshot, json.loads(dumps(encode(snapshot)))) == snapshot
    assert decode(JobRecord, json.loads(dumps(encode(JobRecord())))) == JobRecord()
