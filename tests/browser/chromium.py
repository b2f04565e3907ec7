"""A Chromium for the browser tests: the one on PATH, else Debian's, installed or unpacked into the cache."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.support import apt

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
CACHE = apt.cache("chromium")


class NoChromium(Exception):
    """None is there and none can be had; the message says what was tried."""


class Chromium:
    """``path`` to start it by, ``environ`` to find the libraries that were unpacked with it."""

    def __init__(self, path: Path, environ: dict[str, str] | None = None) -> None:
        self.path, self.environ = path, environ or {}


def obtain(say: Callable[[str], None] = print, run: apt.Run = apt.run) -> Chromium:
    """The first that works: on PATH, in the cache, by apt as root, by apt into the cache.

    Raises:
        NoChromium: none of them.
    """
    if (found := _there()) is not None:
        return found
    if shutil.which("apt-get") is None:
        raise NoChromium(f"none of {', '.join(NAMES)} is on PATH, and there is no apt-get to get one")
    say("Chromium: not on PATH; getting Debian's package")
    try:
        with apt.alone():
            if _there() is None:  # another test may have got it meanwhile
                if os.geteuid() == 0:
                    apt.install("chromium", run)
                else:
                    apt.unpack("chromium", CACHE, run)
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", "") or str(error)
        raise NoChromium(f"apt could not give Chromium: {said.strip()[-400:]}") from error
    if (found := _there()) is None:
        raise NoChromium("apt gave packages, but no chromium is in them")
    return found


def _there() -> Chromium | None:
    on_path = next((Path(found) for name in NAMES if (found := shutil.which(name))), None)
    if on_path is not None:
        return Chromium(on_path)
    kept = apt.unpacked("usr/lib/chromium/chromium", CACHE, own="chromium")
    return Chromium(*kept) if kept is not None else None
