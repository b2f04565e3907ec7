"""Files as trainers' libraries leave them, but small: archives with an end record, headers with sizes."""

from __future__ import annotations

import io
import json
import pickle
import struct
import sys
import types
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


def archive(size: int = 3000, seed: int = 0) -> bytes:
    """What torch.save writes: a zip archive, stored, of exactly ``size`` bytes (at least 600)."""
    buffer = io.BytesIO()
    overhead = 2 * (30 + 46) + 2 * (len("a/data.pkl") + len("a/data/0")) + 22
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as out:
        out.writestr(zipfile.ZipInfo("a/data.pkl"), b"p" * 100)
        out.writestr(zipfile.ZipInfo("a/data/0"), bytes([seed % 251]) * (size - overhead - 100))
    return buffer.getvalue()


def states(size: int, **numbers: int | bool) -> bytes:
    """What torch.save writes of a dictionary with numbers in it, as DeepSpeed's model states have them, and
    the Trainer's arguments."""
    buffer = io.BytesIO()
    said = pickle.dumps({"module": {}, **numbers}, protocol=2)  # torch.save's protocol
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as out:
        out.writestr(zipfile.ZipInfo("a/data.pkl"), said)
        out.writestr(zipfile.ZipInfo("a/data/0"), bytes(size))
    return buffer.getvalue()


def safetensors(size: int = 4000, seed: int = 0) -> bytes:
    """One tensor, with the header that says where it ends."""
    header = {"w": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size // 4 * 4]}}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes([seed % 251]) * (size // 4 * 4)


class _Plain:
    """An object that is pickled as a dataclass of its name is: class, then the dictionary of its fields."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


@contextmanager
def _classes(*names: str) -> Iterator[list[type]]:
    """Stand-ins under the names of torch's own classes, so that the pickle names those."""
    made = []
    before = {key: module for key, module in sys.modules.items() if key.partition(".")[0] == "torch"}
    for key in before:
        del sys.modules[key]
    for name in names:
        module, _, last = name.rpartition(".")
        parts = module.split(".")
        for part in (".".join(parts[:end]) for end in range(1, len(parts) + 1)):
            sys.modules.setdefault(part, types.ModuleType(part)).__path__ = []
        kind = type(last, (_Plain,), {"__module__": module, "__qualname__": last})
        setattr(sys.modules[module], last, kind)
        made.append(kind)
    try:
        yield made
    finally:
        for key in [key for key in sys.modules if key.partition(".")[0] == "torch"]:
            del sys.modules[key]
        sys.modules.update(before)


def distributed(
    world: int, step: int, per_rank: int = 2, first: str = "layer"
) -> tuple[dict[int, dict[str, bytes]], bytes]:
    """What torch.distributed.checkpoint.save writes: each rank's ``__<r>_0.distcp``, and ``.metadata``.

    Follows torch 2.15.0, torch/distributed/checkpoint/filesystem.py: `_FileSystemWriter.write_data` (files
    ``__<rank>_<n>.distcp``, one item behind the other) and `finish` (a pickled `Metadata` with
    `storage_data`: index -> `_StorageInfo(relative_path, offset, length)`). ``first``: how the names of what
    is saved begin.
    """
    prefix = "torch.distributed.checkpoint"
    wanted = (
        f"{prefix}.metadata.Metadata",
        f"{prefix}.metadata.MetadataIndex",
        f"{prefix}.filesystem._StorageInfo",
    )
    with _classes(*wanted) as (metadata, index, info):
        files: dict[int, dict[str, bytes]] = {}
        storage: dict[Any, Any] = {}
        for rank in range(world):
            name, content = f"__{rank}_0.distcp", b""
            for item in range(per_rank):
                piece = archive(900 + 40 * item, seed=step)
                key = index(fqn=f"{first}.{rank}.{item}", offset=None, index=None)
                storage[key] = info(relative_path=name, offset=len(content), length=len(piece))
                content += piece
            files[rank] = {name: content}
        whole = metadata(
            state_dict_metadata={}, planner_data={}, storage_data=storage, storage_meta=None, version="1.0.0"
        )
        return files, pickle.dumps(whole)


def text(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=2) + "\n").encode()
