"""Memory of a torch family's tensors: taken for a turn, given back after it.

The tensors stay the same objects over an off-load: module, optimizer and hooks refer to them. `Flat` has
them all in one piece of memory, which is copied at once; on the local plane that is the device's shared
memory. `Storages`
frees and takes the storage of each: FSDP2 keeps further views of a sharded parameter's, which are to stay
valid.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from evalstop_client.page_lock import PageLock
from evalstop_client.place import HostRegion, LocalDevice

_ALIGNED = 64


class Memory(Protocol):
    """One region's memory. ``size``: its bytes."""

    size: int

    def take(self, local: LocalDevice | None, device: Any, *, keep: bool) -> None:
        """Have memory for the tensors; with what is in them if ``keep``."""

    def give(self) -> None:
        """Give it back."""

    def copy_in(self, host: HostRegion) -> None:
        """Copy the region from host memory."""

    def copy_out(self, host: HostRegion) -> None:
        """Copy the region to host memory."""

    def holds(self, tensor: Any) -> bool:
        """Return whether a tensor is one of these."""

    def offset(self, tensor: Any) -> int:
        """Return where in the region a tensor begins."""


class Flat:
    """All tensors one after the other in one piece.

    Args:
        tensors: each with its own content; dense.
    """

    def __init__(self, tensors: Sequence[Any]) -> None:
        self._tensors = list(tensors)
        self._shapes = [(t.dtype, tuple(t.shape)) for t in self._tensors]
        self._offsets, at = [], 0
        for tensor in self._tensors:
            self._offsets.append(at)
            at += -(-tensor.nbytes // _ALIGNED) * _ALIGNED
        self.size = at
        self._flat: Any = None

    def take(self, local: LocalDevice | None, device: Any, *, keep: bool) -> None:
        if local is not None:
            flat = torch.frombuffer(local.buffer(self.size), dtype=torch.uint8)
        else:
            flat = torch.empty(self.size, dtype=torch.uint8, device=device)
        if keep:
            flat.zero_()  # the space between tensors too: equal states have equal bytes
        for tensor, offset, (dtype, shape) in zip(self._tensors, self._offsets, self._shapes):
            count = dtype.itemsize
            for one in shape:
                count *= one
            part = flat[offset : offset + count].view(dtype).view(shape)
            if keep:
                part.copy_(tensor.data)
            tensor.data = part
        self._flat = flat

    def give(self) -> None:
        for tensor, (dtype, _) in zip(self._tensors, self._shapes):
            tensor.data = torch.empty(0, dtype=dtype)
        self._flat = None

    def copy_in(self, host: HostRegion) -> None:
        if self._flat.device.type == "cpu":
            host.read_into(self._flat.numpy())
        else:
            _from_host(host, lambda kept: self._flat.copy_(kept))

    def copy_out(self, host: HostRegion) -> None:
        if self._flat.device.type == "cpu":
            host.write_from(self._flat.numpy())
        else:
            _to_host(host, lambda kept: kept.copy_(self._flat))

    def holds(self, tensor: Any) -> bool:
        return any(one is tensor for one in self._tensors)

    def offset(self, tensor: Any) -> int:
        return next(at for one, at in zip(self._tensors, self._offsets) if one is tensor)


class Storages:
    """Each storage by itself.

    Args:
        tensors: whose storages they are; of sharded ones the local parts'.
    """

    def __init__(self, tensors: Sequence[Any]) -> None:
        locals_ = [t._local_tensor if hasattr(t, "_local_tensor") else t for t in tensors]
        found: dict[int, Any] = {}
        self._pieces: list[tuple[Any, int, int]] = []  # a tensor of the whole storage, offset, bytes
        self._places: list[tuple[Any, int]] = []  # local tensor, offset
        at = 0
        for tensor in locals_:
            storage = tensor.untyped_storage()
            key = storage._cdata
            if key not in found:
                found[key] = at
                count = storage.nbytes()
                whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(
                    storage, 0, (count,), (1,)
                )
                self._pieces.append((whole, at, count))
                at += -(-count // _ALIGNED) * _ALIGNED
            within = tensor.storage_offset() * tensor.element_size()
            self._places.append((tensor, found[key] + within))
        self.size = at

    def take(self, local: LocalDevice | None, device: Any, *, keep: bool) -> None:
        for whole, _, count in self._pieces:
            whole.untyped_storage().resize_(count)

    def give(self) -> None:
        for whole, _, _ in self._pieces:
            whole.untyped_storage().resize_(0)

    def copy_in(self, host: HostRegion) -> None:
        def copy(kept: Any) -> None:
            for whole, at, count in self._pieces:
                whole.copy_(kept[at : at + count])

        _from_host(host, copy)

    def copy_out(self, host: HostRegion) -> None:
        def copy(kept: Any) -> None:
            for whole, at, count in self._pieces:
                kept[at : at + count].copy_(whole)

        _to_host(host, copy)

    def holds(self, tensor: Any) -> bool:
        return any(one is tensor for one, _ in self._places)

    def offset(self, tensor: Any) -> int:
        return next(at for one, at in self._places if one is tensor)


def _from_host(host: HostRegion, copy: Any) -> None:
    _with_host(host, copy)


def _to_host(host: HostRegion, copy: Any) -> None:
    _with_host(host, copy)


def _with_host(host: HostRegion, copy: Any) -> None:
    """Have a region copied as torch does it, by way of its mapped memory, page-locked beside a GPU."""
    mapped = host.view()
    try:
        kept = torch.frombuffer(mapped, dtype=torch.uint8, count=host.size) if host.size else torch.empty(0)
        if torch.cuda.is_available():
            with _LOCK.held(kept.data_ptr(), host.size):
                copy(kept)
                torch.cuda.synchronize()  # nothing is on its way when the pages are let go
        else:
            copy(kept)
        del kept
    finally:
        mapped.close()


def _forget_error() -> None:
    """Have a kernel find the runtime's last error, here and not in a function of the family's."""
    with contextlib.suppress(RuntimeError):
        torch.zeros(1, device="cuda")


_LOCK = PageLock(torch.cuda.cudart, _forget_error)
