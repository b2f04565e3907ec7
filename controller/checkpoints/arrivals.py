"""Times at which entries of folders were added or removed, as far as a file system tells them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

TICK_NS = 10 * 10**6  # of the kernel's clock, at most: both times of a rename are the same but for that
SOON_NS = 60 * 10**9  # from the last write of a file, which may have to be flushed yet, to its rename


def entries_changed(folder: int, names: Iterable[str]) -> int:
    """Return when entries of an open folder were last added or removed, in ns.

    What ends a save is often written under another name and renamed, which changes the folder after the
    file's last write, and the file's own status at the same moment. That was no loss: then it is the time of
    that write. A removal moves the folder's time alone. A file tells nothing whose status may have been
    changed by something else: one with a second name, a pin's, or whose last write was long before.

    Args:
        folder: its descriptor.
        names: of the files in it.

    Raises:
        FileNotFoundError: one of them is gone.
    """
    changed = os.fstat(folder).st_mtime_ns
    for name in names:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        written, moved = status.st_mtime_ns, status.st_ctime_ns
        renamed = written < changed <= moved <= min(changed + TICK_NS, written + SOON_NS)
        if renamed and stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
            return written
    return changed
