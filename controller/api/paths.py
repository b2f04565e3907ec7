"""Paths of pins in a status: said once as a folder (``pinsFolder``), and below it by their names alone.

A location may have 512 characters, and a status names up to 27 pins: in full they would take more room than
everything else. Retained checkpoints, which people copy from, keep their paths whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from controller import names

FOLDER = "pinsFolder"
Json = dict[str, Any]

_PIN = re.compile(rf"(?P<folder>.+/{re.escape(names.PINS_FOLDER)}/[^/]+)/[^/]")
_CHECKPOINTS = ("secured", "beside", "restored")


def gathered(status: Json) -> Json:
    """Return a status with its pins' paths relative to the folder of the first of them; `spread` is its
    inverse."""
    every = list(_paths(status))
    found = next(filter(None, map(_PIN.match, every)), None)
    if found is None or not all(map(_whole, every)):
        return status
    prefix = f"{found['folder']}/"

    def below(path: str) -> str:
        rest = path.removeprefix(prefix)
        return rest if rest and not _whole(rest) else path

    return {FOLDER: found["folder"], **_replaced(status, below)}


def spread(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a stored status with every path in full."""
    folder = status.get(FOLDER)
    if not folder:
        return status
    return _replaced(status, lambda path: path if _whole(path) else f"{folder}/{path}")


def _whole(path: str) -> bool:
    return path.startswith("/") or "://" in path


def _paths(status: Mapping[str, Any]) -> Iterator[str]:
    found: list[str] = []

    def seen(path: str) -> str:
        found.append(path)
        return path

    _replaced(status, seen)
    yield from found


def _replaced(status: Mapping[str, Any], change: Callable[[str], str]) -> Json:
    """Return the status with each path of a pin changed."""

    def kept(checkpoint: Mapping[str, Any]) -> Json:
        return {**checkpoint, "path": change(checkpoint["path"])}

    out = dict(status)
    for name in _CHECKPOINTS:
        if name in out:
            out[name] = kept(out[name])
    if "pinned" in out:
        out["pinned"] = [kept(one) for one in out["pinned"]]
    if "kept" in (out.get("baseline") or {}):
        out["baseline"] = {**out["baseline"], "kept": kept(out["baseline"]["kept"])}
    if "highest" in ((out.get("baseline") or {}).get("short") or {}):
        short = out["baseline"]["short"]
        out["baseline"] = {**out["baseline"], "short": {**short, "highest": kept(short["highest"])}}
    if "toRelease" in out:
        out["toRelease"] = [change(path) for path in out["toRelease"]]
    if "release" in (out.get("access") or {}):
        out["access"] = {**out["access"], "release": [change(path) for path in out["access"]["release"]]}
    return out
