"""CustomResourceDefinitions from the pydantic models: structural schemas the API server accepts.

JSON Schema as pydantic writes it says more, and says it otherwise, than a CRD may. `structural` inlines
references, turns optional into absent, and drops what the API server has no use for; it refuses what has no
structural form instead of guessing. `python -m controller.api.generate` writes crds/ from here; those files
are never edited.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from pydantic import BaseModel

from controller import names
from controller.api.gpupool import GPUPool
from controller.api.rlhfjob import RLHFJob
from controller.api.workergroup import WorkerGroup
from controller.frozen import dataclass

Json = dict[str, Any]

_DROPPED = frozenset({"title", "$defs", "discriminator", "additionalProperties"})
_KEPT = frozenset(
    {"type", "properties", "required", "items", "enum", "default", "description", "format", "pattern"}
    | {"minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems"}
)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of ``kubectl get``; ``wide``: only with ``-o wide``."""

    name: str
    path: str
    type: str = "string"
    description: str = ""
    wide: bool = False

    def render(self) -> Json:
        out: Json = {
            "name": self.name,
            "type": self.type,
            "jsonPath": self.path,
            "description": self.description,
        }
        return out | ({"priority": 1} if self.wide else {})


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of ours: its model, names, scope and columns."""

    model: type[BaseModel]
    plural: str
    singular: str
    short: str
    scope: str
    columns: tuple[Column, ...]
    categories: tuple[str, ...] = ("rlhf",)

    @property
    def kind(self) -> str:
        return self.model.__name__

    @property
    def crd_name(self) -> str:
        return f"{self.plural}.{names.GROUP}"


_AGE = Column("Age", ".metadata.creationTimestamp", "date", "Since it was created.")

RESOURCES: tuple[Resource, ...] = (
    Resource(
        RLHFJob,
        plural="rlhfjobs",
        singular="rlhfjob",
        short="rj",
        scope="Namespaced",
        columns=(
            Column("State", ".status.summary", description="The condition that matters most now."),
            Column("Reason", ".status.printed.reason", description="Why it is in that state."),
            Column("Step", ".status.printed.step", "integer", "Step of the newest eval."),
            Column("Eval", ".status.printed.eval", description="Newest score."),
            Column(
                "Best",
                ".status.printed.best",
                description="Best score; (lost): no checkpoint of it; (alone): compared with no other.",
            ),
            Column("Streak", ".status.printed.streak", description="The rule's statistic and threshold."),
            Column("GPUs", ".status.printed.gpus", description="GPUs held and wanted."),
            _AGE,
            Column("BestStep", ".status.best.step", "integer", "Step of the best eval.", wide=True),
            Column("Attempt", ".status.attempt", "integer", "How often it was started.", wide=True),
            Column("Mode", ".spec.mode", description="How far the operator may go.", wide=True),
            Column("Rule", ".status.rule.name", description="The stop rule.", wide=True),
            Column("Pool", ".spec.pool", description="The GPUPool.", wide=True),
            Column("Stopped", ".status.decision.reason", description="Why it was stopped.", wide=True),
            Column("Checkpoint", ".status.retained[-1:].path", description="The kept checkpoint.", wide=True),
        ),
    ),
    Resource(
        GPUPool,
        plural="gpupools",
        singular="gpupool",
        short="gp",
        scope="Cluster",
        columns=(
            Column(
                "Ready", '.status.conditions[?(@.type=="Ready")].status', description="Whether it is planned."
            ),
            Column("GPUs", ".status.capacity", "integer", "GPUs of its usable nodes."),
            Column("Free", ".status.free", "integer", "GPUs that nobody has requested."),
            Column("Running", ".status.running", "integer", "Jobs that hold GPUs."),
            Column("Queued", ".status.queued", "integer", "Jobs that wait."),
            _AGE,
            Column("ModeCap", ".spec.modeCap", description="How far the operator may go.", wide=True),
            Column(
                "ReservationSeconds",
                ".spec.reservationSeconds",
                "integer",
                "How long freed GPUs are kept.",
                wide=True,
            ),
        ),
    ),
    Resource(
        WorkerGroup,
        plural="workergroups",
        singular="workergroup",
        short="wgr",
        scope="Namespaced",
        columns=(
            Column(
                "Ready",
                '.status.conditions[?(@.type=="Ready")].status',
                description="Whether it can grant turns.",
            ),
            Column(
                "Answers",
                '.status.conditions[?(@.type=="Answers")].status',
                description="Whether it answers the operator, once it was ready.",
            ),
            Column("Family", ".spec.family", description="Family of its workers."),
            Column("Residents", ".status.printedResidents", description="Its residents, and the most."),
            Column("Pool", ".spec.pool", description="The GPUPool."),
            _AGE,
            Column("Start", ".status.number", "integer", "Number of its newest start.", wide=True),
            Column("Closing", ".status.closing", description="Why it closes.", wide=True),
        ),
    ),
)


def crd(resource: Resource) -> Json:
    """Return the complete CustomResourceDefinition of a resource."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": resource.crd_name,
            "labels": {
                "app.kubernetes.io/name": names.MANAGED_BY,
                "app.kubernetes.io/part-of": names.MANAGED_BY,
                # By it the chart tells definitions that are newer than itself, whoever applied them.
                "app.kubernetes.io/version": version("evalstop"),
            },
        },
        "spec": {
            "group": names.GROUP,
            "scope": resource.scope,
            "names": {
                "kind": resource.kind,
                "listKind": f"{resource.kind}List",
                "plural": resource.plural,
                "singular": resource.singular,
                "shortNames": [resource.short],
                "categories": list(resource.categories),
            },
            "versions": [
                {
                    "name": names.VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": root_schema(resource.model)},
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [c.render() for c in resource.columns],
                }
            ],
        },
    }


