"""The election's tests: the virtual clock of the scrape loop's tests, the rig and nodes of the operator's."""

import sys
from pathlib import Path

from rig_fixtures import installed, kubelet, rig

sys.path.append(str(Path(__file__).resolve().parents[1] / "metrics"))

__all__ = ["installed", "kubelet", "rig"]
