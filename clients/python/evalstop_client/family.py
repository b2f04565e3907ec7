"""What a shared worker group runs: functions on a state of named regions (docs/use/sharing.md).

Standard library only, Python 3.9 or newer. A family is one file with one class. Each member of the group has one process of
it for each job that shares it:

    class Softmax(Family):
        def fresh(self): …                            # the state of a job that has just come, on the device
        def regions(self): return {"logits": 8 * N}   # bytes of each part of the state
        def read(self, name, into): …                 # from the device, to write it to host memory
        def allocate(self, regions): …                # have memory on the device for such regions
        def write(self, name, content): …             # to the device
        def offload(self): …                          # give the device's memory back

        @function(changes=["logits"])
        def optim_step(self, lr): …                   # what it returns travels back to the job

No user's code and no pickle comes into a group: a job names functions, and arguments are JSON and arrays (`packing`).
`evalstop doctor --family FILE` checks a family and measures it.

A state must hold all that decides what a function returns: random numbers too. The same call after the same
state has to give the same, to the last bit, on each member: a turn that was lost is done again.
"""

from __future__ import annotations

import importlib.util
import inspect
import mmap
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

from evalstop_client.packing import Array, Bytes, pack, unpack

NOTE = "note"  # the region of `set_note`
MOST_NOTE = 64 * 1024  # bytes


class Device(Protocol):
    """The memory that residents take turns on."""

    @property
    def name(self) -> str:
        """As torch calls it: "cuda:0", "cpu"."""

    def memory(self, count: int) -> memoryview:
        """Return so many bytes of it, zero, writable. A device that is a GPU has none to give this way.

        Raises:
            MemoryError: it has not so many.
        """

    def release(self) -> None:
        """Give all of that back. Views of it must be gone: else BufferError, and nothing is given back."""


class PrivateMemory:
    """The process's own memory as a device, for tests and where there is no group."""

    name = "cpu"

    def __init__(self) -> None:
        self._maps: list[mmap.mmap] = []

    def memory(self, count: int) -> memoryview:
        found = mmap.mmap(-1, max(1, count))
        self._maps.append(found)
        return memoryview(found)[:count]

    def release(self) -> None:
        while self._maps:
            self._maps[-1].close()
            self._maps.pop()


class Place(NamedTuple):
    """Where a member's process is.

    Args:
        rank, size: of this member, and how many there are.
        device: that it computes on.
        meeting: address and port where the processes of one job can meet, at rank 0; None: it is alone.
        options: of the family, as the pool has them.
    """

    rank: int = 0
    size: int = 1
    device: Device = PrivateMemory()
    meeting: tuple[str, int] | None = None
    options: Mapping[str, Any] = {}


class CallError(ValueError):
    """A call that is none of this family's; the message says what would be right."""


class UnknownFunction(CallError):
    """HTTP 404: there is no such function; the message lists those that there are."""


class WrongArguments(CallError):
    """HTTP 422: the function takes others, or refuses their values."""


_F = TypeVar("_F", bound=Callable[..., Any])


def function(changes: Iterable[str] = ()) -> Callable[[_F], _F]:
    """Have a method be a function that jobs may call.

    Args:
        changes: names of the regions that it may change. The others are not written when the turn ends.
    """

    def mark(method: _F) -> _F:
        method.changes = frozenset(changes)  # type: ignore[attr-defined]
        return method

    return mark


