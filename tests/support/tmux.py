"""A terminal that a test types into and reads: tmux, the one on PATH or Debian's."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support import apt
from tests.support.cluster_report import under_ci

PATIENCE = 90.0  # s for what must come, on a busy machine


class Tmux:
    """One pane of a tmux server of its own."""

    def __init__(self, program: str, needs: Mapping[str, str], socket: Path, width: int, height: int) -> None:
        self._base = [program, "-f", "/dev/null", "-S", str(socket)]
        self._needs = needs
        self.width, self.height = width, height

    def start(self, command: str, environ: Mapping[str, str], folder: Path) -> None:
        """Run a command in the pane. The environment is the test's, with ``environ`` in it."""
        size = ["-x", str(self.width), "-y", str(self.height)]
        made = {**os.environ, "TERM": "xterm-256color", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", **environ}
        for name in ("TMUX", "COLUMNS", "LINES", "NO_COLOR"):
            made.pop(name, None)
        self._run("new-session", "-d", *size, "-c", str(folder), command, environ=made)
        # What a program copies (OSC 52) comes into tmux's buffer; what scrolled away can be read.
        self._run("set-option", "-s", "set-clipboard", "on")
        self._run("set-option", "-g", "history-limit", "20000")

    def resize(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._run("resize-window", "-x", str(width), "-y", str(height))

    def keys(self, *names: str) -> None:
        """Press keys, by tmux's names for them (``Enter``, ``Escape``, ``Down``) or as they are."""
        self._run("send-keys", *names)

    def paste(self, text: str) -> None:
        """Paste lines as they stand, and end the last of them."""
        self._run("load-buffer", "-", stdin=text.rstrip("\n") + "\n")
        self._run("paste-buffer", "-d")

    def copied(self) -> str:
        """Return what a program has copied; "": nothing."""
        try:
            return self._run("show-buffer")
        except subprocess.CalledProcessError:
            return ""

    def screen(self) -> str:
        """Return the lines that are seen."""
        return self._run("capture-pane", "-p")

    def scrolled(self) -> str:
        """Return all lines, those that scrolled away too; what was broken by the edge is one again."""
        return self._run("capture-pane", "-p", "-J", "-S", "-")

    def until(self, holds: Callable[[str], Any], what: str, seconds: float = PATIENCE) -> str:
        """Return the screen once something holds of it."""
        deadline = time.monotonic() + seconds
        while not holds(seen := self.screen()):
            assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s; seen:\n{seen}"
            time.sleep(0.1)
        return seen

    def shows(self, text: str) -> str:
        return self.until(lambda seen: text in seen, f"shows {text!r}")

    def hides(self, text: str) -> str:
        return self.until(lambda seen: text not in seen, f"no longer shows {text!r}")

    def end(self) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):
            self._run("kill-server")

    def _run(self, *words: str, stdin: str | None = None, environ: Mapping[str, str] | None = None) -> str:
        done = subprocess.run(
            [*self._base, *words],
            input=stdin,
            capture_output=True,
            text=True,
            env={**(os.environ if environ is None else environ), **self._needs},
            check=True,
            timeout=60,
        )
        return done.stdout


def program() -> tuple[str, dict[str, str]]:
    """Return the path of tmux, and the environment that it needs; where there is none, apt gives it. Skips
    without one."""
    if (found := _there()) is not None:
        return found
    if shutil.which("apt-get") is not None:
        with contextlib.suppress(OSError, subprocess.CalledProcessError), apt.alone():
            if _there() is None:
                if os.geteuid() == 0:
                    apt.install("tmux", apt.run)
                else:
                    apt.unpack("tmux", apt.cache("tmux"), apt.run)
    if (found := _there()) is not None:
        return found
    if under_ci():
        raise RuntimeError("no tmux, and apt could not give it")
    pytest.skip("no tmux: apt-get install tmux")


def _there() -> tuple[str, dict[str, str]] | None:
    if (found := shutil.which("tmux")) is not None:
        return found, {}
    kept = apt.unpacked("usr/bin/tmux", apt.cache("tmux"), own="tmux")
    return (str(kept[0]), kept[1]) if kept is not None else None


@contextlib.contextmanager
def tmux(width: int, height: int) -> Iterator[Tmux]:
    """Give a pane of a tmux server of its own, which is ended with the block."""
    with tempfile.TemporaryDirectory(prefix="tmux-") as folder:  # a socket's path is short
        made = Tmux(*program(), Path(folder) / "s", width, height)
        try:
            yield made
        finally:
            made.end()
