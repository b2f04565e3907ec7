"""Page-locks host memory for a copy to or from a GPU, so that the driver copies it by itself and at once.

By torch's binding of the CUDA runtime (``torch.cuda.cudart()``: ``cudaHostRegister`` and
``cudaHostUnregister``). A refusal is told and costs speed alone: the copy is made all the same.
Never run: there was no GPU here; written from the CUDA runtime's reference.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Callable

_SUCCESS = 0


def _said(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class PageLock:
    """Locks pages while copies are made.

    Args:
        runtime: returns the CUDA runtime, as ``torch.cuda.cudart`` does.
        forget: has the runtime forget its last error, which would else be found by the next kernel.
        say: told why memory could not be locked, once for each reason.
    """

    def __init__(
        self,
        runtime: Callable[[], Any],
        forget: Callable[[], None] = lambda: None,
        say: Callable[[str], None] = _said,
    ) -> None:
        self._runtime, self._forget, self._say = runtime, forget, say
        self._told: set[str] = set()

    @contextmanager
    def held(self, address: int, size: int) -> Iterator[bool]:
        """Lock so many bytes from an address for as long as the block lasts; give whether they are."""
        locked = bool(size) and self._called("cudaHostRegister", address, size, 0)
        try:
            yield locked
        finally:
            if locked:
                self._called("cudaHostUnregister", address)

    def _called(self, name: str, *given: int) -> bool:
        """Call a function of the runtime; return whether it did as it was asked."""
        try:
            code = int(getattr(self._runtime(), name)(*given))
            why = "" if code == _SUCCESS else f"error {code}"
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
        if not why:
            return True
        self._forget()
        if (text := f"{name}: {why}") not in self._told:
            self._told.add(text)
            self._say(f"host memory is not page-locked, copies are slower: {text}")
        return False
