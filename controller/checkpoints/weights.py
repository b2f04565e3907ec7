"""Was a weights file written to its end? Cheap checks by file format, reading a few kilobytes each.

Trainers write these files in place, so a checkpoint that is just being saved has them at their final names
but cut short. Every format here carries its own end: zip archives (torch.save) a directory at the end,
safetensors a header that gives the total size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from controller import bounded

HEADER_READ_WHOLE = 4 << 20  # bytes, of about 40,000 tensors
ZIP_END = b"PK\x05\x06"
ZIP_END_SIZE = 22  # bytes, without its comment
ZIP_END_SEARCH = 66_000  # bytes: the record's 22 and the longest comment it may carry
PICKLE_START = b"\x80"  # torch.save before 1.6 and plain pickles: protocol mark first, '.' last
SAFETENSORS_HEADER_LIMIT = 100 << 20  # bytes, the format's own limit

TORCH_SUFFIXES = (".pt", ".pth", ".bin", ".distcp", ".ckpt")


class Content(Protocol):
    """One checkpoint's files, by their name inside it."""

    def files(self) -> Mapping[str, int]:
        """Sizes in bytes by name."""
        ...

    def read(self, name: str, limit: int = 1 << 20) -> bytes: ...

    def read_range(self, name: str, start: int, length: int) -> bytes: ...


def truncation(content: Content, name: str) -> str | None:
    """Return why a weights file cannot be whole; None if it looks whole or is of a format unknown here."""
    size = content.files()[name]
    if size == 0:
        return f"{name} is empty"
    check = _checker(name)
    return check(content, name, size) if check else None


def _checker(name: str) -> Callable[[Content, str, int], str | None] | None:
    if name.endswith(".safetensors"):
        return _safetensors
    if name.endswith(TORCH_SUFFIXES):
        return _torch
    if name.endswith(".json"):
        return _json
    return None


def _json(content: Content, name: str, size: int) -> str | None:
    start, end = content.read_range(name, 0, 1), content.read_range(name, -min(size, 256), 256).rstrip()[-1:]
    if (start, end) in ((b"{", b"}"), (b"[", b"]")) or start not in (b"{", b"["):
        return None
    return f"{name} ({size} bytes) is cut off: still being written"


def _torch(content: Content, name: str, size: int) -> str | None:
    start = content.read_range(name, 0, 4)
    if start[:2] == b"PK":
        if _zip_ends(content.read_range(name, -min(size, ZIP_END_SEARCH), ZIP_END_SEARCH)):
            return None
        return f"{name} ({size} bytes) is a torch archive without its end: still being written, or cut off"
    if start[:1] == PICKLE_START and content.read_range(name, -1, 1) == b".":
        return None
    if start[:1] == PICKLE_START and name.endswith(".pt"):
        return None  # old torch format: tensors follow the pickles, its end cannot be told
    return None if name.endswith((".bin", ".distcp")) else f"{name} ({size} bytes) is no torch file"


def _zip_ends(tail: bytes) -> bool:
    """Return whether a zip archive's last record is there and ends with the file."""
    at = tail.rfind(ZIP_END)
    if at < 0 or at + ZIP_END_SIZE > len(tail):
        return False
    comment = int.from_bytes(tail[at + ZIP_END_SIZE - 2 : at + ZIP_END_SIZE], "little")
    return at + ZIP_END_SIZE + comment == len(tail)


def _safetensors(content: Content, name: str, size: int) -> str | None:
    if size < 8:
        return f"{name} ({size} bytes) is cut off before its header"
    length = int.from_bytes(content.read_range(name, 0, 8), "little")
    if length > SAFETENSORS_HEADER_LIMIT:
        return f"{name} is no safetensors file: its header would be {length} bytes long"
    if 8 + length > size:
        return f"{name} ({size} bytes) is cut off inside its header of {length} bytes"
    if length > HEADER_READ_WHOLE:
        return None  # tens of thousands of tensors: to read it whole would take more memory than the Job has
    try:
        header = bounded.load(content.read_range(name, 8, length), name, HEADER_READ_WHOLE)
        tensors = (value for key, value in header.items() if key != "__metadata__")
        end = max((int(tensor["data_offsets"][1]) for tensor in tensors), default=0)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return f"{name} has a header that is no safetensors header"
    expected = 8 + length + end
    if size < expected:
        return f"{name} has {size} of {expected} bytes: still being written, or cut off"
    return None
