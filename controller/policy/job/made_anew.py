"""A patch that gives a Job the fields of which a message says that it lacks them.

It is of the Job's own manifest: the Job has to be made anew (`controller.workloads.referred` writes the
message).
"""

from __future__ import annotations

import json
import re
from typing import Any

from controller.names import (
    GPU_RESOURCE,
    LABEL_JOB,
    METRICS_PORT_NAME,
    RUN_CONFIGMAP_SUFFIX,
    RUN_DIR,
    RUN_DIR_ENV,
    RUN_VOLUME,
)

_POD = "template.spec"
# Fields that are set as they are expected to be; paths within the Job's spec.
_FIELDS = (
    "suspend",
    "completionMode",
    "completions",
    "parallelism",
    f"{_POD}.schedulerName",
    f"{_POD}.priorityClassName",
)
_VALUE = r"\b%s(?:: | is )(?:[^;]*?, expected )?(?:'(?P<text>[^']*)'|(?P<other>\d{1,9}|true))"
_CLASS = r"priorityClassName: [^;]* is not allowed by the GPUPool, (?:only: (?P<text>[\w.-]+)|none)"
_CONTAINER = r"containers\[(?P<name>[a-z0-9-]+)\]"
_RUN = rf"{_CONTAINER}\.volumeMounts: ConfigMap "
_GPUS = (
    rf"{_CONTAINER}\.resources\.limits\[{re.escape(GPU_RESOURCE)}\]: "
    r"(?:0 in all, expected )?(?P<gpus>\d+)\b(?! in all)"
)
_PORT = rf"{_CONTAINER}\.ports: "


def lacking(message: str, name: str) -> str:
    """Return the ``spec`` of a strategic merge patch, as JSON, for all fields that a message names as
    lacking.

    Args:
        message: of the condition; what it says of other things is left out.
        name: of the RLHFJob.

    Returns:
        JSON; ``<port>`` in it stands for the number of the metrics port, which only the owner knows.
    """
    spec: dict[str, Any] = {}
    for path in _FIELDS:
        found = re.search(_VALUE % path.rpartition(".")[2], message)
        if found is not None:
            _put(spec, path, _value(found["text"], found["other"]))
    if "template.metadata.labels" in message:
        _put(spec, "template.metadata.labels", {LABEL_JOB: name})
    if (refused := re.search(_CLASS, message)) is not None:
        _put(spec, f"{_POD}.priorityClassName", refused["text"])  # None: it is taken out
    container: dict[str, Any] = {}
    if (run := re.search(_RUN, message)) is not None:
        volume = {"name": RUN_VOLUME, "configMap": {"name": f"{name}{RUN_CONFIGMAP_SUFFIX}"}}
        _put(spec, f"{_POD}.volumes", [volume])
        container |= {
            "name": run["name"],
            "volumeMounts": [{"name": RUN_VOLUME, "mountPath": RUN_DIR, "readOnly": True}],
            "env": [{"name": RUN_DIR_ENV, "value": RUN_DIR}],
        }
    if (none := re.search(_GPUS, message)) is not None:
        container |= {"name": none["name"], "resources": {"limits": {GPU_RESOURCE: none["gpus"]}}}
    if (port := re.search(_PORT, message)) is not None:
        ports = [{"name": METRICS_PORT_NAME, "containerPort": "<port>"}]
        container |= {"name": port["name"], "ports": ports}
    if container:
        _put(spec, f"{_POD}.containers", [container])
    return json.dumps(spec, separators=(",", ":")).replace('"<port>"', "<port>")


def _value(text: str | None, other: str | None) -> str | int | bool | None:
    if other is None:
        return text
    return True if other == "true" else int(other)


def _put(spec: dict[str, Any], path: str, value: Any) -> None:
    *folders, last = path.split(".")
    for name in folders:
        spec = spec.setdefault(name, {})
    spec[last] = value
