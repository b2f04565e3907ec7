"""An operator to whom a worker group is silent sooner: `hasty_operator.py SECONDS`. Else the product's.

`hasty_operator.py SECONDS LOG` decides everything in such an operator's decision log again, and compares byte
for byte.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from controller.policy import group_types


def main() -> None:
    """Run the operator, or compare."""
    group_types.SILENT = float(sys.argv.pop(1))
    early = [name for name, one in sys.modules.items() if "SILENT" in vars(one) and one is not group_types]
    assert not early, f"they have the product's already: {early}"
    if len(sys.argv) == 1:
        runpy.run_module("controller.operator", run_name="__main__", alter_sys=True)
        return
    from controller.policy import decision_log

    lines = [one for one in Path(sys.argv[1]).read_text().splitlines(keepends=True) if one.endswith("\n")]
    entries = list(decision_log.replay(lines))
    assert entries, "no decision"
    assert [one for one in entries if not one.same] == []


if __name__ == "__main__":
    main()
