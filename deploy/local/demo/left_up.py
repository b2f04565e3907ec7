"""A demo that was left up belongs to somebody: another one does not begin over it unasked."""

from __future__ import annotations

import sys
from pathlib import Path

from deploy.local.errors import PlaneError
from deploy.local.plane import Plane


def not_over_another(out: Path, fresh: bool, story: str = "") -> None:
    """Raise PlaneError where a demo that was left up runs in the folder: it is somebody's, until FRESH=1.

    ``story``: of the demo; "": the main one.
    """
    left = Plane(out / "plane")
    if fresh or not left.work.is_dir() or not left.status().up:
        return
    again = "make demo FRESH=1" + (f" STORY={story}" if story else "")
    raise PlaneError(
        f"a demo plays, or was left up by KEEP=1, in {left.work}: {again} ends it and begins "
        f"anew; to look at it: export KUBECONFIG={left.kubeconfig}; "
        f"to end it: {sys.executable} -m deploy.local down --work {left.work}"
    )
