"""The rename table (words.toml), read and checked."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TABLE = Path(__file__).parent / "words.toml"
SINCE = (
    Path(__file__).parent / "since"
)  # a table of its own for each later commit, by whose name it is called
FIRST = "f6ce8f5"  # the commit that TABLE is about
DECISIONS: dict[str, type] = {
    "types": str,
    "fields": str,
    "strings": str,
    "gone": str,
    "added": str,
    "meant": str,
}


def of_commit(commit: str) -> Path:
    """Return the table for decisions of a commit before.

    Raises:
        ValueError: there is none; the message says for which there is.
    """
    tables = {FIRST: TABLE} | {path.stem: path for path in sorted(SINCE.glob("*.toml"))}
    for name, path in tables.items():
        if commit.startswith(name):
            return path
    raise ValueError(
        f"the tree before is at {commit[:10]}: tables are there for {', '.join(tables)}; name one by --words"
    )


def load(path: Path = TABLE) -> dict[str, Any]:
    """Return the table: ``decisions`` for `recorder.Words`, ``inventory`` for `inventory.differences`.

    Raises:
        ValueError: a row is of another kind than its table; the message names it.
    """
    try:
        read = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: {error}") from None
    _known(path, "", read, {"decisions", "inventory"})
    return {
        "decisions": _decisions(path, read.get("decisions", {})),
        "inventory": _inventory(path, read.get("inventory", {})),
    }


def _decisions(path: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    _known(path, "decisions", given, {*DECISIONS, "text", "shapes"})
    found: dict[str, Any] = {
        name: _strings(path, f"decisions.{name}", given.get(name, {})) for name in DECISIONS
    }
    found["meant"] = {str(path.parent / patch): why for patch, why in found["meant"].items()}
    for patch in found["meant"]:
        if not Path(patch).is_file():
            raise ValueError(f"{path}: decisions.meant: {patch}: expected a file that undoes the change")
    found["text"] = given.get("text", [])
    for row in found["text"]:
        if set(row) != {"before", "after"}:
            raise ValueError(f"{path}: decisions.text: {row!r}: expected before and after")
        try:
            re.compile(row["before"])
        except re.error as error:
            raise ValueError(f"{path}: decisions.text: {row['before']!r}: {error}") from None
    shapes = given.get("shapes", {})
    _known(path, "decisions.shapes", shapes, {"tuples", "inlined"})
    return found | {name: list(shapes.get(name, [])) for name in ("tuples", "inlined")}


def _inventory(path: Path, given: Mapping[str, Any]) -> dict[str, dict[str, dict[str, str]]]:
    _known(path, "inventory", given, {"renamed", "gone", "added", "changed"})
    return {
        kind: {
            section: _strings(path, f"inventory.{kind}.{section}", rows)
            for section, rows in given.get(kind, {}).items()
        }
        for kind in ("renamed", "gone", "added", "changed")
    }


def with_added(
    table: Mapping[str, Mapping[str, Mapping[str, str]]], rows: Mapping[str, Mapping[str, str]]
) -> dict[str, dict[str, dict[str, str]]]:
    """Return the table for `inventory.differences` with more rows of ``added``, by section."""
    found = {
        kind: {section: dict(of) for section, of in sections.items()} for kind, sections in table.items()
    }
    added = found.setdefault("added", {})
    for section, more in rows.items():
        added.setdefault(section, {}).update(more)
    return found


def _strings(path: Path, where: str, rows: Any) -> dict[str, str]:
    if not isinstance(rows, dict):
        raise ValueError(f"{path}: {where}: {rows!r}: expected a table")
    for name, value in rows.items():
        if not isinstance(value, str) or not value:
            raise ValueError(
                f"{path}: {where}.{name}: {value!r}: expected a text (quote names that have dots)"
            )
    return rows


def _known(path: Path, where: str, given: Mapping[str, Any], known: set[str]) -> None:
    for name in given:
        if name not in known:
            raise ValueError(
                f"{path}: {where or 'table'}: {name!r}: expected one of {', '.join(sorted(known))}"
            )
