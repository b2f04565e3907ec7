"""Trainer processes: whose metrics page one is, in which order they came, and whose checkpoints count.

A life is one trainer process. Its id is opaque: lives of one pod are ordered as they were first seen, pods of
one member by their creation, and never by a trainer's clock. What another RLHFJob's trainer, an earlier
attempt or an earlier process says is refused by name: it is no evidence about this run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from controller.policy.job.record import LIVES_KEPT, JobRecord, LifeRecord
from controller.policy.job.types import BranchLife, ScrapeView
from controller.policy.types import Attempt, Problem
from controller.policy.wording import eval_process

EVALUATORS = 3  # evals in a row, each of another process, that are taken for evaluations apart


def speaking(scrape: ScrapeView) -> Attempt | None:
    """Return the process that a page is of; None: it says nothing of it, and shows no evals.

    A page that does not say whose it is has the life that its newest eval names.
    """
    if scrape.page is not None:
        return scrape.page.attempt
    return scrape.points[-1].attempt if scrape.points else None


def refusal(record: JobRecord, uid: str, scrape: ScrapeView) -> Problem | None:
    """Return why nothing on this page counts; None: it may be read.

    Args:
        record: the job's record, with the admission that the page must be of.
        uid: of the RLHFJob.
        scrape: the page that was read.
    """
    page = scrape.page
    if page is not None:
        if page.uid != uid:
            return Problem(
                "ForeignPage",
                f"the page is of RLHFJob uid {page.uid!r}, this one has {uid!r}: another trainer answers at "
                "this address (hostNetwork, or an address used again), or run.json is not this job's",
            )
        number = record.admission.number if record.admission is not None else record.attempt
        if page.attempt.number != number:
            return Problem(
                "OtherAttempt",
                f"the page is of attempt {page.attempt.number}, expected {number}: the trainer runs with "
                "the run.json of another attempt",
            )
    life = speaking(scrape)
    newest = record.lives[-1] if record.lives else None
    if life is None or newest is None or life == newest.attempt:
        return None
    earlier = any(known.attempt == life for known in record.lives)
    # Pods of one member come one after another; two members stand side by side, and the speaker may move.
    elsewhere = None not in (scrape.member, newest.member) and scrape.member != newest.member
    other_pod = bool(scrape.pod) and scrape.pod != newest.pod and not elsewhere
    older_pod = other_pod and scrape.pod_created < newest.pod_created
    if earlier or older_pod:
        return Problem(
            "EarlierLife",
            f"the page is of process {life}, which came before {newest.attempt}: the newest one speaks",
        )
    return None


def newest(record: JobRecord) -> Attempt:
    """Return the process that speaks now, as far as it is known."""
    return record.lives[-1].attempt if record.lives else Attempt(record.attempt)


def start(record: JobRecord) -> tuple[Attempt, int | None] | None:
    """Return the newest process and the step that it started from (None: not known); None: there is none."""
    return (record.lives[-1].attempt, record.lives[-1].resumed) if record.lives else None


def has_ended(record: JobRecord, attempt: Attempt) -> bool:
    """Return whether a process is known to have ended: a later one of the same member has spoken. Where the
    speaker moved to another member both may run."""
    at = next((i for i, life in enumerate(record.lives) if life.attempt == attempt), None)
    if at is None:
        return False
    return any(record.lives[at].member == later.member for later in record.lives[at + 1 :])


def identified(record: JobRecord, scrape: ScrapeView | None) -> bool:
    """Return whether the page says whose it is, and is of the newest process: what a stop must rest on."""
    if scrape is None or scrape.page is None or not record.lives:
        return False
    return scrape.page.attempt == record.lives[-1].attempt


def note(record: JobRecord, scrape: ScrapeView) -> JobRecord:
    """Return the record with the page's process as its newest life; the same record if it is known."""
    life = speaking(scrape)
    if life is None or any(known.attempt == life for known in record.lives[:-1]):
        return record
    newest = record.lives[-1] if record.lives else None
    if newest is None or newest.attempt != life:
        new = LifeRecord(life, scrape.pod, scrape.pod_created, scrape.at, scrape.resumed_step, scrape.member)
        # Nobody will be asked any more whose checkpoint the one before started from.
        record = began_elsewhere(record) if record.lives and _start_unknown(record) else record
        former = tuple(replace(one, claimed=False) if one.claimed else one for one in record.lives)
        found = replace(record, lives=_kept((*former, new)), evals_in_attempt=0)
        if record.claim is not None and not record.claim.problem:
            found = claimed(found, Attempt(record.claim.attempt, record.claim.life))
        return _saved(found, found.lives[-1], scrape.checkpoint_step)
    if newest.resumed is None and scrape.resumed_step is not None:
        return resumed(record, scrape.resumed_step)
    return _saved(record, newest, scrape.checkpoint_step)


