"""The layout of docs/use/trainer-contract.md: a manifest with sizes and digests."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from controller.checkpoints.digest import Manifest
from controller.checkpoints.layouts.base import Evidence, Numbered, Times, json_object
from controller.checkpoints.weights import Content


class Plain(Numbered):
    """``step-<N>/`` with a ``manifest.json`` of sizes and sha256 (docs/use/trainer-contract.md)."""

    name, form = "Plain", "step-{}"
    pattern = re.compile(r"step-(?P<step>\d{1,15})")
    manifest = "manifest.json"

    def problem(self, content: Content, step: int) -> str | None:
        listed = self._listed(content)
        if isinstance(listed, str):
            return listed
        listed_step, entries = listed
        if listed_step != step:
            return f"{self.manifest} says step {listed_step}, the folder says {step}"
        sizes = content.files()
        for name, (size, _) in sorted(entries.items()):
            if name not in sizes:
                return f"{name} is missing ({self.manifest} lists it)"
            if sizes[name] != size:
                return f"{name} has {sizes[name]} of {size} bytes"
        return None

    def evidence(self, content: Content, step: int, times: Times | None) -> Evidence:
        return Evidence(sure=True)  # every file with its size and digest is in the manifest

    def fits(self, names: Collection[str]) -> str | None:
        return self.manifest if self.manifest in names else None

    def loads(self, content: Content) -> str:
        return "the trainer's own loader"

    def mismatch(self, content: Content, manifest: Manifest) -> str | None:
        listed = self._listed(content)
        if isinstance(listed, str):
            return listed
        for name, (_, sha256) in sorted(listed[1].items()):
            if name not in manifest or manifest[name].sha256 != sha256:
                return f"{name} differs from the sha256 in {self.manifest}"
        return None

    def _listed(self, content: Content) -> tuple[int, dict[str, tuple[int, str]]] | str:
        """(step, files by name: (bytes, sha256 hex)), or why the manifest cannot be used."""
        document = json_object(content, self.manifest)
        if isinstance(document, str):
            return document
        try:
            step, raw = document["step"], document["files"]
            items = (
                raw.items()
                if isinstance(raw, Mapping)
                else ((entry.get("name", entry.get("path")), entry) for entry in raw)
            )
            files = {
                str(name): (int(entry["size"]), str(entry["sha256"]).removeprefix("sha256:").lower())
                for name, entry in items
            }
            if isinstance(step, bool) or not isinstance(step, int) or not files:
                raise ValueError
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            return (
                f"{self.manifest} is not of the form "
                '{"step": N, "files": {"<name>": {"size": bytes, "sha256": "<hex>"}}}'
            )
        return step, files
