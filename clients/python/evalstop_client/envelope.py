"""Bodies with arrays, as they travel between a job, its worker group and the workers. Standard library only,
Python 3.9.

    4 bytes, big-endian: length of the header
    the header:          JSON, an object; header["arrays"] names the arrays that follow
    the arrays' bytes:   one after the other, C order, little-endian

There are no pickles: whoever reads one runs nothing.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

MOST_HEADER = 4 << 20  # bytes
MOST_ARRAYS = 4096
# Bytes of one element; `bf16` is none of NumPy's.
ITEM_BYTES = {
    "|b1": 1, "|i1": 1, "|u1": 1, "<i2": 2, "<u2": 2, "<f2": 2, "bf16": 2, "<i4": 4, "<u4": 4, "<f4": 4,
    "<i8": 8, "<u8": 8, "<f8": 8,
}  # fmt: skip


class EnvelopeError(ValueError):
    """Bytes that are no envelope; the message says why."""


class Array(NamedTuple):
    """An array as it travels.

    Args:
        dtype: one of `ITEM_BYTES`, as NumPy writes it.
        shape: of it.
        data: its bytes, C order; anything with the buffer protocol.
    """

    dtype: str
    shape: tuple[int, ...]
    data: Any


def encode(header: Mapping[str, Any], arrays: Mapping[str, Array] | None = None) -> list[Any]:
    """Return the parts of an envelope: bytes, and the arrays' own buffers, which are not copied.

    Args:
        header: JSON values; without ``arrays``.
        arrays: by name.

    Raises:
        EnvelopeError: an array has not as many bytes as its shape says, or the header is too large.
        ValueError: a number is NaN or infinite.
    """
    listed, buffers = [], []
    for name, array in (arrays or {}).items():
        data = _flat(array.data)
        _check(name, array.dtype, array.shape, data.nbytes)
        listed.append({"name": name, "dtype": array.dtype, "shape": list(array.shape), "bytes": data.nbytes})
        buffers.append(data)
    text = json.dumps({**header, "arrays": listed}, separators=(",", ":"), allow_nan=False).encode()
    if len(text) > MOST_HEADER:
        raise EnvelopeError(f"header: {len(text)} bytes, at most {MOST_HEADER} are allowed")
    return [struct.pack(">I", len(text)) + text, *buffers]


def length(parts: Iterable[Any]) -> int:
    """Return the bytes of an envelope's parts."""
    return sum(memoryview(part).nbytes for part in parts)


def joined(parts: Iterable[Any]) -> bytes:
    """Return an envelope in one piece."""
    return b"".join(parts)


def decode(body: Any) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return header (without ``arrays``) and arrays by name; their data are views of the body.

    Raises:
        EnvelopeError: it is no envelope.
    """
    view = _flat(body)
    if view.nbytes < 4:
        raise EnvelopeError(f"{view.nbytes} bytes are no envelope")
    (size,) = struct.unpack(">I", view[:4])
    if size > MOST_HEADER or 4 + size > view.nbytes:
        raise EnvelopeError(f"header: a length of {size} in a body of {view.nbytes} bytes")
    header = _header(bytes(view[4 : 4 + size]))
    listed = header.pop("arrays", [])
    if not isinstance(listed, list) or len(listed) > MOST_ARRAYS:
        raise EnvelopeError(f"arrays: expected a list of at most {MOST_ARRAYS}")
    arrays, at = {}, 4 + size
    for one in listed:
        name, dtype, shape, nbytes = _named(one)
        if name in arrays:
            raise EnvelopeError(f"arrays: {name[:60]!r} comes twice")
        _check(name, dtype, shape, nbytes)
        if at + nbytes > view.nbytes:
            raise EnvelopeError(f"arrays: {name[:60]!r} has {nbytes} bytes, {view.nbytes - at} are left")
        arrays[name] = Array(dtype, shape, view[at : at + nbytes])
        at += nbytes
    if at != view.nbytes:
        raise EnvelopeError(f"{view.nbytes - at} bytes too many")
    return header, arrays


def _header(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text.decode())
    except (ValueError, RecursionError):
        raise EnvelopeError("header: not JSON") from None
    if not isinstance(header, dict):
        raise EnvelopeError("header: expected a JSON object")
    return header


def _named(one: Any) -> tuple[str, str, tuple[int, ...], int]:
    if not isinstance(one, dict):
        raise EnvelopeError("arrays: expected objects with name, dtype, shape and bytes")
    name, dtype, shape, nbytes = (one.get(field) for field in ("name", "dtype", "shape", "bytes"))
    if (
        not isinstance(name, str)
        or not isinstance(dtype, str)
        or not isinstance(shape, list)
        or len(shape) > 32
        or any(type(size) is not int or not 0 <= size < 1 << 48 for size in shape)
        or type(nbytes) is not int
        or nbytes < 0
    ):
        raise EnvelopeError("arrays: expected objects with name, dtype, shape and bytes")
    return name, dtype, tuple(shape), nbytes


def _check(name: str, dtype: str, shape: tuple[int, ...], nbytes: int) -> None:
    item = ITEM_BYTES.get(dtype)
    if item is None:
        raise EnvelopeError(
            f"arrays: {name[:60]!r}: dtype {dtype[:20]!r}, expected one of {', '.join(ITEM_BYTES)}"
        )
    if math.prod(shape) * item != nbytes:
        raise EnvelopeError(
            f"arrays: {name[:60]!r}: {nbytes} bytes, expected {math.prod(shape) * item} for the shape {shape}"
        )


def _flat(data: Any) -> memoryview:
    view = memoryview(data)
    if not view.c_contiguous:
        raise EnvelopeError("an array that does not lie in one piece in C order")
    if view.nbytes == 0:
        return memoryview(b"")
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")
