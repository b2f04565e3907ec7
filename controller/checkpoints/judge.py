"""Judge checkpoints: whole or not, by which evidence, and written by which trainer process."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace

from controller.checkpoints.errors import Damaged, Vanished, suppress_unreadable
from controller.checkpoints.inventory import (
    CURE,
    UNREADABLE,
    Inventory,
    base_writer,
    branch_life,
    branch_lives,
    own_inventory,
    read_inventories,
    signatures_of,
    writer,
)
from controller.checkpoints.layouts.base import Candidate, Evidence, Folder, Layout, Times
from controller.checkpoints.pins import NOBODY
from controller.checkpoints.request import BranchLife
from controller.checkpoints.saves import SaveRecord, read_record, save_records
from controller.checkpoints.store import Store
from controller.frozen import dataclass
from controller.policy.wording import eval_process

SAVE_RECORD, MANIFEST, SIBLINGS = "SaveRecord", "Manifest", "Siblings"
# A record is written after all that it lists, by another node perhaps: where nodes stamp files by their own
# clocks these may differ by so much. A save over an earlier one comes later than that.
RECORD_SLACK_NS = 5 * 10**9
SIBLINGS_LOOKED_AT = 4  # of the nearest steps, to each side taken together
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Verdict:
    """``problem`` None: the checkpoint is whole by ``evidence``, and ``attempt`` wrote it."""

    problem: str | None
    evidence: str = ""
    attempt: str = NOBODY


@dataclass(frozen=True, slots=True)
class _Seen:
    """One candidate at one moment."""

    content: Folder
    signatures: Mapping[str, str]
    times: Times | None


@dataclass(frozen=True, slots=True)
class _Alone:
    """Facts about a candidate without the others. ``seen`` None: it cannot be a reference to any."""

    verdict: Verdict
    seen: _Seen | None = None
    unproven: str | None = None  # then the verdict's problem is None, but nothing proves it yet
    sure: bool = False  # no other checkpoint needs to be asked


@dataclasses.dataclass
class Survey:
    """All checkpoints of a location at one moment, judged when they are asked for.

    ``branch``: whose checkpoints count, newest process first; empty: anybody's. ``later``: processes after
    those.
    """

    store: Store
    layout: Layout
    owner: str = ""
    branch: Sequence[BranchLife] = ()
    later: Sequence[str] = ()
    _alone_by_name: dict[str, _Alone] = field(default_factory=dict)
    _verdicts: dict[str, Verdict] = field(default_factory=dict)
    _noted: list[Inventory] | None = None

    def __post_init__(self) -> None:
        self.candidates = self.layout.candidates(self.store) if self.store.exists() else []
        self._records = save_records(self.store) if self.candidates else {}

    def of_step(self, step: int) -> list[Candidate]:
        """Candidates of a step, the one to try first first."""
        return [candidate for candidate in self.candidates if candidate.step == step]

    def verdict(self, candidate: Candidate) -> Verdict:
        """Return whether a candidate is whole and counts.

        Raises:
            AccessError: STORE_UNREACHABLE, this very one cannot be read.
        """
        if candidate.name not in self._verdicts:
            self._verdicts[candidate.name] = self._judge(candidate)
        return self._verdicts[candidate.name]

    def looked_at(self, candidate: Candidate) -> Mapping[str, str]:
        """Signatures of the files that the verdict on a candidate is about, by name."""
        seen = self._alone(candidate).seen
        return seen.signatures if seen is not None else {}

    def lowest(self) -> int | None:
        """Return the lowest step of which any checkpoint lies there, whole or not; None: none does."""
        return min((candidate.step for candidate in self.candidates), default=None)

    def complete_steps(self, newest: int) -> list[int]:
        """Return steps of whole checkpoints among the newest so many that can be read, ascending."""
        found = set()
        for candidate in self.candidates[:newest]:
            with suppress_unreadable():
                if self.verdict(candidate).problem is None:
                    found.add(candidate.step)
        return sorted(found)

    def _judge(self, candidate: Candidate) -> Verdict:
        alone = self._alone(candidate)
        if alone.verdict.problem or alone.sure or alone.seen is None:
            return alone.verdict
        beside = self._beside(candidate)
        whole = [other for other in beside if not other.verdict.problem and not other.unproven and other.seen]
        same = [other for other in whole if other.verdict.attempt == alone.verdict.attempt]
        have = _kinds(alone.seen)
        lacking = _lacking(have, same if same or not alone.unproven else whole)
        if lacking:
            return Verdict(f"{lacking}, which the whole checkpoints beside it have")
        if not alone.unproven:
            return alone.verdict
        if whole or self._agreed(have, beside):
            return Verdict(None, SIBLINGS, alone.verdict.attempt)
        return Verdict(f"nothing tells that it is whole: {alone.unproven}; {CURE}")

    def _agreed(self, have: Counter[str], beside: Sequence[_Alone]) -> bool:
        """Return whether another one, not known to be torn, has the same files, and none has one that this
        one lacks.

        What rotation or a kill leaves is a part: two parts are seldom the same part, and never more than
        whole.
        """
        others = [_kinds(other.seen) for other in beside if not other.verdict.problem and other.seen]
        return any(other == have for other in others) and all(other <= have for other in others)

    def _beside(self, candidate: Candidate) -> list[_Alone]:
        """Return the nearest others, without those that cannot be read: they tell nothing, good or bad."""
        found: list[_Alone] = []
        others = [c for c in self.candidates if c.name != candidate.name]
        for other in sorted(others, key=lambda c: abs(c.step - candidate.step)):
            if len(found) == SIBLINGS_LOOKED_AT:
                break
            with suppress_unreadable():
                found.append(self._alone(other))
        return found

    def _alone(self, candidate: Candidate) -> _Alone:
        if candidate.name not in self._alone_by_name:
            try:
                self._alone_by_name[candidate.name] = self._look(candidate)
            except Vanished:
                self._alone_by_name[candidate.name] = _Alone(
                    Verdict("it was removed while it was being looked at")
                )
            except Damaged as damage:
                self._alone_by_name[candidate.name] = _Alone(Verdict(str(damage)))
        return self._alone_by_name[candidate.name]

    def _look(self, candidate: Candidate) -> _Alone:
        content = candidate.content(self.store)
        signatures = signatures_of(self.store, candidate)
        if signatures.keys() != content.files().keys():
            return _Alone(Verdict("files came or went while it was being looked at"))
        seen = _Seen(content, signatures, times_of(self.store, candidate, signatures))
        recorded = self._by_record(candidate, content, seen.times)
        if recorded is not None and (recorded.problem or recorded.evidence):
            return _Alone(recorded, seen, sure=True)
        problem = candidate.problem or self.layout.problem(content, candidate.step)
        if problem:
            return _Alone(Verdict(problem))
        evidence: Evidence = self.layout.evidence(content, candidate.step, seen.times)
        if evidence.unfinished:
            return _Alone(Verdict(evidence.unfinished))
        wrote = writer(candidate, signatures, self._inventories(), self.branch)
        if wrote.problem:
            return _Alone(Verdict(wrote.problem))
        if not evidence.sure and (unrecorded := self._unrecorded(candidate)):
            return _Alone(Verdict(unrecorded))
        unproven = candidate.unproven or evidence.unproven
        return _Alone(Verdict(None, MANIFEST, wrote.attempt), seen, unproven, evidence.sure)

    def _by_record(self, candidate: Candidate, content: Folder, times: Times | None) -> Verdict | None:
        """Return what save records say of a candidate; None: nothing that bears on it."""
        records = self._recorded(candidate)
        differences = {
            record.attempt: self._difference(_inside(record, candidate, self.layout), content, times)
            for record in records
        }
        life = branch_life(self.branch, candidate.step)
        if not self.branch:
            whole = [attempt for attempt, difference in differences.items() if difference is None]
            if whole:
                return Verdict(None, SAVE_RECORD, whole[-1])
            return Verdict(next(iter(differences.values()))) if differences else None
        own = [one.attempt for one in branch_lives(self.branch, candidate.step)]
        found: Verdict | None = None
        for attempt in own:
            if attempt in differences:
                over = _saved_over(attempt, [r for r in records if differences[r.attempt] is None])
                found = Verdict(differences[attempt] or over, SAVE_RECORD, attempt)
                if not found.problem:
                    return found
        foreign = [r for r in records if differences[r.attempt] is None and r.attempt not in own]
        others = [record.attempt for record in sorted(foreign, key=lambda record: record.written or 0)]
        if others and any(one.base == candidate.step for one in self.branch):
            now = signatures_of(self.store, candidate)
            lay = not base_writer(candidate, now, self._inventories(), self.branch).problem
            if lay and others[-1] not in self.later and not self._seen_later(others[-1], candidate.step):
                return Verdict(None, SAVE_RECORD, NOBODY)
        if found is not None or not others:
            return found
        counts = f"that of process {life.attempt} counts" if life is not None else "it lay there before"
        apart = f"; {eval_process()}" if life is not None and self._evaluates(life, others[-1]) else ""
        return Verdict(f"process {others[-1]} wrote it, as its save record says, but {counts}{apart}")

    def _evaluates(self, life: BranchLife, wrote: str) -> bool:
        """Return whether a process may be one that only evaluates what another one of its attempt saves: it
        has recorded no save, and of the other no page was read."""
        number = life.attempt.partition("-")[0]
        if wrote.partition("-")[0] != number or any(one.attempt == wrote for one in self.branch):
            return False
        return all(life.attempt not in of.values() for of in self._records.values())

    def _seen_later(self, attempt: str, step: int) -> bool:
        """Return whether a process was first seen after those that went on from this step: what it saved lay
        there before none of them, though the claim of one, given up and still at work, noted it so."""
        order = [inventory.attempt for inventory in self._inventories()]
        if attempt not in order:
            return False
        before = order[: order.index(attempt)]
        return all(life.attempt in before for life in self.branch if life.base == step)

    def _recorded(self, candidate: Candidate) -> list[SaveRecord]:
        """Return the save records that name a candidate."""
        found = (read_record(self.store, file) for file in self._records.get(candidate.step, ()))
        return [record for record in found if record is not None and record.name in _names(candidate)]

    def of_another_branch(self, candidate: Candidate) -> bool:
        """Return whether a candidate, whole or not, is known to be of none of the processes whose checkpoint
        of its step counts: by the newest save record that fits it, otherwise by inventories."""
        read = self._read(candidate)
        if read is None:
            return False
        content, signatures = read
        wrote = writer(candidate, signatures, self._inventories(), self.branch)
        newest = self._newest_record(candidate, content, signatures)
        lay = not wrote.problem and wrote.attempt == NOBODY
        if newest is None or (lay and newest.attempt not in self.later):
            return bool(wrote.problem)
        return all(newest.attempt != one.attempt for one in branch_lives(self.branch, candidate.step))

    def left_by_none_of(self, known: Collection[str]) -> bool:
        """Return whether one of the checkpoints is known to be of none of these processes, and not to have
        lain there when an inventory was made first."""
        if not self._inventories():
            return False
        lay_before = self._inventories()[0].candidates
        for candidate in self.candidates:
            read = self._read(candidate)
            if read is None or lay_before.get(candidate.name) == read[1]:
                continue
            newest = self._newest_record(candidate, *read)
            if newest is not None and newest.attempt not in known:
                return True
        return False

    def _read(self, candidate: Candidate) -> tuple[Folder, Mapping[str, str]] | None:
        """Return a candidate's content and its files' signatures; None: it went, or cannot be used."""
        try:
            return candidate.content(self.store), signatures_of(self.store, candidate)
        except (Vanished, Damaged):
            return None

    def _newest_record(
        self, candidate: Candidate, content: Folder, signatures: Mapping[str, str]
    ) -> SaveRecord | None:
        """Return the newest save record that fits a candidate; None: none does."""
        times = times_of(self.store, candidate, signatures)
        fitting = (
            record
            for record in self._recorded(candidate)
            if self._difference(_inside(record, candidate, self.layout), content, times) is None
        )
        return max(fitting, key=lambda record: record.written or 0, default=None)

    def went_on_from_others(self, step: int, pinned: Mapping[str, str]) -> bool:
        """Return whether a process is known to have started from other files of a step than those that were
        ``pinned`` as links (signatures by name): from a save over them of which no eval was read."""
        for life in self.branch:
            if life.base == step:
                own = own_inventory(self._inventories(), life.attempt)
                then = own.candidates.get(self.layout.own_name(step)) if own is not None else None
                if then is not None and then != UNREADABLE:
                    return dict(then) != dict(pinned)
        return False

    def _unrecorded(self, candidate: Candidate) -> str | None:
        """Return why a candidate without a record does not count where its process writes records; None: it
        does.

        A process that saves a step again in place takes the old record away first. Killed in between it
        leaves files of two saves: no size tells them apart, and no inventory is made between two saves of
        one process.
        """
        life = branch_life(self.branch, candidate.step)
        if life is None or all(life.attempt not in of.values() for of in self._records.values()):
            return None
        return (
            f"process {life.attempt} writes save records, and has written none of this one: its save is not "
            f"over, or was not told; {CURE}"
        )

    def _difference(self, record: SaveRecord, content: Folder, times: Times | None) -> str | None:
        """Return where a candidate is not what was recorded. Half a save over another may have the same
        sizes."""
        found = record.difference(content.files())
        if found or times is None or record.written is None:
            return found
        later = [n for n in record.files if times.files.get(n, 0) > record.written + RECORD_SLACK_NS]
        return f"{min(later)} was written anew after the save record" if later else None

    def _inventories(self) -> list[Inventory]:
        if self._noted is None:
            self._noted = read_inventories(self.store, self.owner) if self.owner else []
        return self._noted


def times_of(store: Store, candidate: Candidate, signatures: Mapping[str, str]) -> Times | None:
    """Return when a candidate's files were written, and whether its folders were altered afterwards."""
    folders: dict[str, int] = {}
    for prefix, folder in candidate.parts:
        found = store.folder_times(folder)
        if found is None:
            return None
        folders |= {
            ("/".join(p for p in (prefix, n) if p not in ("", ".")) or "."): at for n, at in found.items()
        }
    files = {name: int(signature.split(":")[1]) for name, signature in signatures.items()}
    return Times(files, folders) if files and folders else None


