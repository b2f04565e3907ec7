"""The ledger and its judgements: tables of who may go where, and what must hold for every history."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.extender.requeueing import RefusedPods
from controller.policy.node.filter import Refusal, judge, not_ready, spare
from controller.policy.node.ledger import SIGNATURE, Bound, Gang, GpuLedger, PodRequest
from controller.policy.node.score import scores
from controller.policy.types import Reservation

NOW = 1000.0
NODES = ["n0", "n1", "n2", "n3"]


def member(gpus: int = 8, job: str = "t/a", admission: int = 1, index: int | None = 0) -> PodRequest:
    return PodRequest(f"t/{job}-{index}", gpus, job, admission, index)


def stranger(gpus: int = 8) -> PodRequest:
    return PodRequest("t/stranger", gpus)


def gang(job: str = "t/a", admission: int = 1, nodes: Iterable[str] = (), **more: float | None) -> Gang:
    return Gang(job, admission, tuple(nodes), 8, more.get("expires"))


@pytest.fixture
def ledger() -> GpuLedger:
    """Four nodes of eight GPUs, the first two in rack r1."""
    made = GpuLedger()
    for name in NODES:
        made.put_node(name, 8, "r1" if name in ("n0", "n1") else "r2")
    return made


def passed(ledger: GpuLedger, pod_request: PodRequest, now: float = NOW) -> list[str]:
    found = judge(ledger, pod_request, NODES, now)
    assert sorted([*found.passed, *found.refused]) == NODES
    assert all(why.startswith(SIGNATURE) for why in found.refused.values())
    return found.passed


# -- who may go where ----------------------------------------------------------------------------------


def test_each_member_may_go_to_its_planned_node_and_to_no_other(ledger: GpuLedger) -> None:
    ledger.put_job("t/a", 8, gang(nodes=["n2", "n1"]))
    assert passed(ledger, member(index=0)) == ["n2"]
    assert passed(ledger, member(index=1)) == ["n1"]
    assert passed(ledger, member(index=2)) == []


@pytest.mark.parametrize(
    ("seen", "asked", "reason", "text"),
    [
        (None, 1, Refusal.NOT_SEEN, "admission 1 of t/a not seen yet (the newest seen: none)"),
        (1, 2, Refusal.NOT_SEEN, "admission 2 of t/a not seen yet (the newest seen: 1)"),
        (3, 2, Refusal.OVER, "admission 2 of t/a is over: the present one is 3"),
    ],
)
def test_a_pod_of_another_admission_goes_nowhere(
    ledger: GpuLedger, seen: int | None, asked: int, reason: Refusal, text: str
) -> None:
    if seen is not None:
        ledger.put_job("t/a", 8, gang(admission=seen, nodes=["n0"]))
    found = judge(ledger, member(admission=asked), NODES, NOW)
    assert (found.passed, found.reason) == ([], reason)
    assert set(found.refused.values()) == {SIGNATURE + text}
    # Waiting helps a pod that is early; killing others helps neither.
    assert found.final is (reason is Refusal.OVER)


def test_without_an_index_a_member_may_take_what_its_siblings_left(ledger: GpuLedger) -> None:
    ledger.put_job("t/a", 8, gang(nodes=["n0", "n1", "n1"]))
    assert passed(ledger, member(index=None)) == ["n0", "n1"]
    ledger.put_bound("u1", Bound("t/a", 1, "n0", 8))
    assert passed(ledger, member(index=None)) == ["n1"]
    ledger.put_bound("u2", Bound("t/a", 1, "n1", 8))
    assert passed(ledger, member(index=None)) == ["n1"]
    ledger.put_bound("u3", Bound("t/a", 1, "n1", 8))
    assert passed(ledger, member(index=None)) == []
    ledger.drop_bound("u2")
    assert passed(ledger, member(index=None)) == ["n1"]


def test_others_are_kept_off_a_planned_node_until_the_member_is_bound(ledger: GpuLedger) -> None:
    ledger.put_job("t/a", 8, gang(nodes=["n0", "n1"]))
    assert passed(ledger, stranger(1)) == ["n2", "n3"]
    ledger.put_bound("u0", Bound("t/a", 1, "n0", 4))
    # Bound: whether one GPU more fits is kube-scheduler's question again.
    assert passed(ledger, stranger(1)) == ["n0", "n2", "n3"]
    assert passed(ledger, stranger(0)) == NODES


def test_pods_of_an_earlier_admission_take_nothing_of_this_one(ledger: GpuLedger) -> None:
    ledger.put_bound("old", Bound("t/a", 1, "n0", 8))
    ledger.put_job("t/a", 8, gang(admission=2, nodes=["n0"]))
    assert ledger.keeping(NOW) == {"n0": 8}
    ledger.put_bound("adopted", Bound("t/a", 0, "n0", 8))
    assert ledger.keeping(NOW) == {}


def test_an_admission_keeps_its_nodes_no_longer_than_it_says(ledger: GpuLedger) -> None:
    ledger.put_job("t/a", 8, gang(nodes=["n0"], expires=NOW + 10))
    assert passed(ledger, stranger()) == NODES[1:]
    assert (
        "8 GPUs kept for t/a (admission 1) until 1010 s"
        in judge(ledger, stranger(), NODES, NOW).refused["n0"]
    )
    assert ledger.next_expiry(NOW) == NOW + 10
    assert passed(ledger, stranger(), NOW + 10) == NODES
    assert passed(ledger, member(), NOW + 10) == ["n0"]  # its own pods still belong there


def test_a_promise_counts_once_the_source_lets_go(ledger: GpuLedger) -> None:
    ledger.put_job("t/a", 8, gang("t/a", nodes=["n0"]))
    ledger.put_job("t/b", 8, None)
    ledger.put_bound("u", Bound("t/a", 1, "n0", 8))
    ledger.put_reservations("p", [Reservation("t/a", "t/b", ("n0",), NOW + 60, 1)])
    assert ledger.keeping(NOW) == {}
    ledger.drop_bound("u")
    assert ledger.keeping(NOW) == {"n0": 8}  # the source's own plan still stands
    ledger.put_job("t/a", 8, None)
    assert ledger.keeping(NOW) == {"n0": 8}
    assert judge(ledger, stranger(), NODES, NOW).refused == {
        "n0": "evalstop: GPUs of t/a reserved for t/b until 1060 s"
    }
    ledger.put_job("t/b", 8, gang("t/b", nodes=["n1"]))
    assert ledger.keeping(NOW) == {"n1": 8}  # the winner was admitted, elsewhere: its plan counts
    ledger.put_job("t/b", 8, gang("t/b", admission=0, nodes=["n1"]))
    assert ledger.keeping(NOW) == {"n0": 8, "n1": 8}  # an earlier admission of the winner: not this one
    assert ledger.keeping(NOW + 60) == {"n1": 8}
    ledger.drop_reservations("p")
    ledger.drop_job("t/b")
    assert ledger.keeping(NOW) == {}


def test_two_promises_on_one_node_share_what_the_source_has_freed(ledger: GpuLedger) -> None:
    for job, gpus in (("t/a", 8), ("t/b", 4), ("t/c", 4)):
        ledger.put_job(job, gpus, None)
    ledger.put_bound("u", Bound("t/a", 1, "n0", 8))
    reservations = [
        Reservation("t/a", "t/b", ("n0",), NOW + 60, 1),
        Reservation("t/a", "t/c", ("n0",), NOW + 60, 1),
    ]
    ledger.put_reservations("p", reservations)
    assert ledger.keeping(NOW) == {}
    ledger.put_bound("u", Bound("t/a", 1, "n0", 4))
    assert ledger.keeping(NOW) == {"n0": 4}


def test_who_asks_for_more_than_the_books_allow_is_ahead_of_them(ledger: GpuLedger) -> None:
    """kube-scheduler has seen the end of a pod that is still bound here: a promise may be on its way, too."""
    ledger.put_bound("u", Bound("t/a", 1, "n0", 6))
    assert passed(ledger, stranger(2)) == NODES
    found = judge(ledger, stranger(3), [*NODES, "unknown"], NOW)
    assert found.passed == [*NODES[1:], "unknown"]
    assert "gangs hold all but 2 GPUs" in found.refused["n0"]


def test_a_gang_without_a_plan_goes_where_nothing_is_kept(ledger: GpuLedger) -> None:
    ledger.put_job("t/a", 8, gang(nodes=[]))
    ledger.put_job("t/b", 8, gang("t/b", nodes=["n3"]))
    assert passed(ledger, member()) == ["n0", "n1", "n2"]


def test_refusals_name_who_keeps_a_node_or_where_the_pod_belongs(ledger: GpuLedger) -> None:
    ledger.put_job("t/a", 8, gang(nodes=["n0"]))
    ledger.put_job("t/b", 8, gang("t/b", 4, ["n1"], expires=NOW + 5))
    refused = judge(ledger, member(), NODES, NOW).refused
    assert refused["n1"] == "evalstop: 8 GPUs kept for t/b (admission 4) until 1005 s"
    assert refused["n2"] == "evalstop: member 0 of t/a (admission 1) is planned on n0"


def test_refusals_name_no_job_of_another_namespace(ledger: GpuLedger) -> None:
    """They stand in the status of the refused pod, which its whole team reads."""
    ledger.put_job("rich/secret-model", 8, gang("rich/secret-model", 4, ["n0"], expires=NOW + 5))
    for job in ("rich/other-model", "t/b"):
        ledger.put_job(job, 8, None)
    reservations = [
        Reservation("rich/other-model", "t/b", ("n1",), NOW + 60, 1),
        Reservation("t/b", "rich/other-model", ("n2",), NOW + 60, 1),
    ]
    ledger.put_reservations("p", reservations)
    elsewhere = "a job of another namespace"
    spy = PodRequest("spy/pod", 8)
    assert judge(ledger, spy, NODES, NOW).refused == {
        "n0": f"evalstop: 8 GPUs kept for {elsewhere} until 1005 s",
        "n1": f"evalstop: GPUs of {elsewhere} reserved for {elsewhere} until 1060 s",
        "n2": f"evalstop: GPUs of {elsewhere} reserved for {elsewhere} until 1060 s",
    }
    assert judge(ledger, stranger(), NODES, NOW).refused == {
        "n0": f"evalstop: 8 GPUs kept for {elsewhere} until 1005 s",
        "n1": f"evalstop: GPUs of {elsewhere} reserved for t/b until 1060 s",
        "n2": f"evalstop: GPUs of t/b reserved for {elsewhere} until 1060 s",
    }
    own = judge(ledger, PodRequest("rich/pod", 8), NODES, NOW).refused
    assert own["n0"] == "evalstop: 8 GPUs kept for rich/secret-model (admission 4) until 1005 s"
    assert judge(ledger, PodRequest("spy/member", 8, "spy/run", 1, 0), NODES, NOW).refused.keys() == set(
        NODES
    )


@pytest.mark.parametrize("pod_request", [member(), stranger()])
def test_before_it_is_ready_everything_is_refused(pod_request: PodRequest) -> None:
    found = not_ready(NODES)
    assert (found.passed, sorted(found.refused), found.reason) == ([], NODES, Refusal.NOT_READY)
    assert not found.final


def test_preemption_spares_gangs_and_kills_nobody_in_vain(ledger: GpuLedger) -> None:
    ledger.put_job("t/a", 8, gang(nodes=["n0"]))
    ledger.put_bound("gang-pod", Bound("t/b", 1, "n2", 8))
    victims = {"n0": ["plain"], "n1": ["plain-1"], "n2": ["plain-2", "gang-pod"], "n3": []}
    assert spare(ledger, stranger(1), victims, NOW) == {"n1": ["plain-1"]}
    assert spare(ledger, member(), victims, NOW) == {"n0": ["plain"]}
    assert spare(ledger, member(admission=2), victims, NOW) == {}


# -- scores --------------------------------------------------------------------------------------------


def test_scores_follow_the_plan_then_whole_nodes_then_racks_then_small_gaps(ledger: GpuLedger) -> None:
    ledger.put_job("t/a", 8, gang(nodes=["n2", "n3"]))
    assert scores(ledger, member(index=1), NODES, NOW) == [6, 6, 9, 10]
    assert scores(ledger, stranger(8), NODES, NOW) == [6, 6, 6, 6]
    assert scores(ledger, stranger(0), NODES, NOW) == [0, 0, 0, 0]
    ledger.put_job("t/c", 4, Gang("t/c", 1, ("n0",), 4))
    assert scores(ledger, stranger(4), NODES, NOW)[:2] == [2, 0]  # fills the rest of n0, breaks n1
    assert scores(ledger, stranger(2), NODES, NOW)[:2] == [1, 0]
    assert scores(ledger, stranger(2), ["unknown"], NOW) == [0]


# -- refused pods --------------------------------------------------------------------------------------


def refuse(ledger: GpuLedger, refused: RefusedPods, pod_request: PodRequest) -> None:
    refused.answered(ledger, "uid", pod_request, judge(ledger, pod_request, NODES, NOW))


def requeued(ledger: GpuLedger, refused: RefusedPods, now: float = NOW) -> list[str]:
    return [pod.uid for pod in refused.take(ledger, now)]


def test_a_pod_is_requeued_once_when_its_admission_is_seen(ledger: GpuLedger) -> None:
    refused = RefusedPods()
    refuse(ledger, refused, member())
    assert requeued(ledger, refused) == []
    ledger.put_job("t/b", 8, gang("t/b", nodes=["n0"]))
    assert requeued(ledger, refused) == []
    ledger.put_job("t/a", 8, gang(nodes=["n1"]))
    assert requeued(ledger, refused) == ["uid"]
    assert requeued(ledger, refused) == []


def test_a_stranger_is_requeued_when_a_keep_ends(ledger: GpuLedger) -> None:
    refused = RefusedPods()
    ledger.put_job("t/a", 8, gang(nodes=NODES, expires=NOW + 9))
    refuse(ledger, refused, stranger())
    assert requeued(ledger, refused, NOW + 8) == []
    assert requeued(ledger, refused, NOW + 9) == ["uid"]


@pytest.mark.parametrize("how", ["passes", "over", "bound"])
def test_a_pod_that_we_did_not_refuse_is_not_remembered(ledger: GpuLedger, how: str) -> None:
    refused = RefusedPods()
    refuse(ledger, refused, member(admission=2))
    assert len(refused) == 1
    if how == "bound":
        refused.forget("uid")
    else:
        ledger.put_job("t/a", 8, gang(admission=2 if how == "passes" else 3, nodes=["n1"]))
        refuse(ledger, refused, member(admission=2))
    assert len(refused) == 0


def test_what_is_remembered_is_bounded(ledger: GpuLedger) -> None:
    refused = RefusedPods(most=3)
    for index in range(5):
        refused.answered(ledger, f"u{index}", member(), judge(ledger, member(), NODES, NOW))
    ledger.put_job("t/a", 8, gang(nodes=["n1"]))
    assert requeued(ledger, refused) == ["u2", "u3", "u4"]


# -- every history -------------------------------------------------------------------------------------

JOBS = ["t/a", "t/b", "t/c"]
node_names = st.sampled_from(NODES)
Change = Callable[[GpuLedger], None]


def _put_gang(job: str, number: int, nodes: list[str], expires: float | None) -> Change:
    return lambda ledger: ledger.put_job(job, 4, Gang(job, number, tuple(nodes), 4, expires))


def _put_promise(pool: str, reservations: list[tuple[str, str, list[str], float, int]]) -> Change:
    made = [Reservation(s, t, tuple(n), e, a) for s, t, n, e, a in reservations]
    return lambda ledger: ledger.put_reservations(pool, made)


job_names = st.sampled_from(JOBS)
times = st.sampled_from([NOW - 1, NOW, NOW + 1, NOW + 100])
some_nodes = st.lists(node_names, max_size=3)
uids = st.sampled_from([f"u{i}" for i in range(6)])
reservations = st.lists(st.tuples(job_names, job_names, some_nodes, times, st.integers(0, 3)), max_size=3)
# (what it is about, change): of changes about one thing only the last one counts.
changes = st.one_of(
    st.builds(
        lambda j, n, ns, e: (("job", j), _put_gang(j, n, ns, e)),
        job_names,
        st.integers(1, 3),
        some_nodes,
        st.none() | times,
    ),
    job_names.map(lambda j: (("job", j), lambda ledger: ledger.put_job(j, 4, None))),
    job_names.map(lambda j: (("job", j), lambda ledger: ledger.drop_job(j))),
    st.builds(
        lambda u, j, a, n: (("pod", u), lambda ledger: ledger.put_bound(u, Bound(j, a, n, 4))),
        uids,
        job_names,
        st.integers(0, 3),
        node_names,
    ),
    uids.map(lambda u: (("pod", u), lambda ledger: ledger.drop_bound(u))),
    st.builds(lambda h: (("pool", "p"), _put_promise("p", h)), reservations),
    st.builds(lambda h: (("pool", "q"), _put_promise("q", h)), reservations),
    st.builds(
        lambda n, g, r: (("node", n), lambda ledger: ledger.put_node(n, g, r)),
        node_names,
        st.sampled_from([4, 8]),
        st.sampled_from(["", "r1"]),
    ),
    node_names.map(lambda n: (("node", n), lambda ledger: ledger.drop_node(n))),
)

POD_REQUESTS = [
    *(
        PodRequest("t/x", 4, job, number, index)
        for job in JOBS
        for number in (1, 2)
        for index in (None, 0, 1)
    ),
    PodRequest("t/x", 4),
    PodRequest("t/x", 8),
]


def answers(ledger: GpuLedger, now: float) -> list[object]:
    found: list[object] = [ledger.keeping(now)]
    for pod_request in POD_REQUESTS:
        found += [judge(ledger, pod_request, NODES, now), scores(ledger, pod_request, NODES, now)]
    return found


@given(st.lists(changes, max_size=25), st.randoms(use_true_random=False), st.lists(times, max_size=3))
def test_replicas_that_hold_the_same_answer_the_same(
    history: list[tuple[tuple[str, str], Change]], random: object, asked_at: list[float]
) -> None:
    """One has lived through everything, and was asked on the way; the other has read what is."""
    lived, read = GpuLedger(), GpuLedger()
    for _, change in history:
        change(lived)
        for now in asked_at:
            answers(lived, now)
    last = list(dict(history).items())
    random.shuffle(last)  # type: ignore[attr-defined]
    for _, change in last:
        change(read)
    for now in (NOW - 2, NOW, NOW + 50, NOW + 200):
        assert answers(lived, now) == answers(read, now)


@given(st.lists(changes, max_size=25))
def test_no_plan_is_let_down(history: list[tuple[tuple[str, str], Change]]) -> None:
    """Whatever came before: nobody else passes a node that is kept, every node is answered for once, and
    scores stay on kube-scheduler's scale."""
    ledger = GpuLedger()
    for _, change in history:
        change(ledger)
    kept = ledger.keeping(NOW)
    assert all(gpus > 0 for gpus in kept.values())
    for pod_request in POD_REQUESTS:
        found = judge(ledger, pod_request, NODES, NOW)
        assert sorted([*found.passed, *found.refused]) == NODES
        assert (found.reason is None) == (not found.refused)
        if pod_request.gang is None:
            assert not kept.keys() & set(found.passed)
        else:
            plan = ledger.gang(pod_request.gang)
            if found.passed and plan is not None and plan.nodes:
                assert plan.admission == pod_request.admission
                assert set(found.passed) <= set(plan.nodes)
                assert pod_request.member is None or len(found.passed) == 1
        assert all(0 <= score <= 10 for score in scores(ledger, pod_request, NODES, NOW))
