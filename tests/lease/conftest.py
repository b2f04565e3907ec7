"""The election's tests use the virtual clock of the scrape loop's tests and the operator's rig."""

import sys
from pathlib import Path

for neighbour in ("metrics", "operator"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / neighbour))
