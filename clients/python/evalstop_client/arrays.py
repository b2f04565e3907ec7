"""NumPy's arrays and torch's tensors as they travel (`envelope`), and back. Neither is imported before it is
needed."""

from __future__ import annotations

from typing import Any

from evalstop_client.envelope import ITEM_BYTES, Array

TORCH = {
    "|b1": "bool", "|i1": "int8", "|u1": "uint8", "<i2": "int16", "<u2": "uint16", "<f2": "float16",
    "bf16": "bfloat16", "<i4": "int32", "<u4": "uint32", "<f4": "float32", "<i8": "int64", "<u8": "uint64",
    "<f8": "float64",
}  # fmt: skip
_OF_TORCH = {name: dtype for dtype, name in TORCH.items()}


def is_array(value: Any) -> bool:
    """Return whether a value travels as an array: NumPy's, torch's, or one that has travelled."""
    return isinstance(value, Array) or hasattr(value, "__array_interface__") or _is_tensor(value)


def array_of(value: Any) -> Array:
    """Return what travels for an array, a tensor, or lists of numbers.

    Raises:
        ValueError: its elements are of no type that travels.
    """
    if isinstance(value, Array):
        return value
    if _is_tensor(value):
        import torch  # type: ignore[import-not-found, unused-ignore]

        tensor = value.detach().cpu().contiguous()
        name = str(tensor.dtype).rpartition(".")[2]
        if name not in _OF_TORCH:
            raise ValueError(f"a tensor of {name}, expected one of {', '.join(_OF_TORCH)}")
        # By way of bytes: NumPy has no bfloat16.
        data = tensor.reshape(-1).view(torch.uint8).numpy() if tensor.numel() else b""
        return Array(_OF_TORCH[name], tuple(int(n) for n in tensor.shape), data)
    import numpy

    found = numpy.asarray(value)
    found = numpy.ascontiguousarray(found, found.dtype.newbyteorder("<")).reshape(found.shape)
    if found.dtype.str not in ITEM_BYTES:
        raise ValueError(f"an array of {found.dtype}, expected one of {', '.join(ITEM_BYTES)}")
    return Array(
        found.dtype.str, tuple(found.shape), found.reshape(-1).view(numpy.uint8) if found.size else b""
    )


def as_numpy(array: Array) -> Any:
    """Return NumPy's array of it, which is a view.

    Raises:
        TypeError: NumPy has no bfloat16.
    """
    import numpy

    if array.dtype == "bf16":
        raise TypeError("an array of bfloat16, which NumPy does not have: use as_torch")
    return numpy.frombuffer(array.data, numpy.dtype(array.dtype)).reshape(array.shape)


def as_torch(array: Array, device: Any = "cpu") -> Any:
    """Return a tensor of it, a copy, on a device."""
    import torch

    count = memoryview(array.data).nbytes
    if not count:
        return torch.zeros(array.shape, dtype=getattr(torch, TORCH[array.dtype]), device=device)
    flat = torch.frombuffer(bytearray(array.data), dtype=torch.uint8)
    return flat.view(getattr(torch, TORCH[array.dtype])).reshape(array.shape).to(device)


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "detach") and hasattr(value, "element_size")
