"""The order in which the RLHFJobs of a namespace have a checkpoint folder that several of them name.

It goes to the one that trains there or, where none does, to the one whose claim on it succeeded or that has
trained there: what is secured there is its own, and the claim's file on the store refuses every other. Where
none has it, the older one goes first, and of two made in one second the one whose name sorts first; and after
all of them one whose own claim was refused, for that claim says that another has the folder.
"""

from __future__ import annotations

from typing import NamedTuple

from controller.policy.job.access_requests import TAKEN
from controller.policy.types import JobKey

_TRAINS, _HAS_IT, _MAY_CLAIM, _REFUSED = range(4)  # ranks


class FolderTurn(NamedTuple):
    """One job's place in that order: of those whose folders lie in each other the smallest has it."""

    rank: int
    created: str
    key: JobKey


def folder_turn(
    key: JobKey, created: str, *, admitted: bool, begun: bool, claim_problem: str | None
) -> FolderTurn:
    """Return a job's place.

    Args:
        key: the job's.
        created: its creationTimestamp; these sort as times do.
        admitted: an attempt of it is on its way, or trains.
        begun: an attempt of it was started before.
        claim_problem: what its newest claim on the folder came to; "": it succeeded; None: it made none.
    """
    if admitted:
        return FolderTurn(_TRAINS, created, key)
    if claim_problem == TAKEN:
        return FolderTurn(_REFUSED, created, key)
    return FolderTurn(_HAS_IT if claim_problem == "" or begun else _MAY_CLAIM, created, key)


def why_before(first: FolderTurn, own: FolderTurn) -> str:
    """Return in words why ``first`` comes before ``own``, as a clause about the first job."""
    if first.rank != own.rank:
        return "which is to claim it" if first.rank == _MAY_CLAIM else "which has it already"
    if first.created == own.created:
        return "which was made in the same second and goes first by its name"
    return "which was there first"
