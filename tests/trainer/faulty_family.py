"""A small family that is right, or wrong in one way (FAULT): for the tests of `evalstop_client.conform`."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from evalstop_client.family import Array, BadCall, Call, Family, Place, function, number

FAULT = os.environ.get("FAULT", "")


class Sums(Family):
    """Regions: ``sum`` and ``large``, which only `grow` is to change."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._regions: dict[str, memoryview] = {}
        self._kept: list[Any] = []
        self._private = 0

    def load(self, place: Place, fresh: bool) -> None:
        device = place.device
        assert device is not None
        self._regions = {"sum": device.buffer(8), "large": device.buffer(4096)}
        if fresh:
            first = os.getpid() if FAULT == "fresh" else 1
            self._regions["sum"][:] = struct.pack("<q", first)
            self._regions["large"][:] = bytes(4096)

    def regions(self) -> Mapping[str, Any]:
        return self._regions

    def sizes(self) -> dict[str, int]:
        found = super().sizes()
        return {**found, "large": 4095} if FAULT == "regions" and self._private else found

    def copy_in(self, name: str, host: Any) -> None:
        if not (FAULT == "restored" and name == "large"):
            super().copy_in(name, host)

    def offload(self) -> None:
        if FAULT == "sleeper":
            self._kept.append(bytearray(os.urandom(1 << 20) * 100))
        if FAULT == "dies":
            os._exit(3)
        self._regions = {}

    @function(changes=["sum"])
    def add(
        self, arguments: Mapping[str, Any], arrays: Mapping[str, Array]
    ) -> tuple[Any, Mapping[str, Array]]:
        by = int(number(arguments, "by", 1.0, least=0.0, most=1e6))
        if by == 13:
            raise BadCall("by: 13, expected another number")
        self._private += 1
        if FAULT == "changes":
            self._regions["large"][:1] = b"x"
        (before,) = struct.unpack("<q", self._regions["sum"])
        if FAULT == "answers":
            by += self._private
        after = before + by
        self._regions["sum"][:] = struct.pack("<q", after)
        return {"sum": after}, {}

    @function
    def grow(
        self, arguments: Mapping[str, Any], arrays: Mapping[str, Array]
    ) -> tuple[Any, Mapping[str, Array]]:
        self._regions["large"][1:3] = b"gr"
        return None, {}

    @classmethod
    def examples(cls) -> Sequence[Sequence[Call]]:
        if FAULT == "none":
            return []
        more = [[Call("add", {"by": 13})]] if FAULT == "refuses" else []
        return [[Call("add", {"by": 2}), Call("add")], [Call("grow")], [Call("add")], *more]