class Family(ABC):
    """One member's part of a job's model. Made once in each process, then asked by one thread.

    The order is: `fresh` or `load`, calls, `read` of what changed, perhaps `offload`, then `load` again.
    """

    name: ClassVar[str] = ""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.changed: set[str] = set()  # regions, since the state was loaded or saved
        self._note = b"null"

    # what a family is

    @abstractmethod
    def fresh(self) -> None:
        """Have a new job's state on the device, the same on every call."""

    @abstractmethod
    def regions(self) -> Mapping[str, int]:
        """Return the bytes of each region of the state on the device, by name. They may change by calls."""

    @abstractmethod
    def read(self, name: str, into: memoryview) -> None:
        """Copy a region from the device; ``into`` has exactly its bytes."""

    @abstractmethod
    def allocate(self, regions: Mapping[str, int]) -> None:
        """Have memory on the device for regions of so many bytes, whatever is in it."""

    @abstractmethod
    def write(self, name: str, content: memoryview) -> None:
        """Copy a region to the device, after `allocate`."""

    @abstractmethod
    def offload(self) -> None:
        """Give all of the device's memory back. What was not read before is lost."""

    def ready(self, turn: str) -> None:
        """Begin a turn: the state is on the device, on this member. ``turn``: a text, the same on all members.

        Where members talk with each other, here they make sure that all of them are the same processes as before.
        """

    # what a worker process asks of it

    def begin(self) -> None:
        """Have a fresh state, version 0."""
        self._note = b"null"
        self.fresh()
        self.changed = set(self.sizes())

    def load(self, regions: Mapping[str, Bytes]) -> None:
        """Have this state on the device. ``regions``: the content of each, as `save` gave it."""
        views = {name: memoryview(content).cast("B") for name, content in regions.items()}
        self._note = bytes(views.pop(NOTE, memoryview(b"null")))
        self.allocate({name: len(content) for name, content in views.items()})
        for name, content in views.items():
            self.write(name, content)
        self.changed = set()

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each region, with the note's."""
        found = dict(self.regions())
        if NOTE in found:
            raise ValueError(f"regions: {NOTE!r} is a name that a family may not use")
        return {**found, NOTE: len(self._note)}

    def save(self, name: str, into: memoryview) -> None:
        """Copy a region to host memory; ``into`` has its bytes."""
        if name == NOTE:
            into[:] = self._note
        else:
            self.read(name, into)

    def saved(self) -> None:
        """Take it that all changed regions were saved."""
        self.changed = set()

    @classmethod
    def functions(cls) -> dict[str, Callable[..., Any]]:
        """Return the functions that jobs may call, by name."""
        found = {name: getattr(cls, name, None) for name in dir(cls)}
        return {name: one for name, one in sorted(found.items()) if one is not None and hasattr(one, "changes")}

    @classmethod
    def changes(cls, name: str) -> frozenset[str]:
        """Return the regions that a function may change."""
        changes: frozenset[str] = cls.functions()[name].changes  # type: ignore[attr-defined]
        return changes

    def call(self, name: str, body: Bytes) -> bytes:
        """Return what a function returns, packed. ``body``: a packed object of its arguments.

        Raises:
            UnknownFunction, WrongArguments: nothing was changed.
            Exception: of the function's own. Its state may be anything then: the worker must end.
        """
        known = self.functions()
        if name not in known:
            raise UnknownFunction(f"{name[:60]!r}: no such function, there are {', '.join(known)}")
        try:
            arguments = unpack(body)
            if not isinstance(arguments, dict):
                raise ValueError(f"{type(arguments).__name__}, expected an object")
            inspect.signature(known[name]).bind(self, **arguments)
        except (TypeError, ValueError) as fault:
            raise WrongArguments(f"{name}: arguments: {fault}; it is {name}{_signature(known[name])}") from None
        result = pack(getattr(self, name)(**arguments))
        self.changed |= self.changes(name)
        return result

    # functions of all families

    @function(changes=[NOTE])
    def set_note(self, note: Any) -> None:
        """Keep a small JSON value with the state, as the step that it is of."""
        content = pack(note)
        if len(content) > MOST_NOTE:
            raise WrongArguments(f"note: {len(content)} bytes, expected at most {MOST_NOTE}")
        self._note = content

    @function()
    def note(self) -> Any:
        """Return what `set_note` kept; None: nothing yet."""
        return None if self._note == b"null" else unpack(self._note)

    @function()
    def describe(self) -> dict[str, Any]:
        """Return the family's name, its functions, and the bytes of its regions on this member."""
        return {
            "family": self.name or type(self).__name__,
            "functions": list(self.functions()),
            "regions": self.sizes(),
            "members": self.place.size,
        }


def _signature(method: Callable[..., Any]) -> str:
    parameters = list(inspect.signature(method).parameters.values())[1:]
    return "(" + ", ".join(str(one).split(":")[0] if one.annotation else str(one) for one in parameters) + ")"


def find(file: str | Path) -> type[Family]:
    """Return the family of a file: its ``FAMILY``, or the one class of this kind that it defines.

    Raises:
        OSError: it cannot be read.
        ValueError: it has none, or several.
        Exception: whatever running it raises.
    """
    path = Path(file)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file, expected one with a family")
    name = f"evalstop_family_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path}: expected a file of Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    named = getattr(module, "FAMILY", None)
    if named is not None:
        if not (isinstance(named, type) and issubclass(named, Family)):
            raise ValueError(f"{path}: FAMILY is {named!r}, expected a class from evalstop_client.family.Family")
        found: type[Family] = named
        return found
    own = [one for one in vars(module).values() if isinstance(one, type) and issubclass(one, Family)]
    own = [one for one in own if one.__module__ == name and not inspect.isabstract(one)]
    if len(own) != 1:
        names = ", ".join(one.__name__ for one in own) or "none"
        raise ValueError(f"{path}: expected one class from evalstop_client.family.Family, or FAMILY = it; found {names}")
    return own[0]


__all__ = [
    "NOTE", "Array", "CallError", "Device", "Family", "Place", "PrivateMemory", "UnknownFunction", "WrongArguments", "find", "function",
]  # fmt: skip