def claimed(record: JobRecord, attempt: Attempt) -> JobRecord:
    """Return the record once the folder is claimed for ``attempt``: for the newest process itself, or before
    the attempt of which it is the first."""
    newest = record.lives[-1] if record.lives else None
    if newest is None or newest.claimed or newest.attempt.number != attempt.number:
        return record
    first = sum(1 for one in record.lives if one.attempt.number == attempt.number) == 1
    if attempt.life != newest.attempt.life and not (first and not attempt.life):
        return record
    return replace(record, lives=(*record.lives[:-1], replace(newest, claimed=True)))


def _saved(record: JobRecord, newest: LifeRecord, step: int | None) -> JobRecord:
    """Return the record with what the newest process has saved, as long as that matters: until it has come to
    where an abandoned branch had been, or while it is not known whether there is one."""
    unknown = record.claim is not None and not newest.claimed
    if step is None or step == newest.saved or not (unknown or (newest.saved or 0) < record.abandoned_step):
        return record
    return replace(record, lives=(*record.lives[:-1], replace(newest, saved=step)))


def began_elsewhere(record: JobRecord) -> JobRecord:
    """Return the record once the newest process is known to have started from another branch's checkpoint, or
    it will never be known that it did not."""
    return replace(record, lives=(*record.lives[:-1], replace(record.lives[-1], other_branch=True)))


def _kept(lives: tuple[LifeRecord, ...]) -> tuple[LifeRecord, ...]:
    """Of one more life than is kept, all but the one that is missed least.

    That is the oldest that left no checkpoint on the newest one's way; then the oldest that started from the
    step of a later one. The first life stays: what it started from is the only checkpoint of before the job
    that counts. Where all are on the way the second goes: its checkpoints are refused as somebody else's.
    """
    if len(lives) <= LIVES_KEPT:
        return lives
    way = dict(_way(lives))
    between = range(1, len(lives) - 1)
    off = (i for i in between if i not in way)
    again = (i for i in between if i in way and any(way[j] == way[i] for j in way if j > i))
    gone = next(off, next(again, 1))
    return lives[:gone] + lives[gone + 1 :]


def _way(lives: tuple[LifeRecord, ...]) -> Iterator[tuple[int, int]]:
    """Yield which of these have left checkpoints on the way to where the newest stands, newest first: index,
    and the step after which they are its own. One that never said where it started has left none.

    Those that started from one and the same step all are: each may have saved that very step anew. None is
    before one that went on from another branch, or may have.
    """
    least: int | None = None
    for index in range(len(lives) - 1, -1, -1):
        step = lives[index].resumed
        after = step if step is not None and step > 0 else -1
        if step is not None and (least is None or after < least or (after == least and after > 0)):
            yield index, after
            least = after
            if lives[index].other_branch:
                return


def resumed(record: JobRecord, step: int) -> JobRecord:
    """Return the record with the step from which its newest life started."""
    return replace(record, lives=(*record.lives[:-1], replace(record.lives[-1], resumed=step)))


def branch(record: JobRecord, attempt: Attempt) -> tuple[BranchLife, ...]:
    """Return whose checkpoints lie on the way to an eval of this life, newest life first.

    The checkpoint of step c is on that way if the first of these with c > ``after`` wrote it. What was there
    before the job's first life is nobody's, but for the checkpoint that this life resumed from (``base``).
    So is what a process went on from that began within the present attempt, for which an inventory is made:
    it may be of a branch that was thought to be left.
    """
    if record.lives and record.lives[-1].attempt == attempt and _start_unknown(record):
        return (BranchLife(attempt, max(0, record.lives[-1].resumed or 0)),)
    return branch_by_steps(record, attempt)


