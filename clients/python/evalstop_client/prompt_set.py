"""The set of prompts of an eval as a digest, which tells two sets apart and shows nothing of either.

Standard library only, Python 3.9 or newer. With results of each prompt it is on the page (label
``prompt_set``). Adapters whose trainer has no name for the set put it into the evaluator's version.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

PROMPT = "prompt"  # column of the datasets of TRL's trainers


def hash_of(key: Any) -> bytes:
    """Return the hash by which a prompt's key is known, 16 bytes."""
    return blake2b(repr(key).encode(errors="replace"), digest_size=16).digest()


def digest_of(hashes: Iterable[bytes]) -> str:
    """Return the digest of a set, 16 hexadecimal digits, from its hashes in any order."""
    return blake2b(b"".join(sorted(hashes)), digest_size=8).hexdigest()


def of_datasets(datasets: Iterable[Any]) -> str | None:
    """Return the digest of all prompts of these datasets; None: one has no length, or no column `PROMPT`.

    A prompt that comes twice counts twice. It is text, or a list of messages.
    """
    hashes: list[bytes] = []
    for dataset in datasets:
        columns = getattr(dataset, "column_names", None)
        if not isinstance(columns, (list, tuple)) or PROMPT not in columns or not hasattr(dataset, "__len__"):
            return None
        hashes += map(hash_of, dataset[PROMPT])
    return digest_of(hashes) if hashes else None
