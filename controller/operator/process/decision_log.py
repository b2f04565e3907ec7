"""The decision log on disk: its own thread appends lines, and files are rotated by size.

``LOG`` is the current file, ``LOG.1`` the one before it, and so on; `evalstop replay` reads any of them.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path

from controller import log

_logger = log.get("evalstop.declog")


class DecisionLog:
    """Appends lines without making the caller wait for the disk.

    When the disk cannot keep up, or refuses, lines are dropped and told to ``dropped``: an operator must not
    stop deciding because its log is full. A file is cut only between lines.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int,
        files: int,
        backlog: int = 10_000,
        dropped: Callable[[], None] = lambda: None,
    ) -> None:
        self._path = path
        self._max_bytes, self._files = max_bytes, files
        self._dropped = dropped
        self._lines: queue.Queue[str | None] = queue.Queue(backlog)
        self._complained = False
        path.parent.mkdir(parents=True, exist_ok=True)
        self._thread = threading.Thread(target=self._run, name="decision log", daemon=True)
        self._thread.start()

    def append(self, line: str) -> None:
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._dropped()

    def close(self, patience: float = 5.0) -> None:
        """Write what is waiting, then end the thread."""
        try:
            self._lines.put(None, timeout=patience)
        except queue.Full:
            return
        self._thread.join(patience)

    def _run(self) -> None:
        while True:
            batch = [self._lines.get()]
            while batch[-1] is not None and len(batch) < 256:
                try:
                    batch.append(self._lines.get_nowait())
                except queue.Empty:
                    break
            lines = [line for line in batch if line is not None]
            try:
                self._write(lines)
            except OSError as error:
                for _ in lines:
                    self._dropped()
                if not self._complained:
                    self._complained = True
                    _logger.error("decision log cannot be written", path=str(self._path), error=str(error))
            if batch[-1] is None:
                return

    def _write(self, lines: list[str]) -> None:
        position = 0
        while position < len(lines):
            size = self._path.stat().st_size if self._path.exists() else 0
            if size >= self._max_bytes:
                self._rotate()
                size = 0
            with self._path.open("ab") as file:
                if size and not _ends_with_newline(self._path):
                    file.write(b"\n")  # a crash cut the last line off: keep the damage to that line
                while position < len(lines) and size < self._max_bytes:
                    data = lines[position].encode() + b"\n"
                    file.write(data)
                    size += len(data)
                    position += 1

    def _rotate(self) -> None:
        def numbered(i: int) -> Path:
            return self._path.with_name(f"{self._path.name}.{i}") if i else self._path

        for i in range(self._files - 1, 0, -1):
            if numbered(i - 1).exists():
                os.replace(numbered(i - 1), numbered(i))
        if self._files == 1:
            self._path.unlink()


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
