"""A family for the tests of groups: its state counts the calls that are in it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import time
from collections.abc import Iterator, Mapping
from typing import Any

from evalstop_client.family import Array, BadCall, Family, Place, function

Answer = tuple[Any, Mapping[str, Array]]


class Counted(Family):
    """Regions: ``counter`` (8 bytes), ``weights`` (``EVALSTOP_TEST_STATE`` bytes), ``frozen`` (4096)."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._regions: dict[str, memoryview] = {}

    def load(self, place: Place, fresh: bool) -> None:
        self.place = place
        size = int(os.environ.get("EVALSTOP_TEST_STATE", "4096"))
        if os.environ.get("EVALSTOP_TEST_FAIL") == "load":
            raise RuntimeError("as it was told")
        assert place.device is not None
        self._calls = place.device.path.replace("/worker-", "/calls-")
        with contextlib.suppress(FileExistsError):
            os.link(place.device.path, self._calls)
        sizes = {"counter": 8, "weights": size, "frozen": 4096}
        self._regions = {name: place.device.buffer(length) for name, length in sizes.items()}
        if fresh:
            self._regions["counter"][:] = bytes(8)
            self._regions["frozen"][:] = place.resident.encode().ljust(4096, b"\0")

    def regions(self) -> Mapping[str, Any]:
        return self._regions

    def offload(self) -> None:
        keeps = os.environ.get("EVALSTOP_TEST_KEEPS", "").split(":")
        assert self.place.device is not None
        if keeps == [self.place.resident, "views"]:
            self._kept = [memoryview(one) for one in self._regions.values()]
        if keeps == [self.place.resident, "open"]:
            self._file = os.open(self.place.device.path, os.O_RDONLY)
        self._regions = {}

    @function(changes=("counter",))
    def count(self, arguments: Mapping[str, Any], arrays: Mapping[str, Array]) -> Answer:
        with self._seen():
            number = struct.unpack("<q", self._regions["counter"])[0] + 1
            self._regions["counter"][:] = struct.pack("<q", number)
        return {"counter": number, "resident": self.place.resident, "frozen": self._frozen()}, {}

    @function(changes=("counter", "weights"))
    def train(self, arguments: Mapping[str, Any], arrays: Mapping[str, Array]) -> Answer:
        """Change what a training step would: all of the weights count as changed."""
        self._regions["weights"][:8] = self._regions["counter"]
        return self.count(arguments, arrays)

    @function(changes=("weights",))
    def work(self, arguments: Mapping[str, Any], arrays: Mapping[str, Array]) -> Answer:
        """Compute: so many times the hash of all weights, each written into them."""
        weights = self._regions["weights"]
        for _ in range(int(arguments["rounds"])):
            weights[:32] = hashlib.sha256(weights).digest()
        return bytes(weights[:32]).hex(), {}

    @function(changes=())
    def echo(self, arguments: Mapping[str, Any], arrays: Mapping[str, Array]) -> Answer:
        return arguments, arrays

    @function(changes=())
    def process(self, arguments: Mapping[str, Any], arrays: Mapping[str, Array]) -> Answer:
        return {"pid": os.getpid(), "rank": self.place.rank, "generation": self.place.generation}, {}

    @function(changes=())
    def sleep(self, arguments: Mapping[str, Any], arrays: Mapping[str, Array]) -> Answer:
        with self._seen():
            time.sleep(float(arguments["seconds"]))
        return None, {}

    @function
    def refuse(self, arguments: Mapping[str, Any], arrays: Mapping[str, Array]) -> Answer:
        raise BadCall("lr: -1, expected a number of at least 0")

    @function
    def fail(self, arguments: Mapping[str, Any], arrays: Mapping[str, Array]) -> Answer:
        raise RuntimeError("something went wrong")

    @function
    def differ(self, arguments: Mapping[str, Any], arrays: Mapping[str, Array]) -> Answer:
        if self.place.rank == 0:
            return None, {}
        raise BadCall("only this rank refuses")

    @contextlib.contextmanager
    def _seen(self) -> Iterator[None]:
        """Let an onlooker see that a function runs."""
        file = os.open(self._calls, os.O_RDONLY)
        try:
            yield
        finally:
            os.close(file)

    def _frozen(self) -> str:
        return bytes(self._regions["frozen"]).rstrip(b"\0").decode()
