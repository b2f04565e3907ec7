"""What can happen in the world (`base`), by what it happens to."""

from __future__ import annotations

from tests.faults.acts import base, operators, outside, pages, restarts, store, trainers, users
from tests.faults.acts.base import Act, Entry

# In an order of their own: what a seed draws depends on it.
ACTS: dict[str, Entry] = {
    name: entry
    for module in (trainers, restarts, pages, store, users, outside, operators)
    for name, entry in base.ACTS.items()
    if entry.act.__module__ == module.__name__
}

__all__ = ["ACTS", "Act"]
