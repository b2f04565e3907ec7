"""The brain's own world (tests/policy/policy_world.py) makes real decision logs here too."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "policy"))
