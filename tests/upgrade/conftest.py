"""The upgrade's tests: the rig and nodes of the operator's, and what the version before wrote."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path += [str(Path(__file__).resolve().parents[1] / neighbour) for neighbour in ("api", "operator")]
