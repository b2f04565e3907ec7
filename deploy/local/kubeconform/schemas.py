"""JSON schemas of every kind that an API server serves, as kubeconform looks them up.

Nothing is downloaded, and they are exactly that server's, its resource definitions among them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Json = dict[str, Any]

KINDS = "x-kubernetes-group-version-kind"
_DEFINITIONS = "_definitions.json"
# For `-schema-location`; kubeconform fills it in: `deployment-apps-v1.json`, `pod-v1.json`.
LOCATION = "{{ .ResourceKind }}{{ .KindSuffix }}.json"


def write(openapi: Mapping[str, Any], folder: Path) -> int:
    """Write a schema for each kind of an OpenAPI v2 document (``/openapi/v2``); how many there are.

    Properties that a schema does not name are refused, as by strict field validation.
    """
    definitions = {name: closed(found) for name, found in openapi["definitions"].items()}
    (folder / _DEFINITIONS).write_text(json.dumps({"definitions": definitions}))
    count = 0
    for name, found in openapi["definitions"].items():
        for kind in found.get(KINDS, ()):
            (folder / file_name(**kind)).write_text(json.dumps(of_kind(name, definitions[name], **kind)))
            count += 1
    return count


def file_name(group: str, version: str, kind: str) -> str:
    """Under which name kubeconform looks for a kind: the first word of its group, then the version."""
    parts = [kind.lower(), *([group.partition(".")[0]] if group else []), version.lower()]
    return "-".join(parts) + ".json"


def of_kind(name: str, definition: Json, group: str, version: str, kind: str) -> Json:
    """Return a definition whose apiVersion and kind are these."""
    properties = dict(definition.get("properties", {}))
    properties |= {
        "apiVersion": {"const": f"{group}/{version}" if group else version},
        "kind": {"const": kind},
    }
    return {**definition, "properties": properties, "title": name}


def closed(schema: Any) -> Any:
    """OpenAPI v2 as JSON Schema: references into the definitions' file, objects without other properties."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    if "$ref" in schema:
        return {"$ref": _DEFINITIONS + str(schema["$ref"])}
    found = {key: closed(part) for key, part in schema.items() if not key.startswith("x-")}
    if schema.get("format") == "int-or-string":
        return {"type": ["integer", "string"]}
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    if isinstance(schema.get("properties"), Mapping):
        found["properties"] = {key: closed(part) for key, part in schema["properties"].items()}
        if "additionalProperties" not in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
            found["additionalProperties"] = False
    found.pop("format", None)
    found.pop("default", None)
    return found
