"""A cluster as the version before this one left it: its definitions, a pool, and a job that runs.

The data are that version's own (`tests/support/previous.json`); its process is not run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from controller.api import values
from controller.kube.resources import CONFIGMAPS, JOBS, RLHFJOBS
from deploy.local.plane import Plane
from tests.support import previous
from tests.support.operator_rig import Rig

Object = dict[str, Any]
CRDS = Path(__file__).resolve().parents[2] / "crds"
ATTEMPT = 12  # of the recorded job
LIFE = "9f2c41d0"  # of its trainer's last process
LATER = "gangTimeoutSeconds"  # stands for a field, with a default, that the version before had not


def definitions() -> list[Object]:
    """crds/ with the schemas of the version before, and without one field of GPUPool that has a default."""
    schemas = previous.load()["schemas"]
    del schemas["gpupools"]["properties"]["spec"]["properties"][LATER]
    every = [yaml.safe_load(path.read_text()) for path in sorted(CRDS.glob("*.yaml"))]
    found = [crd for crd in every if crd["spec"]["names"]["plural"] in schemas]
    for crd in found:
        (version,) = crd["spec"]["versions"]
        version["schema"]["openAPIV3Schema"] = schemas[crd["spec"]["names"]["plural"]]
    return found


def apply(plane: Plane, definitions: list[Object]) -> None:
    """Apply definitions, and wait until they are served."""
    names = [crd["metadata"]["name"] for crd in definitions]
    plane.kubectl(
        "apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": definitions})
    )
    plane.established(*names)


def status(nodes: list[str], since: float) -> Object:
    """The recorded status of a running job, on these nodes.

    Five things in it are fitted: the nodes; its times, which become ``since`` (s); the rule's mark and
    verdict, since the recorded one asks for the stop at once; and the hash of the rule's parameters, so that
    the rule is another version's even if the version before has the same rules; and no eval waits to be borne
    out, since whether its checkpoint is secured before the stop is a matter of time. The rule's state stays.
    """
    text = json.dumps(previous.load()["statuses"]["running"])
    stamp = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z")
    found: Object = json.loads(stamp.sub(values.timestamp(since), text))
    found["admission"]["nodes"] = nodes
    del found["awaiting"]
    verdict = {"verb": "Continue", "reason": "Declining", "statistic": "3", "threshold": "5"}
    found["rule"] |= previous.load()["running"]["rule"] | {"verdict": verdict, "paramsHash": "0" * 12}
    return found


async def running_job(rig: Rig, nodes: list[str], since: float) -> Object:
    """The recorded job in this cluster, with its Job, its ConfigMap and its status."""
    recorded = previous.load()["running"]
    fit = {"NAMESPACE": rig.namespace, "POOL": rig.pool_name}
    made = await rig.api.create(RLHFJOBS, _fitted(recorded["job"], fit))
    fit |= {"UID": made["metadata"]["uid"]}
    await rig.api.create(CONFIGMAPS, _fitted(recorded["run"], fit))
    await rig.api.create(JOBS, _fitted(recorded["child"], fit))
    name = made["metadata"]["name"]
    patch = {"status": status(nodes, since)}
    return await rig.api.merge_patch(RLHFJOBS, name, patch, rig.namespace, subresource="status", strict=True)


def _fitted(obj: Object, words: Mapping[str, str]) -> Object:
    """An object with what its cluster calls things in it."""
    text = json.dumps(obj)
    for word, name in words.items():
        text = text.replace(word, name)
    fitted: Object = json.loads(text)
    return fitted
