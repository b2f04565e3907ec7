"""What the version before this one stored, kept beside the tests: they need no history of git's.

``previous.json`` has the schemas of its definitions, without descriptions, statuses that its code wrote, and
a running job with what its code made for it: now the present ones. When
a version is released, its own take their place: ``python tests/support/previous.py``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Schema = Mapping[str, Any]
FILE = Path(__file__).with_name("previous.json")
_NO_LESS, _NO_MORE = ("maxLength", "maxItems", "maximum"), ("minLength", "minItems", "minimum")


def load() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text())
    return found


def _one_of(rule: str) -> frozenset[str]:
    """Return the members of a union of which a CEL rule wants exactly one; empty for any other rule."""
    term = r"\(has\(self\.(\w+)\) \? 1 : 0\)"
    if not re.fullmatch(rf"\({term}(?: \+ {term})*\) == 1", rule):
        return frozenset()
    return frozenset(re.findall(term, rule))


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
    for rule in sorted(after - before):
        if not any(_one_of(known) and _one_of(known) < _one_of(rule) for known in before):
            yield f"{path}: has the rule {rule}"
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


def running() -> dict[str, Any]:
    """A job that was admitted for the 12th time: its manifest, its Job and ConfigMap, and the mark of its
    rule. NAMESPACE, POOL and UID stand for what its cluster calls them."""
    import dataclasses
    import sys

    sys.path[:0] = [str(FILE.parents[2]), str(FILE.parents[1] / "api")]
    from api_examples import JOB, full_record

    from controller import names
    from controller.operator.state import run_configmap
    from controller.policy.stopping import RULES, rule_fingerprint
    from controller.policy.types import PolicySpec
    from controller.workloads import Scheduling, build_child, start_patch

    job = json.loads(json.dumps(JOB))
    job["metadata"] = {"name": "upgraded", "namespace": "NAMESPACE"}
    spec = job["spec"]
    spec |= {"pool": "POOL", "gang": {"replicas": 2, "gpusPerReplica": 2}}
    spec["metrics"], spec["stopRule"] = [{"name": "gold"}], {"kDeclines": {"k": 5}}
    spec["modifiers"] = []
    spec["checkpoints"] |= {
        "location": {"objectStore": {"uri": "s3://work/run"}},
        "retention": {"objectStore": {"uri": "s3://kept"}},
    }
    template = spec["workload"]["template"]["spec"]
    template |= {"completions": 2, "parallelism": 2}
    template["template"]["spec"]["terminationGracePeriodSeconds"] = 1
    template["template"]["spec"]["containers"][0] |= {
        "ports": [{"name": "metrics", "containerPort": 9400}],
        "resources": {"limits": {names.GPU_RESOURCE: "2"}},
    }
    record = full_record(condition_count=6, retained=0, message="a message")
    accepted = json.loads(json.dumps(job))
    accepted["metadata"]["uid"] = "UID"
    child = build_child(accepted, Scheduling(priority_class=names.PRIORITY_CLASS))
    child = _merged(
        child, start_patch(child | {"metadata": child["metadata"] | {"uid": ""}}, 12, {"pool": "POOL"})
    )
    del child["metadata"]["uid"]
    rule = PolicySpec("kDeclines", {"k": 5})
    return {
        "job": job,
        "child": child,
        "run": run_configmap.manifest(accepted, dataclasses.replace(record.run, uid="UID")),
        "rule": {"version": RULES["kDeclines"].version, "paramsHash": rule_fingerprint(rule, ())},
    }


def _merged(obj: dict[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """What the API server makes of a merge patch that takes nothing away."""
    out = dict(obj)
    for key, value in patch.items():
        out[key] = _merged(out.get(key) or {}, value) if isinstance(value, Mapping) else value
    return out


def main() -> None:
    """Record the present version as the previous one."""
    import dataclasses
    import sys

    sys.path[:0] = [str(FILE.parents[2]), str(FILE.parents[1] / "api")]
    from api_examples import full_record
    from test_api_record import DESIRED

    from controller.api.convert import status
    from controller.api.crd import RESOURCES, root_schema
    from controller.policy.job.record import JobRecord

    full = full_record(condition_count=6, retained=2, message="a message")
    records = {
        "stopped": full,
        "running": dataclasses.replace(full, decision=None, retained=(), access=None),
        "queued": JobRecord(conditions=full.conditions[:2]),
    }
    found = {
        "schemas": {r.plural: bare(root_schema(r.model)) for r in RESOURCES},
        "statuses": {name: status(record, DESIRED, 0.0) for name, record in records.items()},
        "running": running(),
    }
    FILE.write_text(json.dumps(found, separators=(",", ":"), sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
