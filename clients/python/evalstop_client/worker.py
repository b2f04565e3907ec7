"""A family's worker process: one resident's state on one member of a worker group. Standard library only,
Python 3.9.

    python -m evalstop_client.worker

The group's supervisor starts it and asks it over a socket, one request after the other: load, call, save,
offload (docs/understand/groups-wire.md, "Supervisor and worker"). Environment: ``EVALSTOP_WORKER_SOCKET``
(descriptor), ``EVALSTOP_WORKER_FAMILY`` (``package.module:Class`` or ``/path/file.py:Class``) and
``EVALSTOP_WORKER_PLACE`` (JSON).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib
import importlib.util
import json
import os
import re
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Mapping
from typing import Any

from evalstop_client.envelope import Array, decode, encode, length
from evalstop_client.place import BadCall, HostRegion, LocalDevice, Place

_REGION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_PR_SET_PDEATHSIG = 1
_MOST_WHY = 500  # characters of an error


class Worker:
    """Carries out requests for one family object.

    Args:
        family: the class.
        place: where the process is, as given at its start.
    """

    def __init__(self, family: Any, place: Mapping[str, Any]) -> None:
        self._device = self._device_of(place)
        self.family = family(Place(place, self._device))
        self.functions: dict[str, Any] = dict(family.functions())
        self._dirty: set[str] = set()  # regions that differ from the version that was loaded or saved last

    @staticmethod
    def _device_of(place: Mapping[str, Any]) -> LocalDevice | None:
        link = place.get("device")
        return LocalDevice(str(link), int(place["deviceBytes"])) if link else None

    def hello(self) -> dict[str, Any]:
        """Return what the supervisor is told at the start."""
        changes = {
            name: None if regions is None else list(regions) for name, regions in self.functions.items()
        }
        return {"hello": {"pid": os.getpid(), "functions": changes}}

    def answer(
        self, request: Mapping[str, Any], arrays: Mapping[str, Array]
    ) -> tuple[dict[str, Any], Mapping[str, Array]]:
        """Return the answer to a request, and its arrays."""
        what = request.get("do", "call")  # a call is the job's own body
        if what == "call":
            return self._call(request, arrays)
        try:
            if what == "load":
                return self._load(request), {}
            if what == "save":
                return self._save(request), {}
            if what == "offload":
                return self._offload(), {}
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT):
                return {"full": f"{what}: {error.strerror}"}, {}
            return _failed(what, error), {}
        except Exception as error:
            return _failed(what, error), {}
        return {"failed": f"do: {what!r} is none of load, call, save and offload"}, {}

    def _load(self, request: Mapping[str, Any]) -> dict[str, Any]:
        folder = request.get("folder")
        self.family.load(Place(request["place"], self._device), folder is None)
        sizes = _sizes(self.family)
        self._dirty = set(sizes) if folder is None else set()
        for name, size in sizes.items() if folder is not None else ():
            with _region(os.path.join(str(folder), name), os.O_RDWR) as descriptor:
                there = os.fstat(descriptor).st_size
                if there != size:
                    raise ValueError(f"region {name}: {size} bytes, {there} were kept")
                self.family.copy_in(name, HostRegion(descriptor, size))
        return {"loaded": {"regions": sizes}}

    def _call(
        self, request: Mapping[str, Any], arrays: Mapping[str, Array]
    ) -> tuple[dict[str, Any], Mapping[str, Array]]:
        name = request.get("function")
        if name not in self.functions:
            return {"refused": f"no function {name!r}; there are {', '.join(sorted(self.functions))}"}, {}
        changes = self.functions[name]
        before = set(self._dirty)
        try:
            self._dirty |= set(_sizes(self.family) if changes is None else changes)
            result, given = getattr(self.family, name)(request.get("arguments") or {}, arrays)
            answer = {"result": result}
            encode(answer, given)
        except BadCall as error:
            self._dirty = before
            return {"refused": str(error)[:_MOST_WHY]}, {}
        except Exception as error:
            return _failed(name, error), {}
        return answer, given

    def _save(self, request: Mapping[str, Any]) -> dict[str, Any]:
        folder, base = str(request["folder"]), request.get("base")
        sizes, written = _sizes(self.family), []
        for name, size in sizes.items():
            path = os.path.join(folder, name)
            if base is not None and name not in self._dirty:
                os.link(os.path.join(str(base), name), path)
                continue
            with _region(path, os.O_RDWR | os.O_CREAT | os.O_EXCL) as descriptor:
                self.family.copy_out(name, HostRegion(descriptor, size))
            written.append(name)
        self._dirty = set()
        return {"saved": {"regions": sizes, "written": written}}

    def _offload(self) -> dict[str, Any]:
        self.family.offload()
        if self._device is not None:
            self._device.close()
        return {"offloaded": {}}


def family_of(name: str) -> Any:
    """Return the class that ``package.module:Class`` or ``/path/file.py:Class`` names.

    Raises:
        ValueError: there is none, or it lacks a method of a family.
    """
    where, _, attribute = name.rpartition(":")
    if not where or not attribute:
        raise ValueError(f"family: {name!r} is not allowed, expected package.module:Class or /file.py:Class")
    if where.endswith(".py"):
        spec = importlib.util.spec_from_file_location("evalstop_family", where)
        if spec is None or spec.loader is None or not os.path.isfile(where):
            raise ValueError(f"family: there is no file {where}")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses of it look there
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(where)
    found = getattr(module, attribute, None)
    missing = [
        method
        for method in ("functions", "load", "sizes", "copy_in", "copy_out", "offload")
        if not callable(getattr(found, method, None))
    ]
    if found is None or missing:
        raise ValueError(
            f"family: {name} has no {', '.join(missing)}; a family is a evalstop_client.family.Family"
        )
    return found


def _sizes(family: Any) -> dict[str, int]:
    sizes = {str(name): int(size) for name, size in family.sizes().items()}
    for name, size in sizes.items():
        if not _REGION.fullmatch(name) or size < 0:
            raise ValueError(f"region {name!r} of {size} bytes: expected letters, digits, '.', '_' and '-'")
    return sizes


@contextlib.contextmanager
def _region(path: str, flags: int) -> Any:
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _failed(what: object, error: Exception) -> dict[str, Any]:
    traceback.print_exc(file=sys.stderr)
    return {"failed": f"{what}: {type(error).__name__}: {error}"[:_MOST_WHY]}


def send(connection: socket.socket, header: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
    """Send an envelope with its length before it."""
    parts = encode(header, arrays)
    connection.sendall(struct.pack(">Q", length(parts)) + parts[0])
    for part in parts[1:]:
        connection.sendall(part)


def receive(connection: socket.socket) -> tuple[dict[str, Any], dict[str, Array]] | None:
    """Return the next envelope; None: the other side is gone."""
    head = _exactly(connection, 8)
    if head is None:
        return None
    body = _exactly(connection, struct.unpack(">Q", head)[0])
    return None if body is None else decode(body)


def _exactly(connection: socket.socket, size: int) -> bytearray | None:
    body = bytearray(size)
    view, at = memoryview(body), 0
    while at < size:
        count = connection.recv_into(view[at:])
        if not count:
            return None
        at += count
    return body


def _die_with_parent(parent: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it was dead before it could be told so


def main() -> int:
    """Serve the supervisor until it is gone. Return 0."""
    _die_with_parent(int(os.environ["EVALSTOP_WORKER_PARENT"]))
    connection = socket.socket(fileno=int(os.environ["EVALSTOP_WORKER_SOCKET"]))
    place = json.loads(os.environ["EVALSTOP_WORKER_PLACE"])
    try:
        worker = Worker(family_of(os.environ["EVALSTOP_WORKER_FAMILY"]), place)
    except Exception as error:
        send(connection, _failed("start", error), {})
        return 1
    send(connection, worker.hello(), {})
    while (got := receive(connection)) is not None:
        header, arrays = worker.answer(*got)
        del got
        send(connection, header, arrays)
        del arrays
    return 0


if __name__ == "__main__":
    sys.exit(main())