def later(record: JobRecord, attempt: Attempt) -> tuple[Attempt, ...]:
    """Return the processes that came after this one, which did not start from anything that they saved."""
    known = [life.attempt for life in record.lives]
    return tuple(known[known.index(attempt) + 1 :]) if attempt in known else ()


def branch_by_steps(record: JobRecord, attempt: Attempt) -> tuple[BranchLife, ...]:
    """Return the same by the steps alone at which processes started, as if each had gone on from the one
    before. Whether that is so is what a claim is asked."""
    index = next((i for i, life in enumerate(record.lives) if life.attempt == attempt), None)
    if index is None or record.lives[index].resumed is None:
        return (BranchLife(attempt, -1),)
    lives = record.lives[: index + 1]
    within = {one.attempt for one in _within_attempt(record)}
    *found, oldest = (
        BranchLife(lives[i].attempt, after, after if lives[i].attempt in within and after > 0 else None)
        for i, after in _way(lives)
    )
    return (*found, oldest if oldest.after < 0 else oldest._replace(base=oldest.after))


def evaluated_apart(record: JobRecord) -> bool:
    """Return whether evals seem to come from processes of their own: each of the newest is the first of
    another process within one attempt, which said of no start."""
    newest = record.evals[-EVALUATORS:]
    began = {life.attempt: life.resumed for life in record.lives}
    if len({p.attempt for p in newest}) < EVALUATORS or len({p.attempt.number for p in newest}) > 1:
        return False
    first = record.lives[0].attempt  # which is taken to have begun afresh
    return all(began.get(p.attempt, 0) == (None if p.attempt == first else p.step - 1) for p in newest)


def apart_clause(record: JobRecord) -> str:
    """Return what helps where evals come from processes of their own, a clause; "": they do not."""
    if not evaluated_apart(record):
        return ""
    return f"its newest {EVALUATORS} evals are each of another process: {eval_process()}"


def start_unclaimed(record: JobRecord) -> int | None:
    """Return the step that the newest process started from, if no claim has told yet whose checkpoint that
    was; None: it began at the start, or is the first one of its attempt, or its claim was answered."""
    if len(record.lives) < 2 or record.claim is None or record.restored is not None:
        return None
    former, newest = record.lives[-2:]
    if newest.claimed or former.attempt.number != newest.attempt.number:
        return None
    return newest.resumed or None


def after_unseen(record: JobRecord) -> bool:
    """Return whether the newest process started from a checkpoint that nobody had seen when the attempt's
    folder was claimed: a process came before it, of which no page was ever read."""
    claim, newest = record.claim, record.lives[-1]
    if claim is None or claim.problem or claim.life or record.restored is not None:
        return False
    return claim.attempt == newest.attempt.number and (newest.resumed or 0) > claim.newest_step


def reached(record: JobRecord, life: LifeRecord) -> int | None:
    """Return the highest step of which a process is known to have a checkpoint: by its page, else by its
    evals; None: nothing is known of it."""
    if life.saved is not None:  # an eval of that step is no checkpoint of it
        return max(life.saved, life.resumed or 0)
    return max((p.step for p in record.evals if p.attempt == life.attempt), default=None)


def _start_unknown(record: JobRecord) -> bool:
    """Return whether nobody knows of which branch the checkpoint is that the newest process started from: it
    lies beyond all that the one before is known to have saved, and no claim has told yet."""
    step = start_unclaimed(record)
    if step is None:
        return False
    known = reached(record, record.lives[-2])
    return known is not None and known < step


def _within_attempt(record: JobRecord) -> tuple[LifeRecord, ...]:
    """Return the processes that began within the present attempt, and went on from what lay in the folder.
    One that is resumed from elsewhere may do so time after time."""
    if record.restored is not None:
        return ()
    present = tuple(one for one in record.lives if one.attempt.number == record.lives[-1].attempt.number)
    claim = record.claim
    of_first = claim is not None and bool(claim.life) and claim.life == present[0].attempt.life
    return present if of_first else present[1:]
