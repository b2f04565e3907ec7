"""Quotas in the simulator: the same policy objects, told of events, on slots and on nodes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from controller.policy.queueing import EvalStop, make_policy
from controller.policy.types import PolicySpec, Quota
from sim import quotas as text
from sim.cluster import Cluster
from sim.engine import EventLog, simulate
from sim.latencies import Latencies
from sim.workload import Workload

FIFO = PolicySpec("fifo", {"backfill": True})
POLICIES = [
    FIFO,
    PolicySpec("fifo"),
    PolicySpec("srtf"),
    PolicySpec("las"),
    PolicySpec("srtf", {"max_wait": 50.0}),
]
CLUSTERS = [Cluster.slots(16), Cluster.of_nodes([8, 8])]


def workload(*jobs: tuple[str, float, int, float]) -> Workload:
    ordered = sorted(jobs, key=lambda job: job[1])
    return Workload(
        [at for _, at, _, _ in ordered],
        [gpus for _, _, gpus, _ in ordered],
        [work for *_, work in ordered],
        keys=[key for key, *_ in ordered],
    )


def run(
    jobs: Workload,
    cluster: Cluster,
    quotas: tuple[Quota, ...],
    policy: PolicySpec = FIFO,
    log: EventLog | None = None,
) -> Any:
    lasts = Latencies(handover_delay=2.0, preempt_delay=3.0)
    made = EvalStop(make_policy(policy, quotas))
    return simulate(jobs, cluster, made, latencies=lasts, event_log=log or EventLog())


def most_held(log: EventLog, gpus: dict[str, int], namespace: str) -> int:
    """Return the most GPUs that the jobs of a namespace ever had at once, by the decisions alone."""
    held, most = dict[str, int](), 0
    for line in log.lines:
        _, verb, key, *_ = line.split()
        if key.startswith(f"{namespace}/"):
            if verb == "admit":
                held[key] = gpus[key]
            elif verb in ("end", "free", "stop"):
                held.pop(key, None)
        most = max(most, sum(held.values()))
    return most


@pytest.mark.parametrize("cluster", CLUSTERS, ids=["slots", "nodes"])
def test_what_is_lent_comes_back_in_time(cluster: Cluster) -> None:
    jobs = workload(("x/1", 0.0, 8, 100.0), ("x/2", 1.0, 8, 100.0), ("a/1", 10.0, 8, 20.0))
    found = run(jobs, cluster, (Quota(("a",), 8),))
    assert found.started[2] == pytest.approx(15.0)  # it is told, and off its GPUs
    assert dict(found.preempted) == {1: 1}
    assert run(jobs, cluster, ()).started[2] >= 100.0


@settings(max_examples=30, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "x"]),
            st.integers(0, 60),
            st.sampled_from([1, 2, 4, 8]),
            st.integers(1, 40),
        ),
        min_size=1,
        max_size=25,
    ),
    st.sampled_from(POLICIES),
    st.sampled_from(CLUSTERS),
)
def test_all_end_and_nobody_gets_above_the_limit(
    rows: list[tuple[str, int, int, int]], policy: PolicySpec, cluster: Cluster
) -> None:
    jobs = workload(*((f"{ns}/{n}", float(at), gpus, float(w)) for n, (ns, at, gpus, w) in enumerate(rows)))
    log = EventLog()
    found = run(jobs, cluster, (Quota(("a",), 8), Quota(("b",), 4, 8)), policy, log)
    assert min(found.ended) >= 0.0
    held = most_held(log, {f"{ns}/{n}": gpus for n, (ns, _, gpus, _) in enumerate(rows)}, "b")
    assert held <= 8
    few = [gpus for ns, _, gpus, _ in rows if ns == "b"]
    assert held >= max(few, default=0), "each of its jobs has run"


def test_quotas_are_read_as_they_are_written() -> None:
    one, two = text.quota("a,b=8:16"), text.quota("c=0")
    assert (one, two) == (Quota(("a", "b"), 8, 16), Quota(("c",), 0, None))
    assert [text.text(q) for q in (one, two)] == ["a,b=8:16", "c=0"]
    assert text.read(text.entry((one, two))) == (one, two)


@pytest.mark.parametrize(
    ("given_", "words"),
    [
        (["a"], "quota: 'a' is not allowed, expected NAMESPACE,…=GUARANTEED"),
        (["a=x"], "quota: 'a=x' is not allowed"),
        (["a=8:4"], "quota: 'a=8:4' is not allowed, expected a limit of at least the 8 guaranteed"),
        (["a=8", "b,a=1"], "quota: namespace 'a' is named twice"),
    ],
)
def test_bad_quotas_are_named(given_: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        text.checked(map(text.quota, given_))


def test_a_job_larger_than_its_limit_is_named() -> None:
    with pytest.raises(ValueError, match="expected a limit of at least the 8 GPUs of a/1"):
        text.check_fits((Quota(("a",), 0, 4),), [("a/1", 8)])
