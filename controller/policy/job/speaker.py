"""The member of a gang that speaks for its job: who is asked for the metrics page, and who is believed.

Where ``spec.scrape.speaker`` names a member, by completion index or by label, that one is read and no other.
Where it says Any, members are asked in turn, a few at a time, each at most once per scrape interval, and the
one whose page carries this run's identity is kept. While it answers, nobody else is asked: the others are
asked once when it was found and once more after its first eval, when every process of the trainer is up. Two
members that answer with this run's identity are both named, and neither is believed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import NamedTuple

from controller.frozen import dataclass
from controller.policy.job.record import LifeRecord
from controller.policy.job.types import ScrapeOutcome, ScrapeView
from controller.policy.types import Attempt

ANY_MEMBER = "Any"
INDEX_MAX = 1023  # a gang has at most 1024 members
# Short, for the API server counts what a rule of the CRD could cost by the length of its pattern. A name that
# ends with a sign passes, and no pod has such a label.
_NAME = "[A-Za-z0-9][A-Za-z0-9_.-]{0,62}"
LABEL_PATTERN = f"^([a-z0-9][a-z0-9.-]{{0,252}}/)?{_NAME}={_NAME}$"  # of a pod label, as key=value
EXPECTED = (
    f"expected {ANY_MEMBER}, a completion index (a number of 0 to {INDEX_MAX}, without quotes), or one label "
    "that only the pod that speaks has, as key=value"
)
# Of an interval: two turns of a job are an interval apart, give or take how late each of them began.
_DUE = 0.9


@dataclass(frozen=True, slots=True)
class Speaker:
    """``spec.scrape.speaker``: a completion index, or a pod label; neither: any member."""

    index: int | None = None
    label: tuple[str, str] | None = None

    @staticmethod
    def parse(value: object) -> Speaker:
        """Return what the field says.

        Raises:
            ValueError: it is none of the three; the message says what would be right.
        """
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= INDEX_MAX:
            return Speaker(index=value)
        if value == ANY_MEMBER:
            return ANY
        if isinstance(value, str) and re.fullmatch(LABEL_PATTERN, value):
            key, _, text = value.partition("=")
            return Speaker(label=(key, text))
        raise ValueError(f"{str(value)[:80]!r}: {EXPECTED}")


ANY = Speaker()


@dataclass(frozen=True, slots=True)
class Member:
    """A pod of the job's workload that has an address."""

    pod: str  # uid
    name: str
    index: int = 0  # completion index; 0 in a Job without indexes
    leaving: bool = False  # it is being deleted
    labels: Mapping[str, str] = field(default_factory=dict)


class Gang(NamedTuple):
    """By what a member's page is known to be of this run, and a change of the members is noticed."""

    uid: str  # of the RLHFJob
    attempt: int  # number of the admission
    pods: int  # another number when the pods are others


def candidates(speaker: Speaker, members: Sequence[Member]) -> tuple[Member, ...] | ScrapeView:
    """Return which members may be read, lowest index first; a view that says why, where none may be."""
    if speaker.index is not None:
        found = tuple(m for m in members if m.index == speaker.index)
        who = f"pod of completion index {speaker.index}"
    elif speaker.label is not None:
        key, value = speaker.label
        found = _staying(tuple(m for m in members if m.labels.get(key) == value))
        who = f"pod with label {key}={value}"
        if len(found) > 1:
            message = (
                f"spec.scrape.speaker: label {key}={value} is on {_named(found)}: expected on the one pod "
                "that speaks; none of them is read"
            )
            return ScrapeView(ScrapeOutcome.SEVERAL_SPEAKERS, message)
    else:
        found, who = tuple(members), "pod"
    if not found:
        return ScrapeView(ScrapeOutcome.NO_PODS, f"no {who} has an address yet")
    return tuple(sorted(found, key=lambda m: (m.index, m.name)))


