"""Inventory of a location before a trainer process started; it shows which process wrote a checkpoint.

Before each attempt starts, and when a new process is seen within one, the checkpoints that lie there are
noted with a signature of each file (size, time of the last write, inode; etag in an object store). Signatures
are only compared for equality: what is unchanged since before a process started was not written by it, what
changed afterwards was not written by an earlier one. No clock is compared with another.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from controller import bounded
from controller.checkpoints import fence
from controller.checkpoints.errors import UNREADABLE_REASONS, AccessError, Damaged, Reason, Vanished
from controller.checkpoints.layouts import Candidate, Layout
from controller.checkpoints.layouts.base import entries
from controller.checkpoints.pins import ATTEMPT_PATTERN, NOBODY, pins_folder
from controller.checkpoints.request import BranchLife, Request
from controller.checkpoints.store import Store, read_json
from controller.frozen import dataclass
from controller.policy.wording import counted

INVENTORY_FILE = "inventory.json"
INVENTORY_LIMIT = 32 << 20  # bytes read, of about 400,000 files
KEPT = 100  # newest inventories

CURE = (
    "let the trainer's client say that all ranks have saved: client.checkpoint_saved(step, path) writes a "
    "save record (docs/use/trainer-contract.md)"
)

Signatures = Mapping[str, str]  # name inside the checkpoint -> signature of the file
UNREADABLE: Signatures = {"": "unreadable"}  # something lay there; no file has this name


@dataclass(frozen=True, slots=True)
class Inventory:
    """Checkpoints in a location when it was made: before attempt ``3`` started, or when ``3-9f2c41d0`` was
    seen.
    """

    attempt: str
    candidates: Mapping[str, Signatures]  # by the trainer's own name

    @property
    def number(self) -> int:
        return _number(self.attempt)

    @property
    def life(self) -> str:
        return self.attempt.partition("-")[2]


@dataclass(frozen=True, slots=True)
class Writer:
    """Writer of a checkpoint: an attempt's text, or why it is not the one whose checkpoint counts."""

    attempt: str = ""
    problem: str = ""


def signatures_of(store: Store, candidate: Candidate) -> dict[str, str]:
    """Signatures of a candidate's files by their name inside it. Raises: Vanished, Damaged."""
    found = entries(store, store.signatures, candidate.parts, candidate.files)
    return {inside: signature for inside, _, signature in found}


def read_inventories(store: Store, owner: str) -> list[Inventory]:
    """Inventories in the order in which they were made; none where there is no file.

    Raises:
        Damaged: the file is there and cannot be used.
    """
    name = f"{pins_folder(owner)}/{INVENTORY_FILE}"
    try:
        raw = read_json(store, name, INVENTORY_LIMIT)
        return [
            Inventory(
                str(entry["attempt"]),
                {
                    str(candidate): {str(file): str(signature) for file, signature in files.items()}
                    for candidate, files in entry["candidates"].items()
                },
            )
            for entry in raw["inventories"]
            if ATTEMPT_PATTERN.match(str(entry["attempt"]))
        ]
    except Vanished:
        return []
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"{store.path(name)} is not of the agreed form: {error}") from error


def take_inventory(store: Store, layout: Layout, request: Request, up_to: int | None = None) -> str:
    """Note what lies there now, for ``request.attempt``; one that is noted already stays as it is.

    ``up_to``: the highest step that is noted; None: any.
    """
    note_empty(store, request)
    attempt = request.attempt or NOBODY
    count = len(_note_once(store, request, attempt, lambda: _lying_there(store, layout, up_to)).candidates)
    return f"{counted(count, 'checkpoint')} lay there" if count else ""


def note_empty(store: Store, request: Request) -> None:
    """Note that nothing lay there before ``request.empty_at``, where a claim found that and could not yet
    write it; once is enough."""
    if request.empty_at:
        _note_once(store, request, request.empty_at, dict)


def _note_once(
    store: Store, request: Request, attempt: str, look: Callable[[], Mapping[str, Signatures]]
) -> Inventory:
    """Return the inventory of an attempt: the one that is noted, else what ``look`` finds, noted now.

    A file that cannot be used is written anew. Raises: AccessError, INTERRUPTED: a newer request has been
    there, and this one's look came too late.
    """
    owner = request.owner
    try:
        noted = read_inventories(store, owner)
    except Damaged:
        noted = []
    found = next((inventory for inventory in noted if inventory.attempt == attempt), None)
    if found is None:
        found = Inventory(attempt, look())
        fence.check(store, request)
        store.write(f"{pins_folder(owner)}/{INVENTORY_FILE}", _text([*noted, found]))
    return found


def _text(noted: Sequence[Inventory]) -> bytes:
    """As many of the newest inventories as are kept, and as will be read again."""
    entries: list[str] = []
    size = files = 0
    for inventory in reversed(noted[-KEPT:]):
        entry = json.dumps({"attempt": inventory.attempt, "candidates": inventory.candidates})
        size += len(entry) + 2
        files += sum(len(found) + 2 for found in inventory.candidates.values()) + 4
        if entries and (size + 64 > INVENTORY_LIMIT or files > bounded.VALUES):
            break
        entries.insert(0, entry)
    return f'{{"inventories": [{", ".join(entries)}]}}'.encode()


