"""What the version before this one stored, kept beside the tests: an upgrade is tested without git's history.

``previous.json`` has the schemas of its definitions, without descriptions, and statuses that its code wrote:
now those of commit 01a9efd, before the election and Kueue. When a version is released, its own take their
place: ``python tests/api/previous.py``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Schema = Mapping[str, Any]
FILE = Path(__file__).with_name("previous.json")
_NO_LESS, _NO_MORE = ("maxLength", "maxItems", "maximum"), ("minLength", "minItems", "minimum")


def load() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text())
    return found


def narrower(old: Schema, new: Schema, path: str = "") -> Iterator[str]:
    """Ways in which ``new`` refuses, forgets or reads otherwise what ``old`` took."""
    if old.get("type") != new.get("type"):
        yield f"{path}: of another type"
    if "enum" in new and not set(old.get("enum", [None])) <= set(new["enum"]):
        yield f"{path}: knows fewer words"
    for key in _NO_LESS:
        if key in new and (key not in old or new[key] < old[key]):
            yield f"{path}: {key} is smaller"
    for key in _NO_MORE:
        if key in new and (key not in old or new[key] > old[key]):
            yield f"{path}: {key} is larger"
    if "pattern" in new and new["pattern"] != old.get("pattern"):
        yield f"{path}: of another pattern"
    if old.get("default") != new.get("default"):
        yield f"{path}: of another default"
    for name in sorted(set(new.get("required", ())) - set(old.get("required", ()))):
        if "default" not in new["properties"][name]:
            yield f"{path}.{name}: now required, and without a default"
    before, after = ({v["rule"] for v in schema.get("x-kubernetes-validations", ())} for schema in (old, new))
    yield from (f"{path}: has the rule {rule}" for rule in sorted(after - before))
    for name, inner in old.get("properties", {}).items():
        if name in new.get("properties", {}):
            yield from narrower(inner, new["properties"][name], f"{path}.{name}")
        else:
            yield f"{path}.{name}: is gone"
    if "items" in old:
        yield from narrower(old["items"], new.get("items", {}), f"{path}[]")


def bare(schema: Any) -> Any:
    """A schema without its descriptions."""
    if isinstance(schema, list):
        return [bare(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {k: bare(v) for k, v in schema.items() if k != "description" or not isinstance(v, str)}


def main() -> None:
    """Record the present version as the previous one."""
    import dataclasses

    from api_examples import full_record
    from test_api_record import DESIRED

    from controller.api.convert import status
    from controller.api.crd import RESOURCES, root_schema
    from controller.policy.jobs import JobRecord

    full = full_record(condition_count=6, retained=2, message="a message")
    records = {
        "stopped": full,
        "running": dataclasses.replace(full, decision=None, retained=(), access=None),
        "queued": JobRecord(conditions=full.conditions[:2]),
    }
    found = {
        "schemas": {r.plural: bare(root_schema(r.model)) for r in RESOURCES},
        "statuses": {name: status(record, DESIRED, 0.0) for name, record in records.items()},
    }
    FILE.write_text(json.dumps(found, separators=(",", ":"), sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
