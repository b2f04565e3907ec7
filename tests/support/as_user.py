"""Work done as another user, and a checkpoint location that several users can enter; only root can do it."""

from __future__ import annotations

import os
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ACCESS, TRAINER, NEXT = 12001, 12002, 12003  # users that own nothing else here

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become two users")


@contextmanager
def open_location(mode: int) -> Iterator[Path]:
    """Make a checkpoint folder of that mode; pytest's own folders may be entered by one user alone."""
    top = Path(tempfile.mkdtemp(prefix="evalstop-users-"))
    try:
        top.chmod(0o755)
        place = top / "ckpt"
        place.mkdir()
        place.chmod(mode)
        yield place
    finally:
        shutil.rmtree(top)


def as_user(uid: int, act: Callable[[], str | None]) -> str:
    """Do it in a process of that user, with no other group, no capability and the usual umask; return
    the text that it returns."""
    read, end = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            os.umask(0o022)
            os.write(end, (act() or "").encode())
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(end)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read().decode()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, f"as user {uid}; its words are above"
    return said
