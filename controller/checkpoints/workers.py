"""A few workers over many items: bounded in memory, ended by the first failure."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

ItemT = TypeVar("ItemT")


def each(items: Iterable[ItemT], work: Callable[[ItemT], None], workers: int) -> None:
    """``work`` on each item, ``workers`` at a time, begun in their order.

    Raises:
        What ``work`` raised first; no further items are begun then, and those under way have ended.
    """
    source, turn, failed = iter(items), threading.Lock(), threading.Event()

    def go_on() -> None:
        while not failed.is_set():
            with turn:
                item = next(source, ended)
            if item is ended:
                return
            try:
                work(item)  # type: ignore[arg-type]
            except BaseException:
                failed.set()
                raise

    ended = object()
    with ThreadPoolExecutor(max_workers=workers) as pool:
        futures = [pool.submit(go_on) for _ in range(workers)]
        first, _ = wait(futures, return_when=FIRST_EXCEPTION)
    for future in (*first, *futures):
        future.result()
