"""Who speaks for a gang: the field, the candidates, and the search where any member may."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.policy.job import (
    ANY,
    Gang,
    Member,
    Page,
    ScrapeOutcome,
    ScrapeView,
    Speaker,
    SpeakerSearch,
    candidates,
    first_asked,
    lives,
)
from controller.policy.job.record import AdmissionRecord, JobRecord, LifeRecord
from controller.policy.types import Attempt, EvalPoint

UID, NUMBER, INTERVAL = "job-uid", 2, 15.0
GANG = Gang(UID, NUMBER, 0)
THREE = tuple(Member(f"uid-{i}", f"run-{i}", i) for i in range(3))
REFUSED = ScrapeView(ScrapeOutcome.UNREACHABLE, "http://x: refused")
MUTE = ScrapeView(ScrapeOutcome.OK, "no identity")


def page(life: str = "a", number: int = NUMBER, uid: str = UID, evals: int = 0) -> ScrapeView:
    attempt = Attempt(number, life)
    points = tuple(EvalPoint(10 * (i + 1), 1.0, attempt) for i in range(evals))
    return ScrapeView(ScrapeOutcome.OK, points=points, page=Page(uid, attempt))


# -- the field -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "speaker"),
    [
        ("Any", ANY),
        (0, Speaker(index=0)),
        (1023, Speaker(index=1023)),
        ("role=learner", Speaker(label=("role", "learner"))),
        ("app.kubernetes.io/component=head", Speaker(label=("app.kubernetes.io/component", "head"))),
    ],
)
def test_the_field_is_any_an_index_or_a_label(value: object, speaker: Speaker) -> None:
    assert Speaker.parse(value) == speaker


@pytest.mark.parametrize(
    "value",
    [
        "any",
        "3",
        -1,
        1024,
        1.0,
        True,
        None,
        "",
        "role",
        "role=",
        "=learner",
        "a=b,c=d",
        "a in (b)",
        "-a=b",
        "a=b c",
    ],
)
def test_what_is_none_of_them_is_refused_with_what_would_be_right(value: object) -> None:
    with pytest.raises(
        ValueError, match=r"expected Any, a completion index .* or one label .* as key=value"
    ) as told:
        Speaker.parse(value)
    assert repr(str(value)) in str(told.value)


LABELLED = (THREE[0], replace(THREE[1], labels={"role": "learner"}), THREE[2])
BOTH = (THREE[0], *(replace(m, labels={"role": "learner"}) for m in THREE[1:]))


@pytest.mark.parametrize(
    ("speaker", "members", "found"),
    [
        pytest.param(ANY, (THREE[2], THREE[0]), (THREE[0], THREE[2]), id="any: all, lowest index first"),
        pytest.param(Speaker(index=1), THREE, (THREE[1],), id="the index"),
        pytest.param(Speaker(label=("role", "learner")), LABELLED, (THREE[1],), id="the label"),
        pytest.param(
            Speaker(label=("role", "learner")),
            (BOTH[0], replace(BOTH[1], leaving=True), BOTH[2]),
            (THREE[2],),
            id="the label moved from a pod that is being deleted",
        ),
        pytest.param(ANY, (), "NoPods: no pod has an address yet", id="any of none"),
        pytest.param(
            Speaker(index=7),
            THREE,
            "NoPods: no pod of completion index 7 has an address yet",
            id="no such index",
        ),
        pytest.param(
            Speaker(label=("role", "learner")),
            THREE,
            "NoPods: no pod with label role=learner has an address yet",
            id="no such label",
        ),
        pytest.param(
            Speaker(label=("role", "learner")),
            BOTH,
            "SeveralSpeakers: spec.scrape.speaker: label role=learner is on pods run-1 (index 1) and run-2 "
            "(index 2): expected on the one pod that speaks; none of them is read",
            id="a label of two",
        ),
    ],
)
def test_who_may_be_read(speaker: Speaker, members: tuple[Member, ...], found: object) -> None:
    got = candidates(speaker, members)
    if isinstance(got, ScrapeView):
        assert f"{got.outcome}: {got.message}" == found
    else:
        assert isinstance(found, tuple)
        assert [m.name for m in got] == [m.name for m in found]


@pytest.mark.parametrize(
    ("pod", "member", "first"),
    [
        pytest.param("uid-2", 2, 2, id="the pod that spoke last"),
        pytest.param("gone", 1, 1, id="the pod in its place"),
        pytest.param("gone", 9, 0, id="the first, where neither is there"),
        pytest.param("gone", None, 0, id="the first, where no place is known"),
    ],
)
def test_who_spoke_last_is_asked_first(pod: str, member: int | None, first: int) -> None:
    past = (
        LifeRecord(Attempt(1, "z"), "uid-1", 0.0, 0.0),
        LifeRecord(Attempt(1, "a"), pod, 0.0, 0.0, None, member),
    )
    assert first_asked(past, THREE) == THREE[first]
    assert first_asked((), THREE) == THREE[0]


# -- the search ------------------------------------------------------------------------------------------


class Turns:
    """A search, turn by turn; ``says`` is what each member answers now."""

    def __init__(self, says: dict[int, ScrapeView], members: tuple[Member, ...] = THREE) -> None:
        self.says, self.members, self.now = says, members, 1000.0
        self.search = SpeakerSearch(GANG)
        self.asked: list[int] = []

    def turn(self, after: float = INTERVAL, first: int = 0) -> ScrapeView:
        self.now += after
        self.asked = []
        head = self.members[first]
        while (one := self.search.next_asked(self.members, head, INTERVAL, self.now)) is not None:
            assert one.index not in self.asked, "twice in one turn"
            self.asked.append(one.index)
            view = replace(self.says.get(one.index, REFUSED), pod=one.pod, member=one.index)
            self.search.take(one, view, self.now)
        return self.search.outcome(self.members, head, self.now)

    @property
    def settled(self) -> list[int]:
        return [m.index for m in self.members if self.search.is_settled(m.pod)]


@pytest.mark.parametrize("speaks", range(3))
def test_the_one_that_answers_as_this_run_is_kept_and_nobody_else_is_asked(speaks: int) -> None:
    t = Turns({speaks: page()})
    assert t.turn().member == speaks
    assert (t.asked, t.settled) == ([0, 1, 2], [speaks])
    for _ in range(3):
        assert t.turn().member == speaks
        assert t.asked == [speaks]
    assert t.search.is_unchanged(page())
    assert not t.search.is_unchanged(REFUSED)


TOLD = [
    pytest.param(
        {}, "Unreachable", "of 3 members with an address none answers as this run; http://x: refused", id="no"
    ),
    pytest.param({1: page(uid="other")}, "Ok", "", id="another run's page is refused by its own name"),
    pytest.param({1: page(number=1)}, "Ok", "", id="and another attempt's"),
    pytest.param(
        {1: MUTE},
        "NoSpeaker",
        "the page of pod run-1 does not say whose it is (rlhf_run_info). In a gang a page is found by that; "
        "or name who speaks in spec.scrape.speaker: 1",
        id="a page of nobody's",
    ),
    pytest.param(
        {1: page("a"), 2: page("b")},
        "SeveralSpeakers",
        "pods run-1 (index 1) and run-2 (index 2) all answer as attempt 2 of this run: none is believed. Let "
        "one process report (EvalStopClient(speaks=…)), or name it in spec.scrape.speaker",
        id="two",
    ),
]


@pytest.mark.parametrize(("says", "outcome", "message"), TOLD)
def test_where_not_exactly_one_answers_as_this_run_it_is_told_and_nobody_is_kept(
    says: dict[int, ScrapeView], outcome: str, message: str
) -> None:
    t = Turns(says)
    view = t.turn()
    assert (str(view.outcome), view.message, view.points) == (outcome, message, ())
    record = replace(JobRecord(), admission=AdmissionRecord(NUMBER, 0.0, ("n",)))
    if outcome == "Ok":
        refused = lives.refusal(record, UID, view)
        assert refused is not None
        assert refused[0] in ("ForeignPage", "OtherAttempt")
    assert t.settled == []
    t.turn()
    assert sorted(t.asked) == [0, 1, 2], "all are asked again, an interval later"


def test_members_on_the_network_of_one_node_have_one_address_and_one_process_that_answers() -> None:
    t = Turns({1: page("a"), 2: page("a")})
    assert t.turn().member == 1
    assert t.settled == [1]


def test_of_two_that_answered_the_one_that_goes_on_is_believed() -> None:
    t = Turns({1: page("a"), 2: page("b")})
    assert t.turn().outcome is ScrapeOutcome.SEVERAL_SPEAKERS
    del t.says[1]
    assert t.turn().member == 2
    assert t.settled == [2]


def test_a_second_one_that_comes_up_later_is_found_after_the_first_eval() -> None:
    t = Turns({0: page("a")})
    assert t.turn().member == 0
    assert t.settled == [0]
    t.says = {0: page("a", evals=1), 2: page("b")}
    assert not t.search.is_unchanged(page("a", evals=1)), "the first eval of a life has all asked once more"
    assert t.turn().outcome is ScrapeOutcome.SEVERAL_SPEAKERS
    t.says = {0: page("a", evals=2)}
    assert t.turn().member == 0
    t.turn()
    assert (t.asked, t.settled) == ([0], [0])
    assert t.search.is_unchanged(page("a", evals=3))
    assert not t.search.is_unchanged(page("c", evals=1)), "and so has that of the next life"


def test_the_others_are_asked_when_the_speaker_is_silent_and_one_that_moved_is_kept() -> None:
    t = Turns({0: page("a")})
    t.turn()
    t.says = {}
    view = t.turn()
    assert (view.outcome, t.asked) == (ScrapeOutcome.UNREACHABLE, [0, 1, 2])
    t.says = {2: page("b")}
    assert t.turn().member == 2
    assert t.settled == [2]
    t.turn()
    assert t.asked == [2]


def test_a_pod_that_is_being_deleted_does_not_count_against_one_that_stays() -> None:
    leaving = (replace(THREE[0], leaving=True), *THREE[1:])
    t = Turns({0: page("a"), 1: page("b")}, leaving)
    assert t.turn().member == 1
    alone = Turns({0: page("a")}, leaving)
    assert alone.turn().member == 0, "but its last page is read while it is the only one"


def test_turns_out_of_turn_ask_the_speaker_and_nobody_twice_in_an_interval() -> None:
    t = Turns({})
    t.turn()
    t.turn(after=1.0)
    assert t.asked == []
    t.members = (*THREE, Member("uid-3", "run-3", 3))
    t.says = {3: page()}
    assert t.turn(after=1.0).member == 3
    assert t.asked == [3], "a pod that is new is asked at once"
    t.turn(after=1.0)
    assert t.asked == [3]


def test_other_pods_have_all_asked_once_more_and_another_attempt_begins_the_search_anew() -> None:
    t = Turns({1: page()})
    t.turn()
    assert t.search.of(GANG) is t.search
    same = t.search.of(GANG._replace(pods=1))
    assert same is t.search
    assert t.settled == []
    t.turn()
    assert t.asked == [1, 0, 2]
    assert t.search.of(GANG._replace(attempt=3)) is not t.search


@given(
    st.lists(
        st.tuples(
            st.dictionaries(
                st.integers(0, 2), st.sampled_from([page("a"), page("b", evals=1), page(uid="x"), MUTE])
            ),
            st.sampled_from([0.5, 5.0, INTERVAL, 40.0]),
        ),
        max_size=12,
    )
)
def test_whatever_is_answered_only_the_speaker_is_asked_twice_in_an_interval_and_never_one_of_two_is_believed(
    script: list[tuple[dict[int, ScrapeView], float]],
) -> None:
    t, last = Turns({}), dict.fromkeys(range(3), 0.0)
    for says, after in script:
        speaker, t.says = t.search._speaker, says
        view = t.turn(after)
        for index in t.asked:
            assert f"uid-{index}" == speaker or t.now - last[index] >= 0.9 * INTERVAL
            last[index] = t.now
        pages = {i: says[i].page for i in t.asked if i in says}
        ours = [i for i, found in pages.items() if found is not None and found.uid == UID]
        if view.outcome is ScrapeOutcome.OK and view.page is not None and view.page.uid == UID:
            assert {pages[i] for i in ours} <= {view.page}
