"""Objects as JSON, YAML or names, the way kubectl prints them; documents of our own as JSON or YAML."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from controller.cli.flags import Document, Format
from controller.cli.terminal import say

Object = dict[str, Any]


def is_read(out: Path, files: Iterable[Path]) -> bool:
    """Return whether a file that is to be written is one of those that are read: it would be lost."""
    return out.exists() and any(file.exists() and out.samefile(file) for file in files)


def lines(text: Iterable[str]) -> None:
    """Print all lines in one write."""
    out = "\n".join(text)
    if out:
        say(out)


def objects(found: Sequence[Object], form: Format, *, one: bool = False, stream: bool = False) -> bool:
    """Print API objects if ``form`` asks for objects, and return True; return False if it asks for a table.

    ``one``: exactly one was asked for by name, so it is printed alone and not in a List. ``stream``: more
    come later, so each is a document of its own.
    """
    if form in (Format.TABLE, Format.WIDE):
        return False
    if form is Format.NAME:
        lines(
            f"{o['kind'].lower()}.{str(o['apiVersion']).partition('/')[0]}/{o['metadata']['name']}"
            for o in found
        )
        return True
    shown = [_without_managed_fields(o) for o in found]
    if stream:
        for obj in shown:
            document(obj, Document(form.value), stream=True)
        return True
    whole = shown[0] if one else {"apiVersion": "v1", "kind": "List", "items": shown, "metadata": {}}
    say(text(whole, Document(form.value)))
    return True


def document(value: Mapping[str, Any], form: Document, *, stream: bool = False) -> bool:
    """Print a document if ``form`` asks for one, and return True; return False if it asks for text.

    ``stream``: it is one of many, and YAML marks where each begins.
    """
    if form is Document.TEXT:
        return False
    say(("---\n" if stream and form is Document.YAML else "") + text(value, form))
    return True


def text(value: Any, form: Document) -> str:
    if form is Document.JSON:
        return json.dumps(value, indent=2, ensure_ascii=False)
    import yaml

    dumped: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=10**6)
    return dumped.rstrip("\n")


def _without_managed_fields(obj: Object) -> Object:
    metadata = {k: v for k, v in obj["metadata"].items() if k != "managedFields"}
    return {**obj, "metadata": metadata}
