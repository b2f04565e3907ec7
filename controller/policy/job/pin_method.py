"""The way a pin was made, as one text: ``clone``, ``link`` or ``copy``, joined by ``+`` where files differ.

A module of its own: the access program reads it too, and an access Job is mostly start-up.
"""

from __future__ import annotations


def is_linked(method: str) -> bool:
    """Return whether some files of a pin are those of the trainer, under a second name."""
    return "link" in method.split("+")
