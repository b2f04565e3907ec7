"""A memory volume that is a file system of its own and can really be full: a small tmpfs."""

from __future__ import annotations

import errno
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SIZE = 8 << 20  # bytes


def can_mount() -> bool:
    """Return whether file systems can be mounted here; root alone may."""
    with tempfile.TemporaryDirectory() as folder:
        if _mounted(Path(folder)).returncode:
            return False
        unmount(Path(folder))
        return True


def mount(folder: Path) -> None:
    """Make a folder, with a file system of its own of `SIZE` bytes."""
    folder.mkdir()
    _mounted(folder).check_returncode()


def unmount(folder: Path) -> None:
    """Take its file system away, whoever still has files of it; nothing is done where there is none."""
    if os.path.ismount(folder):
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def without_a_free_page(folder: Path) -> Iterator[None]:
    """Keep a small volume full until the block ends, also of what others give back meanwhile.

    Nobody counts the file that fills it: by a member's budget its states fit.
    """
    ballast, ended, full = folder / "ballast", threading.Event(), threading.Event()

    def fill() -> None:
        with ballast.open("wb", buffering=0) as file:
            while not ended.is_set():
                try:
                    file.write(bytes(4096))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    full.set()
                    ended.wait(0.002)

    filler = threading.Thread(target=fill, daemon=True)
    filler.start()
    try:
        assert full.wait(60.0), f"{folder} still has a free page"
        yield
    finally:
        ended.set()
        filler.join()
        ballast.unlink()


def _mounted(folder: Path) -> subprocess.CompletedProcess[bytes]:
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)]
    return subprocess.run(command, capture_output=True, check=False)
