"""List a folder's checkpoints as an access Job would find them: whole or why not, and what loads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controller.checkpoints.errors import AccessError, Damaged, Vanished
from controller.checkpoints.judge import Survey
from controller.checkpoints.layouts import Candidate, Layout
from controller.checkpoints.rights import Pinning, User, pinning
from controller.checkpoints.store import Store
from controller.frozen import dataclass


@dataclass(frozen=True, slots=True)
class Listed:
    """One checkpoint. ``problem`` None: it is whole, by ``evidence``. ``pinning`` None: of no user asked."""

    step: int
    name: str
    problem: str | None
    evidence: str = ""
    attempt: str = ""
    bytes: int = 0
    files: int = 0
    loads: str = ""
    pinning: Pinning | None = None

    def to_json(self) -> Mapping[str, Any]:
        """Return it as a JSON object, without what is not known."""
        found: dict[str, Any] = {
            "step": self.step,
            "name": self.name,
            "whole": self.problem is None,
            "bytes": self.bytes,
            "files": self.files,
        }
        for key, value in (("evidence", self.evidence), ("problem", self.problem), ("loads", self.loads)):
            if value:
                found[key] = value
        if self.pinning is not None:
            found["pin"] = {"method": self.pinning.method or None, "problem": self.pinning.problem or None}
        return found


def listed(store: Store, layout: Layout, user: User | None = None) -> list[Listed]:
    """Return the checkpoints of a location, newest step first, judged as they are now, whoever wrote them.

    ``user``: who would pin them; for that the location must be a folder of this machine.

    Raises:
        AccessError: STORE_UNREACHABLE, the location cannot be read.
    """
    survey = Survey(store, layout)
    return [_listed(survey, candidate, user) for candidate in survey.candidates]


def _listed(survey: Survey, candidate: Candidate, user: User | None) -> Listed:
    try:
        verdict = survey.verdict(candidate)
        content = candidate.content(survey.store)
        sizes = content.files()
        own = None
        if user is not None:
            own = pinning(survey.store.root, {name: content.where(name) for name in sizes}, user)
    except (Vanished, Damaged, AccessError, FileNotFoundError) as error:
        return Listed(candidate.step, candidate.name, str(error))
    return Listed(
        candidate.step,
        candidate.name,
        verdict.problem,
        verdict.evidence if verdict.problem is None else "",
        verdict.attempt,
        sum(sizes.values()),
        len(sizes),
        survey.layout.loads(content) if verdict.problem is None else "",
        own,
    )