def _lying_there(store: Store, layout: Layout, up_to: int | None) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    failed: list[AccessError] = []
    for candidate in layout.candidates(store) if store.exists() else ():
        if up_to is not None and candidate.step > up_to:
            continue
        try:
            found[candidate.name] = signatures_of(store, candidate)
        except Vanished:
            continue
        except Damaged:
            found[candidate.name] = dict(UNREADABLE)
        except AccessError as error:
            if error.reason not in UNREADABLE_REASONS:
                raise
            failed.append(error)
            found[candidate.name] = dict(UNREADABLE)
    # Of the store, not of one checkpoint: a claim that is made again will read more.
    if failed and len(failed) == len(found) and failed[0].reason is not Reason.PERMISSION_DENIED:
        raise failed[0]
    return found


def branch_life(branch: Sequence[BranchLife], step: int) -> BranchLife | None:
    """Return the process whose checkpoint of a step counts."""
    return next((life for life in branch if step > life.after), None)


def branch_lives(branch: Sequence[BranchLife], step: int) -> list[BranchLife]:
    """Return the processes whose checkpoints of a step count, in the order in which they are believed.

    A process that starts from a step may save that very step anew, before it trains or because it was the
    last one: its own is on the way to all of its evals, as the one that it started from is.
    """
    usual = branch_life(branch, step)
    anew = [life for life in branch if life.after == step]
    return anew if usual is None else [*anew, usual]


def writer(
    candidate: Candidate,
    now: Signatures,
    inventories: Sequence[Inventory],
    branch: Sequence[BranchLife],
) -> Writer:
    """Return whether a candidate was written by the process whose checkpoint of that step counts.

    Args:
        candidate: as found.
        now: its signatures.
        inventories: in the order they were made.
        branch: newest process first; empty: anybody's checkpoint counts.
    """
    if not branch:
        return Writer(NOBODY)
    found = [
        _written_by(life, candidate, now, inventories, branch)
        for life in branch_lives(branch, candidate.step)
    ]
    base = base_writer(candidate, now, inventories, branch)
    if branch_life(branch, candidate.step) is None:
        found.append(base)
    return next((one for one in (*found, base) if not one.problem), found[-1])


def _written_by(
    life: BranchLife,
    candidate: Candidate,
    now: Signatures,
    inventories: Sequence[Inventory],
    branch: Sequence[BranchLife],
) -> Writer:
    """Return whether it was this process, as far as inventories tell."""
    before, after, known = _around(life.attempt, inventories, branch)
    for inventory in reversed(before):
        problem = _left_by_earlier(now, inventory.candidates.get(candidate.name, {}))
        if problem:
            return Writer(problem=f"{problem}, before process {life.attempt} started")
    if after:
        then = after[0].candidates.get(candidate.name)
        if then is None or any(then.get(name) != signature for name, signature in now.items()):
            return Writer(problem=f"it was written after process {life.attempt} had ended")
    if not known:
        own = next((i for i in inventories if i.attempt == life.attempt), None)
        then = own.candidates.get(candidate.name, {}) if own is not None else now
        if _left_by_earlier(now, then):
            return Writer(
                problem=f"it lay there when process {life.attempt} was first seen, and an earlier one may "
                f"have written it; {CURE}"
            )
    return Writer(life.attempt)


def own_inventory(inventories: Sequence[Inventory], attempt: str) -> Inventory | None:
    """Return the inventory that was made when this very process was seen; None: none was."""
    return next((one for one in inventories if one.life and one.attempt == attempt), None)


def base_writer(
    candidate: Candidate,
    now: Signatures,
    inventories: Sequence[Inventory],
    branch: Sequence[BranchLife],
) -> Writer:
    """Return the checkpoint that lay there before, if it is the one that a process went on from, whoever
    wrote it: what lies there unchanged since that process was first seen, or since before the job."""
    bases = [life for life in branch if life.base == candidate.step]
    if not bases:
        return Writer(
            problem="it lay there before this RLHFJob first started, or is of a branch that was left"
        )
    for life in bases:
        own = own_inventory(inventories, life.attempt)
        if own is None and life is branch[-1]:
            own = inventories[0] if inventories else Inventory(NOBODY, {candidate.name: now})
        then = own.candidates.get(candidate.name) if own is not None else None
        if then is not None and dict(then) == dict(now):
            return Writer(NOBODY)
    return Writer(problem="it is not the checkpoint that the run went on from: that one was changed since")


def _around(
    attempt: str, inventories: Sequence[Inventory], branch: Sequence[BranchLife]
) -> tuple[Sequence[Inventory], Sequence[Inventory], bool]:
    """Inventories made before a process started, those made after it had ended, and whether that is all.

    False: what others left cannot be told from what it wrote before its own inventory was made: others of the
    same attempt came before it, or none was made before the attempt started.
    """
    number = _number(attempt)
    noted = any(i.attempt == str(number) for i in inventories)
    own = next((at for at, i in enumerate(inventories) if i.attempt == attempt and i.life), None)
    if own is not None:
        before = inventories[:own]
        after = [i for i in inventories[own + 1 :] if i.number > number or i.life]
        return before, after, False
    before = [i for i in inventories if i.number < number or (i.number == number and not i.life)]
    after = [i for i in inventories if i.number > number or (noted and i.number == number and i.life)]
    at = next((n for n, life in enumerate(branch) if life.attempt == attempt), len(branch))
    first = not any(_number(life.attempt) == number for life in branch[at + 1 :])
    return before, after, noted and first


def _left_by_earlier(now: Signatures, then: Signatures) -> str:
    """In which words a checkpoint holds files that lay there already; "": none."""
    if then == UNREADABLE:
        return "it lay there already and could not be read"
    same = [name for name, signature in now.items() if then.get(name) == signature]
    if not same:
        return ""
    if len(same) == len(now):
        return "it lay there already"
    return f"it is a mixture: {sorted(same)[0]} lay there already"


def _number(attempt: str) -> int:
    return int(attempt.partition("-")[0])
