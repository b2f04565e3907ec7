"""An operator to whom a worker group is silent sooner: `hasty_operator.py SECONDS`. Else the product's."""

from __future__ import annotations

import runpy
import sys

from controller.policy import group_types


def main() -> None:
    """Run the operator."""
    group_types.SILENT = float(sys.argv.pop(1))
    early = [
        name
        for name, module in sys.modules.items()
        if hasattr(module, "SILENT") and module is not group_types
    ]
    assert not early, f"they have the product's already: {early}"
    runpy.run_module("controller.operator", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
