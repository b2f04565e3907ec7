"""Asks NVML: for each line on stdin, a line of JSON with the bytes that are used on all GPUs of this process.

    python -m controller.group.nvml

A process of its own, because the driver can hang whoever asks. The library comes with the driver; it is
called as it is (NVML API reference, nvmlDeviceGetMemoryInfo), so nothing has to be installed.
"""

from __future__ import annotations

import ctypes
import json
import sys

LIBRARY = "libnvidia-ml.so.1"


class NvmlError(Exception):
    """NVML refused; the message names the call and its code."""


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


def used() -> int:
    """Return bytes that are used on all GPUs together.

    Raises:
        NvmlError: a call failed.
        OSError: there is no such library.
    """
    library = _library()
    count = ctypes.c_uint()
    _called(library, "nvmlDeviceGetCount_v2", ctypes.byref(count))
    total = 0
    for index in range(count.value):
        handle, memory = ctypes.c_void_p(), _Memory()
        _called(library, "nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
        _called(library, "nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
        total += memory.used
    return total


_loaded: list[ctypes.CDLL] = []


def _library() -> ctypes.CDLL:
    if not _loaded:
        library = ctypes.CDLL(LIBRARY)
        _called(library, "nvmlInit_v2")
        _loaded.append(library)
    return _loaded[0]


def _called(library: ctypes.CDLL, name: str, *arguments: object) -> None:
    code = getattr(library, name)(*arguments)
    if code:
        raise NvmlError(f"{name}: error {code}")


def main() -> int:
    """Answer until stdin ends. Return 0."""
    for _ in sys.stdin:
        try:
            answer: dict[str, object] = {"used": used()}
        except (NvmlError, OSError) as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
