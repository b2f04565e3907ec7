"""Access Jobs that differ in one thing each from what the operator makes, and what is said of it.

``fields``: as `policies_rows.changed` takes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from controller import names

POD = "spec__template__spec"
ONE = f"{POD}__containers__0"
_FIELDS, _OF_CONTAINER = "of a pod's fields their own alone", "of a container's fields their own alone"
_WHOSE, _UNDER, _ONCE = "say whose they are", "under their workload or", "one pod, once"
_PRIVILEGES, _SECCOMP = "have no privileges", "own seccomp profile"
_VARIABLES, _PROGRAM = "variables that change how", "run the access program"
_TOKEN, _PROJECTED = "get no token of the API server", "mount no token of the API server"
_EXEC = {"exec": {"command": ["sh"]}}
_BY_CLASS = f"{names.DEVICE_CLASS}gpu.example.com"
_OWNER = {"apiVersion": "batch/v1", "kind": "Job", "name": "run", "uid": "x", "controller": True}


class Case(NamedTuple):
    name: str
    fields: dict[str, Any]
    refused: str = ""


def cases() -> Iterator[Case]:
    yield from _whose()
    yield from _of_pod()
    yield from _of_container()
    yield from _needed()


def _whose() -> Iterator[Case]:
    label, annotation = "metadata__labels__{}".format, "metadata__annotations__{}".format
    yield Case("of no operator's", {label(names.LABEL_MANAGED_BY): None}, "with its own label")
    yield Case("of another operator's", {label(names.LABEL_MANAGED_BY): "helm"}, "with its own label")
    yield Case("of no RLHFJob's", {label(names.LABEL_JOB): None}, _WHOSE)
    yield Case("of no RLHFJob's uid", {annotation(names.ANNOTATION_JOB_UID): None}, _WHOSE)
    for field, value in {
        "kind": "Pod",
        "apiVersion": "v1",
        "controller": None,
    }.items():
        owners = [{key: v for key, v in {**_OWNER, field: value}.items() if v is not None}]
        yield Case(f"under an owner with another {field}", {"metadata__ownerReferences": owners}, _UNDER)
    yield Case("pods again and again", {"spec__backoffLimit": 9}, _ONCE)
    yield Case("more pods at once", {"spec__completions": 2, "spec__parallelism": 1}, _ONCE)
    yield Case("pods that are none", {"spec__parallelism": 0}, _ONCE)
    selector = {"matchLabels": {"app": "theirs"}}
    labels = {f"{POD.removesuffix('__spec')}__metadata__labels__app": "theirs"}
    theirs = {"spec__manualSelector": True, "spec__selector": selector, **labels}
    yield Case("pods of others", theirs, "choose no pods")


def _of_pod() -> Iterator[Case]:
    for field, value in {
        "initContainers": [{"name": "x", "image": "x"}],
        "hostNetwork": True,
        "hostPID": True,
        "hostIPC": True,
        "hostUsers": False,
        "shareProcessNamespace": True,
        "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["store"]}],
        "dnsConfig": {"nameservers": ["10.0.0.1"]},
        "nodeName": "gpu-1",
        "nodeSelector": {"gpu": "a100"},
        "resourceClaims": [{"name": "gpu", "resourceClaimName": "x"}],
        "subdomain": "x",
    }.items():
        ports = {f"{ONE}__ports": None} if field == "hostNetwork" else {}
        yield Case(f"with {field}", {f"{POD}__{field}": value, **ports}, _FIELDS)
    yield Case(
        "with two containers", {f"{POD}__containers__1": {"name": "x", "image": "x"}}, "have one container"
    )
    yield Case("with a token", {f"{POD}__automountServiceAccountToken": True}, _TOKEN)
    yield Case("with a token by default", {f"{POD}__automountServiceAccountToken": None}, _TOKEN)
    security = f"{POD}__securityContext"
    yield Case(
        "with sysctls", {f"{security}__sysctls": [{"name": "kernel.shm_rmid_forced", "value": "1"}]}, _SECCOMP
    )
    yield Case("without seccomp", {f"{security}__seccompProfile__type": "Unconfined"}, _SECCOMP)
    yield Case("with no word of seccomp", {f"{security}__seccompProfile": None}, _SECCOMP)
    for kind, volume in {
        "hostPath": {"path": "/"},
        "emptyDir": {},
        "configMap": {"name": "x"},
        "csi": {"driver": "x"},
    }.items():
        fields = {f"{POD}__volumes": [{"name": "location", kind: volume}], f"{ONE}__volumeMounts": None}
        yield Case(f"with a volume of kind {kind}", fields, "mount claims")
    api = f"https://{names.API_AUDIENCE}.cluster.local"
    for name, audience in (("by default", None), ("by its name", api)):
        yield Case(f"with the API server's token {name}", _token(audience), _PROJECTED)


def _of_container() -> Iterator[Case]:
    for field, value in {
        "args": ["x"],
        "workingDir": "/work",
        "livenessProbe": _EXEC,
        "readinessProbe": _EXEC,
        "startupProbe": _EXEC,
        "lifecycle": {"postStart": _EXEC},
        "stdin": True,
        "tty": True,
        "volumeDevices": [{"name": "location", "devicePath": "/dev/x"}],
    }.items():
        mounts = {f"{ONE}__volumeMounts": None} if field == "volumeDevices" else {}
        yield Case(f"with {field}", {f"{ONE}__{field}": value, **mounts}, _OF_CONTAINER)
    yield Case("another program", {f"{ONE}__command": ["sh"]}, _PROGRAM)
    yield Case("the image's own program", {f"{ONE}__command": None}, _PROGRAM)
    yield Case("another image", {f"{ONE}__image": "x"}, "run image")
    for name in ("PYTHONPATH", "PYTHONSTARTUP", "LD_PRELOAD", "PATH", "HOME"):
        yield Case(f"with {name}", {f"{ONE}__env": [{"name": name, "value": "/work"}]}, _VARIABLES)
    context = f"{ONE}__securityContext"
    yield Case(
        "privileged",
        {f"{context}__privileged": True, f"{context}__allowPrivilegeEscalation": None},
        _PRIVILEGES,
    )
    yield Case("with another /proc", {f"{context}__procMount": "Default"}, _PRIVILEGES)
    yield Case("escalation", {f"{context}__allowPrivilegeEscalation": True}, _PRIVILEGES)
    yield Case("escalation by default", {f"{context}__allowPrivilegeEscalation": None}, _PRIVILEGES)
    for name, given in (("added", {"drop": ["ALL"], "add": ["CHOWN"]}), ("kept", None)):
        yield Case(f"capabilities {name}", {f"{context}__capabilities": given}, "have no capabilities")
    for name, given in (("to write", False), ("to write by default", None)):
        fields = {f"{context}__readOnlyRootFilesystem": given}
        yield Case(f"a file system {name}", fields, "read-only root")
    ports = [{"name": "progress", "containerPort": names.PROGRESS_PORT, "hostPort": names.PROGRESS_PORT}]
    yield Case("a port of its node", {f"{ONE}__ports": ports}, "no port of their node")
    gpu = {names.GPU_RESOURCE: "1"}
    yield Case("a GPU", {f"{ONE}__resources": {"limits": gpu}}, "no devices in limits")
    yield Case(
        "devices of a class", {f"{ONE}__resources": {"requests": {_BY_CLASS: "1"}}}, "no devices in requests"
    )


def _needed() -> Iterator[Case]:
    """What the operator makes of one workload and not of another."""
    yield Case("with an owner", {"metadata__ownerReferences": [_OWNER]})
    secret = {"name": "location", "secret": {"secretName": "s3"}}
    yield Case("with a Secret of its trainer's", {f"{POD}__volumes__0": secret})
    yield Case("with a token of a cloud's", _token("sts.amazonaws.com"))
    yield Case("with other projected files", _projected({"secret": {"name": "s3"}}))
    lent = [{"name": "AWS_REGION", "value": "x"}, {"name": "PYTHONDONTWRITEBYTECODE", "value": "1"}]
    yield Case(
        "with its trainer's variables",
        {f"{ONE}__env": lent, f"{ONE}__envFrom": [{"secretRef": {"name": "s3"}}]},
    )
    yield Case("without variables, volumes, ports", {f"{ONE}__{f}": None for f in ("env", "ports")})
    without = {f"{POD}__volumes": None, f"{ONE}__volumeMounts": None, f"{ONE}__resources": None}
    yield Case("for a bucket", without)
    user = {"runAsUser": 1000, "runAsGroup": 1000, "runAsNonRoot": True, "seLinuxOptions": {"level": "s0"}}
    pod = {
        "fsGroup": 1,
        "fsGroupChangePolicy": "OnRootMismatch",
        "supplementalGroups": [1],
        "supplementalGroupsPolicy": "Merge",
    }
    fields = {f"{ONE}__securityContext__{key}": value for key, value in user.items()}
    fields |= {f"{POD}__securityContext__{key}": value for key, value in {**user, **pod}.items()}
    place = {
        "imagePullSecrets": [{"name": "x"}],
        "runtimeClassName": "gvisor",
        "priorityClassName": "evalstop-rlhf",
    }
    node = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gpu-1"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [node]}}
    fields |= {
        f"{POD}__{key}": value for key, value in {**place, "affinity": {"nodeAffinity": required}}.items()
    }
    yield Case("as its trainer's user, beside it", fields)


def any_shape() -> dict[str, Any]:
    """A workload is its author's template: what no access Job may have."""
    labels = f"{POD.removesuffix('__spec')}__metadata__labels__app"
    projected = {"projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
    return {
        "spec__manualSelector": True,
        "spec__selector": {"matchLabels": {"app": "ours"}},
        labels: "ours",
        f"{POD}__volumes__98": {"name": "token", **projected},
        f"{POD}__volumes__99": {"name": "node", "hostPath": {"path": "/"}},
        f"{POD}__containers__1": {"name": "x", "image": "x"},
        f"{ONE}__args": ["x"],
        f"{ONE}__env": [{"name": "PYTHONPATH", "value": "/work"}],
        f"{ONE}__ports": [{"containerPort": 9400, "hostPort": 9400}],
        f"{ONE}__resources__requests": {_BY_CLASS: "1", names.GPU_RESOURCE: "1"},
    }


def _token(audience: str | None) -> dict[str, Any]:
    named = {} if audience is None else {"audience": audience}
    return _projected({"serviceAccountToken": {"path": "token", **named}})


def _projected(source: dict[str, Any]) -> dict[str, Any]:
    return {f"{POD}__volumes__0": {"name": "location", "projected": {"sources": [source]}}}
