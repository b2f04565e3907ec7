"""What travels between a job and its group: JSON with arrays in it. No pickles: what is read runs nothing.

A packed value is the length of its head (8 bytes, little endian), the head (JSON), and the arrays' bytes, each
at a multiple of 64. In the head an array is ``{"$array": [dtype, shape, offset, bytes]}``. dtypes are NumPy's
names, and "bfloat16". NumPy arrays and torch tensors are packed as they are; unpacked is an `Array`, which
`numpy.asarray` takes, and `torch_family.tensor`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Union

Bytes = Union[bytes, bytearray, memoryview]

WIDTHS = {
    "bool": 1, "uint8": 1, "int8": 1, "float16": 2, "bfloat16": 2, "int16": 2, "uint16": 2, "float32": 4, "int32": 4,
    "uint32": 4, "float64": 8, "int64": 8, "uint64": 8,
}  # fmt: skip
_ALIGNED = 64
_MARK = "$array"
_MOST_HEAD = 64 << 20  # bytes
_DEEPEST = 32


class PackingError(ValueError):
    """Bytes that are no packed value, or a value that cannot be packed; the message says where."""


class Array(NamedTuple):
    """An array: its elements' type, its shape, and its bytes in C order, which are not copied."""

    dtype: str
    shape: tuple[int, ...]
    content: memoryview

    @property
    def __array_interface__(self) -> dict[str, Any]:
        kind = {"b": "b", "u": "u", "i": "i", "f": "f"}[self.dtype[0]]
        if self.dtype == "bfloat16":
            raise TypeError("bfloat16: NumPy has no such type; torch_family.tensor takes it")
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": f"{'|' if WIDTHS[self.dtype] == 1 else '<'}{kind}{WIDTHS[self.dtype]}",
            "data": self.content if self.content.nbytes else bytes(WIDTHS[self.dtype]),
        }


def pack(value: Any) -> bytes:
    """Return a value as bytes.

    Raises:
        PackingError: a part of it is neither JSON nor an array of numbers; the message names it.
    """
    parts: list[Bytes] = []
    head = json.dumps(_packed(value, "value", parts, [0], 0), separators=(",", ":"), allow_nan=True).encode()
    # The arrays begin at a multiple of 64, so that nobody has to copy them to compute with them.
    head += b" " * (-(8 + len(head)) % _ALIGNED)
    return b"".join([len(head).to_bytes(8, "little"), head, *parts])


def unpack(content: Bytes) -> Any:
    """Return the value; its arrays are views of ``content``.

    Raises:
        PackingError: these bytes are no packed value.
    """
    view = memoryview(content).cast("B")
    size = int.from_bytes(view[:8], "little")
    if len(view) < 8 or not 0 < size <= min(_MOST_HEAD, len(view) - 8):
        raise PackingError(f"{len(view)} bytes are no packed value: its head is said to have {size}")
    try:
        head = json.loads(bytes(view[8 : 8 + size]))
    except (ValueError, RecursionError) as fault:
        raise PackingError(f"the head of a packed value is no JSON: {fault}") from None
    return _unpacked(head, view[8 + size :], 0)


def _packed(value: Any, where: str, parts: list[Bytes], used: list[int], depth: int) -> Any:
    if depth > _DEEPEST:
        raise PackingError(f"{where}: deeper than {_DEEPEST} levels")
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str) or key == _MARK:
                raise PackingError(f"{where}: key {key!r}, expected a text other than {_MARK!r}")
        return {key: _packed(one, f"{where}.{key}", parts, used, depth + 1) for key, one in value.items()}
    array = _array_of(value, where)
    if array is not None:
        offset, count = used[0], array.content.nbytes
        space = -count % _ALIGNED
        parts += [array.content, bytes(space)]
        used[0] = offset + count + space
        return {_MARK: [array.dtype, list(array.shape), offset, count]}
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray, memoryview)):
        return [_packed(one, f"{where}[{i}]", parts, used, depth + 1) for i, one in enumerate(value)]
    raise PackingError(f"{where}: {type(value).__name__} cannot be packed, expected JSON or an array")


def _array_of(value: Any, where: str) -> Array | None:
    """Return an array of NumPy's, of torch's or of ours; None: it is none."""
    if isinstance(value, Array):
        return value
    if hasattr(value, "detach") and hasattr(value, "element_size"):
        tensor = value.detach().cpu().contiguous()
        dtype, shape = str(tensor.dtype).rpartition(".")[2], tuple(int(n) for n in tensor.shape)
        if dtype not in WIDTHS:
            raise PackingError(f"{where}: a tensor of {dtype}, expected one of {', '.join(sorted(WIDTHS))}")
        # By way of bytes: NumPy has no bfloat16.
        import torch  # type: ignore[import-not-found, unused-ignore]

        flat = tensor.reshape(-1).view(torch.uint8).numpy() if tensor.numel() else bytearray()
        return Array(dtype, shape, memoryview(flat).cast("B"))
    if hasattr(value, "__array_interface__"):
        import numpy

        array = numpy.ascontiguousarray(value)
        shape = tuple(int(n) for n in numpy.shape(value))
        if array.dtype.name not in WIDTHS:
            raise PackingError(f"{where}: an array of {array.dtype}, expected one of {', '.join(sorted(WIDTHS))}")
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        content = memoryview(array.reshape(-1).view(numpy.uint8)) if array.size else memoryview(b"")
        return Array(array.dtype.name, shape, content.cast("B"))
    return None


def _unpacked(value: Any, content: memoryview, depth: int) -> Any:
    if depth > _DEEPEST:
        raise PackingError(f"deeper than {_DEEPEST} levels")
    if isinstance(value, list):
        return [_unpacked(one, content, depth + 1) for one in value]
    if not isinstance(value, dict):
        return value
    if _MARK not in value:
        return {key: _unpacked(one, content, depth + 1) for key, one in value.items()}
    try:
        dtype, shape, offset, count = value[_MARK]
        sound = (
            dtype in WIDTHS
            and all(type(n) is int and n >= 0 for n in (*shape, offset, count))
            and count == WIDTHS[dtype] * math.prod(shape)
            and offset + count <= len(content)
        )
    except (TypeError, ValueError):
        sound = False
    if not sound:
        raise PackingError(f"an array of a packed value is {str(value[_MARK])[:80]}, which cannot be")
    return Array(dtype, tuple(shape), content[offset : offset + count])