def root_schema(model: type[BaseModel]) -> Json:
    """Return the schema of a whole object; what the API server knows by itself (metadata) stays bare."""
    full = model.model_json_schema(by_alias=True, mode="validation")
    for name in ("apiVersion", "kind"):
        full["properties"][name] = {"type": "string", "maxLength": 253}
    full["properties"]["metadata"] = {"type": "object"}
    schema = _convert(full, full["$defs"], model.__name__, ())
    for name in ("apiVersion", "kind"):
        del schema["properties"][name]["maxLength"]
    schema["required"] = ["spec"]
    return schema


def structural(model: type[BaseModel]) -> Json:
    """Return a model's structural schema.

    Raises:
        TypeError: the model has something that has no structural form (recursion, unions of types, floats,
            tuples of fixed length, free maps).
    """
    schema = model.model_json_schema(by_alias=True, mode="validation")
    return _convert(schema, schema.get("$defs", {}), model.__name__, ())


def _convert(node: Json, defs: Mapping[str, Json], where: str, open_refs: tuple[str, ...]) -> Json:
    node = dict(node)
    if "$ref" in node:
        name = node.pop("$ref").rpartition("/")[2]
        if name in open_refs:
            raise TypeError(f"{where}: {name} contains itself, a structural schema cannot")
        # What stands beside the reference (a field's own description or default) wins over the type's.
        return _convert({**defs[name], **node}, defs, where, (*open_refs, name))
    if node.get("default", ...) is None:
        del node["default"]
    if "anyOf" in node:
        if node.get("x-kubernetes-int-or-string"):
            del node["anyOf"]  # the marker says it; the bounds of both are the CEL rule's
            return {key: value for key, value in node.items() if key not in _DROPPED}
        branches = [b for b in node.pop("anyOf") if b.get("type") != "null"]
        if len(branches) != 1:
            raise TypeError(f"{where}: a union of types has no structural form, make it a union of members")
        return _convert({**branches[0], **node}, defs, where, open_refs)
    if "const" in node:
        node["enum"] = [node.pop("const")]
    open_map = node.get("additionalProperties") not in (None, False, True)
    if node.get("type") == "number" or "prefixItems" in node or open_map:
        raise TypeError(f"{where}: floats, fixed tuples and maps have no place in this API")
    out: Json = {}
    for key, value in node.items():
        if key in _DROPPED:
            continue
        if key not in _KEPT and not key.startswith("x-kubernetes-"):
            raise TypeError(f"{where}: {key} has no structural form")
        out[key] = value
    if out.get("default", ...) == [] or out.get("default", ...) == ():
        del out["default"]
    if "description" in out:
        out["description"] = " ".join(out["description"].split())
    if "properties" in out:
        out["properties"] = {
            name: _convert(child, defs, f"{where}.{name}", open_refs)
            for name, child in out["properties"].items()
        }
    if "items" in out:
        out["items"] = _convert(out["items"], defs, f"{where}[]", open_refs)
    _bounded(out, where)
    return out


def _bounded(node: Json, where: str) -> None:
    """Every list and string has a maximum, so that CEL rules have a cost and objects a size."""
    if node.get("type") == "array" and "maxItems" not in node:
        raise TypeError(f"{where}: a list needs max_length")
    if node.get("type") == "string" and "maxLength" not in node and "enum" not in node:
        raise TypeError(f"{where}: text needs max_length")
