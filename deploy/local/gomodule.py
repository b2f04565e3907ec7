"""Fetch the files of a Go module as it was published, such as another project's CRDs."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from pathlib import Path

from deploy.local import build
from deploy.local.errors import ToolsMissing
from deploy.local.report import Report, silent

GO = "1.21.0"  # or any later one: nothing is compiled
_ENVIRONMENT = {
    "GO111MODULE": "on",
    "GOFLAGS": "-mod=mod",
    "GOTOOLCHAIN": "local",
    "GOWORK": "off",
    "GONOSUMDB": "*",  # the pinned hash is the check: no database of hashes has to be reached
}


@dataclasses.dataclass(frozen=True)
class Module:
    """A module and its version, pinned by the hash that a go.sum would have of it."""

    path: str
    version: str
    sum: str

    def fetch(self, toolchain: build.Toolchain, report: Report = silent) -> Path:
        """Return its folder in Go's module cache, read-only; Go downloads it if it is not there yet.

        Errors: ToolsMissing: it cannot be had, or is not what is pinned.
        """
        name = f"{self.path}@{self.version}"
        try:
            go, _ = toolchain.find(GO, report)
            with tempfile.TemporaryDirectory() as nowhere:
                command = [str(go), "mod", "download", "-json", name]
                environment = {**os.environ, **_ENVIRONMENT}
                output = build.run(command, environment, lambda _: None, lambda: None, Path(nowhere))
        except build.BuildError as error:
            raise ToolsMissing(f"Go module {name}: {error}") from error
        module = json.loads("".join(output))
        if module.get("Sum") != self.sum:
            raise ToolsMissing(f"Go module {name}: its hash is {module.get('Sum')}, pinned is {self.sum}")
        return Path(module["Dir"])
