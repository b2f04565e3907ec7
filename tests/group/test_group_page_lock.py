"""Page-locked host memory, against a CUDA runtime that is played: none was ever asked (there was no GPU)."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import pytest

from evalstop_client.page_lock import PageLock


class Code(IntEnum):
    """As torch's binding has it: an enumeration, not a number."""

    SUCCESS, NO_MEMORY = 0, 2


class Runtime:
    """What is locked, by address; refuses what it is told to."""

    def __init__(self, **refuses: Any) -> None:
        self.locked: dict[int, int] = {}
        self.refuses = refuses
        self.asked: list[str] = []

    def _answer(self, name: str) -> Code:
        self.asked.append(name)
        found = self.refuses.get(name, Code.SUCCESS)
        if isinstance(found, Exception):
            raise found
        return found

    def cudaHostRegister(self, address: int, size: int, flags: int) -> Code:
        assert flags == 0
        code = self._answer("cudaHostRegister")
        if code is Code.SUCCESS:
            assert address not in self.locked
            self.locked[address] = size
        return code

    def cudaHostUnregister(self, address: int) -> Code:
        code = self._answer("cudaHostUnregister")
        del self.locked[address]
        return code


def test_memory_is_locked_while_it_is_copied_and_never_longer() -> None:
    runtime, said = Runtime(), []
    lock = PageLock(lambda: runtime, say=said.append)
    with lock.held(4096, 100) as locked:
        assert locked
        assert runtime.locked == {4096: 100}
    assert runtime.locked == {}
    with pytest.raises(ZeroDivisionError), lock.held(4096, 100):
        _ = 1 / 0
    assert runtime.locked == {}
    assert said == []


def test_nothing_is_asked_for_no_bytes() -> None:
    runtime = Runtime()
    with PageLock(lambda: runtime).held(4096, 0) as locked:
        assert not locked
    assert runtime.asked == []


@pytest.mark.parametrize(
    ("refusal", "why"),
    [
        (Code.NO_MEMORY, "cudaHostRegister: error 2"),
        (RuntimeError("no driver"), "cudaHostRegister: RuntimeError: no driver"),
        (AttributeError("none"), "cudaHostRegister: AttributeError: none"),
    ],
)
def test_a_refusal_is_told_once_forgotten_and_not_fatal(refusal: Any, why: str) -> None:
    runtime, said, forgotten = Runtime(cudaHostRegister=refusal), [], []
    lock = PageLock(lambda: runtime, lambda: forgotten.append(1), said.append)
    for _ in range(2):
        with lock.held(4096, 100) as locked:
            assert not locked
    assert said == [f"host memory is not page-locked, copies are slower: {why}"]
    assert len(forgotten) == 2  # else the next kernel would find the error
    assert "cudaHostUnregister" not in runtime.asked


def test_memory_that_is_not_let_go_is_told() -> None:
    runtime, said = Runtime(cudaHostUnregister=Code.NO_MEMORY), []
    with PageLock(lambda: runtime, say=said.append).held(4096, 100) as locked:
        assert locked
    assert "cudaHostUnregister: error 2" in said[0]
