"""Words that messages share."""

from __future__ import annotations

from collections.abc import Sequence


def some(names: Sequence[str], most: int) -> str:
    """The first ``most`` of them, and how many more there are: ``a, b and 3 more``."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


_EVIDENCE = {
    "SaveRecord": "whole by its save record",
    "Manifest": "whole by its manifest",
    "Siblings": "whole as far as its siblings tell, for it has no save record",
}


def whole_by(evidence: str) -> str:
    """By what a checkpoint is known to be whole, as a clause; "": nobody said."""
    return _EVIDENCE.get(evidence, f"whole by {evidence}" if evidence else "")
