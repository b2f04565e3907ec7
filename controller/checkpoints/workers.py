"""Work on many items (files, objects) in a few threads: bounded in memory, ended by the first failure."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

ItemT = TypeVar("ItemT")


def each(items: Iterable[ItemT], work: Callable[[ItemT], None], workers: int) -> None:
    """Call ``work`` with each item, in threads, and return when all are done.

    Args:
        items: taken one at a time, in their order.
        work: what is done with one.
        workers: items under way at a time.

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
