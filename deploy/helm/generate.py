"""Writes the chart's values.schema.json. Its resource definitions: `controller.api.generate`.

    python -m deploy.helm.generate [--check]

``--check`` writes nothing and fails when it is not what it would be.
"""

from __future__ import annotations

import argparse
import json
import sys

from controller.api.generate import ROOT
from deploy.helm.schema import schema

CHART = ROOT / "deploy" / "helm" / "evalstop"


SCHEMA = CHART / "values.schema.json"


def text() -> str:
    """Return what the file has to be."""
    return json.dumps(schema(), indent=1) + "\n"


def stale() -> bool:
    """Return whether the file is not what it would be."""
    return not SCHEMA.exists() or SCHEMA.read_text() != text()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m deploy.helm.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail when a file is stale")
    if parser.parse_args(arguments).check:
        if stale():
            print(f"{SCHEMA.relative_to(ROOT)} is stale: run `make generate`", file=sys.stderr)
            return 1
        return 0
    SCHEMA.write_text(text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