def _names(candidate: Candidate) -> set[str]:
    """Return the names that a save record may have for a candidate: its own, and those of its folders."""
    return {candidate.name, *(folder.rpartition("/")[2] for _, folder in candidate.parts)}


def _inside(record: SaveRecord, candidate: Candidate, layout: Layout) -> SaveRecord:
    """Return a record in the names that the candidate's content shows."""
    files, own, prefix = dict(record.files), layout.own_name(candidate.step), candidate.parts[0][0]
    if own != candidate.name:
        renamed = re.compile(rf"(^|/){re.escape(candidate.name)}(?=/|_hf/)")
        files = {renamed.sub(rf"\g<1>{own}", name): size for name, size in files.items()}
    # One folder that lies in the location itself is recorded with names from that folder on.
    if prefix and not any(name.partition("/")[0] == prefix.partition("/")[0] for name in files):
        files = {f"{prefix}/{name}": size for name, size in files.items()}
    return replace(record, files=files)


def _saved_over(attempt: str, fitting: Sequence[SaveRecord]) -> str | None:
    """Return which other process saved the same folder after this one; None: none did, as far as records
    tell.

    Rotation, or a restart from before the step, leaves the record of the former save behind, and a model has
    the same sizes at each save.
    """
    written = {record.attempt: record.written for record in fitting if record.written is not None}
    own = written.get(attempt)
    after = [other for other, at in written.items() if own is not None and other != attempt and at > own]
    if not after:
        return None
    return f"process {max(after, key=lambda other: written[other])} saved it anew after {attempt}"


def _kinds(seen: _Seen) -> Counter[str]:
    """Return how many files of each kind there are: their names without numbers (steps, ranks, shards)."""
    return Counter(_DIGITS.sub("#", name) for name in seen.content.files())


def _lacking(have: Counter[str], references: Sequence[_Alone]) -> str | None:
    """Return what all references have more of, in words."""
    kinds = [_kinds(other.seen) for other in references if other.seen is not None]
    if not kinds:
        return None
    common = kinds[0]
    for other in kinds[1:]:
        common = common & other
    for kind, count in sorted(common.items()):
        if have[kind] < count:
            return f"it has {have[kind]} of {count} files like {kind}" if have[kind] else f"it lacks {kind}"
    return None


def judge(layout: Layout, store: Store, candidate: Candidate) -> str | None:
    """Return why a candidate is not whole, whoever wrote it; None: it is."""
    return Survey(store, layout).verdict(candidate).problem