def first_asked(lives: Sequence[LifeRecord], members: Sequence[Member]) -> Member:
    """Return whom to ask first: who spoke last by the job's record, else the pod in its place, else the
    first."""
    if lives:
        for same in (lambda m: m.pod == lives[-1].pod, lambda m: m.index == lives[-1].member):
            if (found := next(filter(same, members), None)) is not None:
                return found
    return members[0]


@dataclass(frozen=True, slots=True)
class _Answer:
    """The newest answer of a member."""

    at: float  # s, when that turn began
    ours: bool  # its page carries this run's identity
    view: ScrapeView


class SpeakerSearch:
    """The search for the member of one gang that speaks. In memory only: after a restart `first_asked` starts
    it where it ended.

    Each turn of the job: `next_asked` until it is None, `hear` what each said, then `outcome`. A turn may end
    before everyone was asked: the next one goes on. Once `is_settled`, only the speaker is asked, and nothing
    is remembered of the others.
    """

    __slots__ = ("_answers", "_floor", "_life", "_settled", "_since", "_speaker", "gang")

    def __init__(self, gang: Gang) -> None:
        self.gang = gang
        self._speaker = ""  # uid of the pod that is kept
        self._answers: dict[str, _Answer] = {}  # by uid of the pod
        self._since = -math.inf  # everyone has to have been asked since
        self._floor = -math.inf  # when those were asked of whom nothing is remembered
        self._life: Attempt | None = None  # after whose first eval everyone was asked
        self._settled = False

    def of(self, gang: Gang) -> SpeakerSearch:
        """Return the search to go on with for the gang as it is now: with other members there is more to ask,
        and another run has another speaker."""
        if gang[:2] != self.gang[:2]:
            return SpeakerSearch(gang)
        if gang != self.gang:
            self.gang, self._settled, self._since = gang, False, -math.inf
        return self

    def is_settled(self, pod: str) -> bool:
        """Return whether this pod speaks, and nobody else is to be asked."""
        return self._settled and self._speaker == pod

    def next_asked(
        self,
        members: Sequence[Member],
        first: Member,
        interval: float,
        began: float,
        under_way: Collection[str] = (),
    ) -> Member | None:
        """Return who is to be asked next in the turn that ``began`` (s); None: nobody.

        Args:
            members: who may be asked now.
            first: of these, before the others while no speaker is known (`first_asked`).
            interval: s between two reads of a job.
            began: s, of any one clock.
            under_way: uids of pods that are being asked just now.
        """
        there = {m.pod for m in members}
        self._answers = {pod: answer for pod, answer in self._answers.items() if pod in there}
        if self._speaker not in there:
            self._lose()
        head = self._speaker or first.pod

        def last(member: Member) -> float:
            answer = self._answers.get(member.pod)
            return answer.at if answer is not None else self._floor

        for member in sorted(members, key=lambda m: (m.pod != head, last(m), m.index, m.name)):
            if member.pod in under_way:
                continue
            if member.pod == self._speaker:
                if last(member) < began:  # it is read whenever a turn comes
                    return member
            elif self._settled:
                return None
            elif began - last(member) < _DUE * interval:
                continue
            elif not self._speaker or member.pod not in self._answers or last(member) < self._since:
                return member
        return None

    def is_unchanged(self, view: ScrapeView) -> bool:
        """Return whether all stays as it is, by the answer of a speaker that `is_settled`. Where it does not,
        the turn goes on with `take`."""
        life = self._life_of(view)
        return life is not None and (life == self._life or not view.points)

    def take(self, member: Member, view: ScrapeView, began: float) -> None:
        """Take in what a member that was asked has answered."""
        life = self._life_of(view)
        kept = view if life is not None else replace(view, points=(), others=())
        self._answers[member.pod] = _Answer(began, life is not None, kept)
        if member.pod == self._speaker and life is None:
            self._lose()
        elif life is not None and life != self._life and view.points:
            self._life, self._since, self._settled = life, began, False

    def _life_of(self, view: ScrapeView) -> Attempt | None:
        """Return the process whose page this is; None: the page is not of this run."""
        page = view.page
        if view.outcome is not ScrapeOutcome.OK or page is None:
            return None
        same = (page.uid, page.attempt.number) == (self.gang.uid, self.gang.attempt)
        return page.attempt if same else None

    def outcome(self, members: Sequence[Member], first: Member, began: float) -> ScrapeView:
        """Return what the turn that ``began`` found: the page that is believed, or why none is."""
        ours = self._speaking(members)
        if len(ours) == 1:
            self._speaker = ours[0].pod
            view = self._answers[self._speaker].view
            if all(self._was_asked(m) for m in members):
                self._settled, self._floor, self._answers = True, began, {}
            return view
        self._lose()
        if ours:
            message = (
                f"{_named(ours)} all answer as attempt {self.gang.attempt} of this run: none is believed. "
                "Let one process report (EvalStopClient(speaks=…)), or name it in spec.scrape.speaker"
            )
            return ScrapeView(ScrapeOutcome.SEVERAL_SPEAKERS, message, at=self._newest())
        return self._nobody(members, first)

    def _speaking(self, members: Sequence[Member]) -> tuple[Member, ...]:
        """Return a member for each process that answers as this run. On the network of their node several
        members have one address, where one process answers: that is one."""
        ours = [m for m in members if m.pod in self._answers and self._answers[m.pod].ours]
        found: dict[Attempt | None, Member] = {}
        for member in sorted(ours, key=lambda m: (m.leaving, m.pod != self._speaker)):
            found.setdefault(self._life_of(self._answers[member.pod].view), member)
        return _staying(tuple(m for m in members if m in found.values()))

    def _was_asked(self, member: Member) -> bool:
        answer = self._answers.get(member.pod)
        return answer is not None and answer.at >= self._since

    def _newest(self) -> float:
        return max((answer.view.at for answer in self._answers.values()), default=0.0)

    def _lose(self) -> None:
        """Begin to ask everyone again."""
        self._speaker, self._since, self._settled = "", -math.inf, False

    def _nobody(self, members: Sequence[Member], first: Member) -> ScrapeView:
        """Return why no page is believed, by the answer that says most: a page of another run, else one that
        does not say whose it is, else what became of the first."""
        answers = [(m, self._answers[m.pod].view) for m in members if m.pod in self._answers]
        pages = [(m, v) for m, v in answers if v.outcome is ScrapeOutcome.OK]
        for _, view in pages:
            if view.page is not None:
                return view  # refused by what it says of itself (`lives.refusal`)
        if pages:
            message = (
                f"the page of pod {pages[0][0].name} does not say whose it is (rlhf_run_info). In a gang a "
                f"page is found by that; or name who speaks in spec.scrape.speaker: {pages[0][0].index}"
            )
            return ScrapeView(ScrapeOutcome.NO_SPEAKER, message, at=pages[0][1].at)
        of_first = [v for m, v in answers if m.pod == first.pod] or [v for _, v in answers]
        if not of_first:
            return ScrapeView(ScrapeOutcome.NO_SPEAKER, "no member of the gang was asked yet")
        left = len(members) - len(answers)
        asked = f"of {len(members)} members with an address" + (f", {left} not asked yet," if left else "")
        message = f"{asked} none answers as this run; {of_first[0].message}"
        return replace(of_first[0], message=message, searching=left > 0)


def _staying(members: tuple[Member, ...]) -> tuple[Member, ...]:
    """Return the members that are not being deleted, where any is not."""
    return tuple(m for m in members if not m.leaving) or members


def _named(members: Iterable[Member]) -> str:
    *most, last = [f"{m.name} (index {m.index})" for m in members]
    shown = most if len(most) < 4 else [*most[:3], f"{len(most) - 3} more"]
    return f"pods {', '.join(shown)} and {last}" if most else f"pod {last}"
