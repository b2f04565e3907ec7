"""Read the API server's answers with limits: an object that holds too much spoils no page and no watch.

Objects are JSON that tenants wrote. The server takes them nested thousands of levels deep (an RLHFJob's
template, whose fields no schema knows; anybody's managedFields), which no Python reader survives. What is too
deep is left out, and the object says so in a field of its own (`problem`); who keeps objects then puts it
aside.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from controller import bounded, names

Object = dict[str, Any]

# Field of an object, beside metadata, spec and status: why it is not to be gone by. No tenant can write it:
# the server drops what the schema does not have.
PROBLEM = f"{names.GROUP}/unreadable"

SMALL = 1 << 18  # bytes that may be read in an event loop whatever is in them

_NAMED = 8  # parts of a path that a message has


def decode(data: bytes) -> Object:
    """Return an answer, be it an object, a page of a LIST, or an event of a watch.

    Fast unless something in it is too deep, which may take a second: then in a thread
    (`controller.kube.client`).

    Raises:
        ValueError: it is no JSON object.
    """
    try:
        return decode_plain(data)
    except ValueError:
        pruned, cuts = bounded.prune(data, bounded.DEPTH)
    answer = decode_plain(pruned)
    for cut in cuts:
        _note(answer, cut)
    return answer


def decode_plain(data: bytes) -> Object:
    """Return the same, of an answer in which nothing is too deep. Raises ValueError also where
    something is."""
    from pydantic_core import from_json

    answer = from_json(data, allow_inf_nan=False, cache_strings="keys")
    if not isinstance(answer, dict):
        raise ValueError(f"a JSON {type(answer).__name__}, expected an object")
    return answer


def decode_briefly(data: bytes) -> Object:
    """Return what `decode` does, for a command that reads some few answers: loading pydantic takes longer
    than Python's own reader takes for `SMALL` bytes.

    What that reader would take otherwise, or not at all, goes the long way. Raises as `decode`.
    """
    answer = briefly(data) if "pydantic_core" not in sys.modules else None
    return decode(data) if answer is None else answer


def briefly(data: bytes) -> Object | None:
    """Return what `decode` does, by Python's own reader; None: it would take it otherwise, or not at all."""
    if len(data) > SMALL or b"\\ud" in data.lower():  # of a surrogate alone pydantic makes no text
        return None
    try:
        answer = bounded.load(data, "the answer", SMALL)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def problem(obj: Mapping[str, Any]) -> str:
    """Return why an object is not to be gone by; "": nothing is wrong with it."""
    return str(obj.get(PROBLEM) or "")


def _note(answer: Object, cut: bounded.Cut) -> None:
    """Say on the object that something of it was left out; nobody reads managedFields."""
    owner, path = answer, cut.path
    if path[:1] == ("items",) and len(path) > 1:
        owner, path = answer["items"][path[1]], path[2:]
    elif path[:1] == ("object",) and len(path) > 1:
        owner, path = answer["object"], path[1:]
    if path[:2] == ("metadata", "managedFields"):
        return
    if not isinstance(owner, dict):  # an entry of a list that is no object: nobody reads that either
        return
    where = ".".join(map(str, path[:_NAMED])) + ("…" if len(path) > _NAMED else "")
    owner.setdefault(PROBLEM, f"{where}: {cut.why}")
