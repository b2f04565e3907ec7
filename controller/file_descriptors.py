"""File descriptors: a process takes all that it may have, and servers leave some for what it does itself.

What runs out of them cannot open the connection that its next probe, scrape or API call needs, and each of
those then fails with "Too many open files".
"""

from __future__ import annotations

import os
import resource
from pathlib import Path

MOST = 65536  # more than any of our processes needs; some libraries walk through all that there may be
_OPEN = Path("/proc/self/fd")
_GUESS = 64  # open ones, where the system does not tell


def raise_limit() -> int:
    """Raise the soft limit to the hard one, and to no more than `MOST`. Returns what it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return MOST if soft == resource.RLIM_INFINITY else soft


def left(reserve: int) -> int:
    """Return how many of the free descriptors servers may take, with ``reserve`` of them kept back."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MOST if soft == resource.RLIM_INFINITY else min(soft, MOST)
    try:
        open_now = len(os.listdir(_OPEN))
    except OSError:
        open_now = _GUESS
    return max(0, limit - open_now - reserve)
