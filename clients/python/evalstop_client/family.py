"""Families of shared worker groups: functions on a state of named regions (docs/use/sharing.md). Standard
library only, Python 3.9 or newer.

A family is one class in a file or package of the group's image. Each member of the group has one process of
it for each job:

    class Softmax(Family):
        def load(self, place, fresh): …   # take device memory; with a new job's state if fresh
        def regions(self): …              # {"logits": buffer, "moments": buffer}: all of the state
        def offload(self): …              # give the device memory back

        @function(changes=["moments"])
        def forward_backward(self, arguments, arrays):
            ...
            return {"loss": loss}, {}     # JSON, and arrays by name: the job's answer

No code of a job's comes into a group, and no pickle: a job names functions; arguments and results are JSON
and arrays. `evalstop doctor --family FILE` checks a family, measures it, and prints what to write into the
pool.

A state has to hold all that decides what a function returns, random numbers too: a turn that was lost is done
again, perhaps by a new process, and has to give the same to the last bit. Every member runs every function,
with the same arguments; what member 0 returns is the answer. A function that refuses its arguments raises
`BadCall` before it changes anything, on all members alike; any other error ends the process and costs the
turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Optional, TypeVar, overload

from evalstop_client.place import Array, BadCall, HostRegion, Place

__all__ = ["Array", "BadCall", "Call", "Family", "Place", "array", "function", "number"]

Changes = Optional[frozenset[str]]  # None: all regions
_Function = TypeVar("_Function", bound=Callable[..., Any])


@overload
def function(given: _Function) -> _Function: ...


@overload
def function(*, changes: Iterable[str] | None = None) -> Callable[[_Function], _Function]: ...


def function(
    given: _Function | None = None, *, changes: Iterable[str] | None = None
) -> _Function | Callable[[_Function], _Function]:
    """Have a method be a function that jobs may call, as ``@function`` or ``@function(changes=["weights"])``.

    Args:
        given: the method, where nothing else is said.
        changes: names of the regions that it may change; left out: all of them. Others are not written when
            the turn ends.
    """
    named: Changes = None if changes is None else frozenset(changes)

    def mark(method: _Function) -> _Function:
        method.evalstop_changes = named  # type: ignore[attr-defined]
        return method

    return mark if given is None else mark(given)


class Call(NamedTuple):
    """A call: its function, arguments as JSON, and arrays by name (NumPy's, torch's, lists, or `Array`)."""

    function: str
    arguments: Mapping[str, Any] = {}
    arrays: Mapping[str, Any] = {}


class Family:
    """One member's part of a job's model. One object in each process, and one thread asks it.

    The order is `load`, then calls, with `copy_in` before them unless the state is fresh, and `copy_out`
    after them; then perhaps `offload`, and `load` again.

    Args:
        place: where this process is. No device memory is to be taken yet.
    """

    def __init__(self, place: Place) -> None:
        self.place = place

    def load(self, place: Place, fresh: bool) -> None:
        """Take device memory and make the state.

        Args:
            place: as it is now. If its ``generation`` is another one than before, a process of another rank
                is new: all ranks are to meet again.
            fresh: have what a new job begins with, the same each time. Else any content: `copy_in` follows.
        """
        raise NotImplementedError

    def regions(self) -> Mapping[str, Any]:
        """Return the whole state, after `load`: writable buffers by name. Names and sizes never change."""
        raise NotImplementedError

    def offload(self) -> None:
        """Give all device memory back, with every reference to it. The state was copied out, or is lost."""
        raise NotImplementedError

    # A family of GPUs, whose memory is no buffer, replaces these three.

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each region."""
        return {name: memoryview(buffer).nbytes for name, buffer in self.regions().items()}

    def copy_in(self, name: str, host: HostRegion) -> None:
        """Copy a region from host memory to the device."""
        host.read_into(self.regions()[name])

    def copy_out(self, name: str, host: HostRegion) -> None:
        """Copy a region from the device to host memory."""
        host.write_from(self.regions()[name])

    @classmethod
    def examples(cls) -> Sequence[Sequence[Call]]:
        """Return turns with calls that work one after the other on a fresh state, for `evalstop doctor
        --family`."""
        return []

    @classmethod
    def functions(cls) -> dict[str, Changes]:
        """Return the functions that jobs may call, each with the regions that it may change; None: all."""
        found: dict[str, Changes] = {}
        for name in sorted(dir(cls)):
            method: Any = getattr(cls, name, None)
            if hasattr(method, "evalstop_changes"):
                found[name] = method.evalstop_changes
        return found


def number(
    arguments: Mapping[str, Any],
    name: str,
    default: float | None = None,
    *,
    least: float = -math.inf,
    most: float = math.inf,
) -> float:
    """Return a number of a call's arguments.

    Raises:
        BadCall: it is missing, no finite number, or out of its bounds.
    """
    value = arguments.get(name, default)
    right = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not right or not least <= value <= most:
        bounds = "" if least == -math.inf else f" of at least {least:g}"
        bounds += "" if most == math.inf else f" and at most {most:g}"
        raise BadCall(f"{name}: {str(value)[:60]!r}, expected a number{bounds}")
    return float(value)


def array(
    arrays: Mapping[str, Array], name: str, dtypes: Collection[str], shape: tuple[int | None, ...]
) -> Array:
    """Return an array of a call's.

    Args:
        arrays: of the call.
        name: of it.
        dtypes: that it may have, as NumPy writes them: ``<f4``.
        shape: that it has to have; None: any length.

    Raises:
        BadCall: it is missing, or of another type or shape.
    """
    found = arrays.get(name)
    wanted = f"of {' or '.join(dtypes)} and shape {_shown(shape)}"
    if found is None:
        raise BadCall(f"arrays: no {name!r}, expected one {wanted}; there are {', '.join(arrays) or 'none'}")
    fits = len(found.shape) == len(shape) and all(
        want is None or want == have for want, have in zip(shape, found.shape)
    )
    if found.dtype not in dtypes or not fits:
        raise BadCall(
            f"arrays: {name!r} is of {found.dtype} and shape {_shown(found.shape)}, expected {wanted}"
        )
    return found


def _shown(shape: tuple[int | None, ...]) -> str:
    return "(" + ", ".join("any" if n is None else str(n) for n in shape) + ")"
