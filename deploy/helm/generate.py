"""Writes the chart's generated files: resource definitions, admission policy, values.schema.json.

    python -m deploy.helm.generate [--check]

``--check`` writes nothing and fails when a file is not what it would be.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from controller.api.generate import ROOT
from controller.api.generate import files as generated_by_api
from deploy.helm.schema import schema

CHART = ROOT / "deploy" / "helm" / "evalstop"


def files() -> dict[Path, str]:
    """Each generated file of the chart and its content."""
    found = {CHART / "values.schema.json": json.dumps(schema(), indent=1) + "\n"}
    for path, text in generated_by_api().items():
        if path.parent.name == "crds":
            found[CHART / "files" / "crds" / path.name] = text
        elif path.name == "admission.yaml":
            found[CHART / "files" / "admission.yaml"] = text
    return found


def stale() -> list[Path]:
    """Files that are not what they would be; one in files/crds that nothing generates is among them."""
    wanted = files()
    strays = set((CHART / "files" / "crds").glob("*")) - set(wanted)
    changed = {path for path, text in wanted.items() if not path.exists() or path.read_text() != text}
    return sorted(changed | strays)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m deploy.helm.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail when a file is stale")
    if parser.parse_args(arguments).check:
        found = stale()
        for path in found:
            print(f"{path.relative_to(ROOT)} is stale: run `make generate`", file=sys.stderr)
        return 1 if found else 0
    for path, text in files().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
