"""torch.distributed.checkpoint: the files, offsets and lengths that its ``.metadata`` promises.

``FileSystemWriter.finish`` (torch/distributed/checkpoint/filesystem.py, 2.15) writes ``.metadata`` after
every rank has written, as a pickle of ``Metadata``: ``storage_data`` maps each piece to a ``_StorageInfo``
with ``relative_path``, ``offset`` and ``length`` in bytes. Megatron's ``dist_checkpointing`` writes the same,
and ``metadata.json`` after it. What all ranks share it writes to ``common.pt`` before the shards, or, in
versions of 2026, into them, as an object ``common_state`` (NeMo-RL, nemo_rl/utils/checkpoint.py
`get_resume_paths`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from controller.bounded import shown
from controller.checkpoints.completeness import streams
from controller.checkpoints.completeness.pickles import Inert, PickleProblem, load
from controller.checkpoints.completeness.ranks import DIGITS
from controller.checkpoints.weights import Content

METADATA = ".metadata"
EXACT_LIMIT = 4 << 20  # bytes of metadata that are built as objects, about 25 times as many in memory
_BYTES_MOST = 1 << 62  # of a file; a number in a pickle may have any length
PIECE = 1 << 20  # bytes scanned at a time where it is larger
SHARD = re.compile(rf"__(?P<rank>{DIGITS})_{DIGITS}\.distcp")
_COMMON = re.compile(rb"(common_state)/")  # Megatron's name of the object, with that of its part
_SHARD_BYTES = re.compile(rb"__\d{1,9}_\d{1,9}\.distcp")


def folders(content: Content) -> list[str]:
    """Folders of a checkpoint that hold shards or metadata of this format; "" is the checkpoint's own."""
    found = set()
    for name in content.files():
        folder, _, last = name.rpartition("/")
        if last == METADATA or SHARD.fullmatch(last):
            found.add(folder)
    return sorted(found)


def any_problem(content: Content) -> str | None:
    """Return the `problem` of the first folder that has one; None: none has."""
    return next(filter(None, (problem(content, folder) for folder in folders(content))), None)


def problem(content: Content, folder: str) -> str | None:
    """Return why the shards in a folder are not those that its metadata promises; None: they are."""
    at = f"{folder}/" if folder else ""
    sizes = content.files()
    if at + METADATA not in sizes:
        return f"no {at}{METADATA}: it is written when every rank has finished, so the save is not finished"
    try:
        promised = promises(content, at + METADATA)
    except PickleProblem as broken:
        return f"{at}{METADATA} is not whole: {broken}"
    if not promised:
        return f"{at}{METADATA} names no shard"
    for name, length in sorted(promised.items()):
        if at + name not in sizes:
            return f"{at}{name} is missing ({at}{METADATA} lists it)"
        if sizes[at + name] < length:
            return f"{at}{name} has {sizes[at + name]} of {length} bytes"
    ended, common = f"{at}metadata.json" in sizes, f"{at}common.pt" in sizes
    if ended and common:
        return None
    inside = any(streams.matches(content, at + METADATA, _COMMON))
    if not ended and (common or inside):
        return f"no {at}metadata.json: Megatron writes it last, so the save is not finished"
    if ended and not inside:
        return f"{at}common.pt is missing: Megatron writes it before the shards"
    return None


def megatron(content: Content, folder: str) -> bool:
    """Return whether the shards in a folder are Megatron's, which ends a save with ``metadata.json``."""
    return (f"{folder}/metadata.json" if folder else "metadata.json") in content.files()


def world_size(content: Content, folder: str) -> int | None:
    """Return how many ranks wrote the shards in a folder, at least; None: nothing says so."""
    try:
        names = promises(content, f"{folder}/{METADATA}" if folder else METADATA)
    except (PickleProblem, KeyError):
        return None
    ranks = [int(match["rank"]) for match in map(SHARD.fullmatch, names) if match]
    return max(ranks) + 1 if ranks else None


def promises(content: Content, name: str) -> dict[str, int]:
    """Return names of the files that metadata lists, and how many bytes of each it needs.

    Metadata of more than `EXACT_LIMIT` bytes is scanned for names alone: then each needs one byte.

    Raises:
        PickleProblem: the metadata is cut off or of another form.
    """
    size = content.files()[name]
    if size > EXACT_LIMIT:
        return _scanned(content, name, size)
    metadata = load(content.read_range(name, 0, size))
    state = metadata.state if isinstance(metadata, Inert) else None
    if not isinstance(state, dict):
        raise PickleProblem("it holds no Metadata")
    needed: dict[str, int] = {}
    for value in _values(state.get("storage_data")):
        info = value.state if isinstance(value, Inert) else None
        if isinstance(info, dict) and isinstance(info.get("relative_path"), str):
            path, offset, length = info["relative_path"], info.get("offset"), info.get("length")
            if not isinstance(offset, int) or not isinstance(length, int):
                raise PickleProblem(f"{shown(path)} has no offset and length")
            if not 0 <= offset < _BYTES_MOST or not 0 <= length < _BYTES_MOST:
                raise PickleProblem(f"{shown(path)} has an offset or length that no file has")
            needed[path] = max(needed.get(path, 1), offset + length)
    return needed


def _values(storage: Any) -> Iterator[Any]:
    if isinstance(storage, dict):
        yield from storage.values()
    elif isinstance(storage, Inert):  # an OrderedDict
        for item in storage.items or ():
            yield item[1] if isinstance(item, tuple) and len(item) == 2 else None


def _scanned(content: Content, name: str, size: int) -> dict[str, int]:
    if content.read_range(name, -1, 1) != b".":
        raise PickleProblem("its end is missing")
    found: set[bytes] = set()
    rest = b""
    for start in range(0, size, PIECE):
        data = rest + content.read_range(name, start, min(PIECE, size - start))
        found.update(_SHARD_BYTES.findall(data))
        rest = data[-32:]
    return {path.decode(): 1 for path in found}
