"""Writes the chart's dashboards.

    python -m deploy.grafana [--check]

``--check`` writes nothing and fails when a file is not what it would be.
"""

from __future__ import annotations

import argparse
import sys

from deploy.grafana.dashboards import DASHBOARDS, FOLDER, stale


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m deploy.grafana", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail when a file is stale")
    if parser.parse_args(arguments).check:
        if found := stale():
            print(f"stale: {', '.join(found)}; run `make generate`", file=sys.stderr)
            return 1
        return 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for dashboard in DASHBOARDS:
        (FOLDER / dashboard.file).write_text(dashboard.text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
