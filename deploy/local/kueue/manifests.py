"""Kueue's own manifests, fitted to a manager that is a process on loopback and not a Deployment.

Taken as the project ships them (`config/default`, what its release manifest is made of), with two changes:
what only a Deployment and its Services need is left out, and webhooks are called by address, not by Service.
"""

import base64
from collections.abc import Iterable, Sequence
from typing import Any

import yaml

Object = dict[str, Any]

NAMESPACE = "kueue-system"
USER = f"system:serviceaccount:{NAMESPACE}:kueue-controller-manager"  # whom its role bindings name
GROUPS = ("system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}")
WEBHOOKS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")

# The manager's certificate and settings are files here, and pending workloads are not served (APIService).
_NOT_NEEDED = {"Deployment", "Service", "APIService", "Secret", "ConfigMap"}
# The only kind of job that is managed here; other kinds' webhooks would find no such API.
_JOBS = ("batch", "jobs")
_OWN_GROUP = "kueue.x-k8s.io"


def parse(text: str) -> list[Object]:
    """Return the objects of a YAML text; with libyaml where PyYAML has it, since the CRDs are 1.6 MB."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [found for found in yaml.load_all(text, Loader=loader) if found]


def fitted(objects: Iterable[Object], url: str, ca: bytes) -> tuple[list[Object], list[Object]]:
    """Return what to create before the manager starts, and its webhook configurations, for afterwards.

    Args:
        objects: of Kueue's kustomization.
        url: where the manager serves webhooks, such as `https://127.251.3.4:9443`.
        ca: the certificate (PEM) by which the API server is to trust it.
    """
    before, webhooks = [], []
    for given in objects:
        if given["kind"] in WEBHOOKS:
            kept = [hook for hook in given["webhooks"] if _is_ours(hook["rules"])]
            called = [{**hook, "clientConfig": _client(hook["clientConfig"], url, ca)} for hook in kept]
            webhooks.append({**given, "webhooks": called})
        elif given["kind"] not in _NOT_NEEDED:
            conversion = (given.get("spec") or {}).get("conversion") or {}
            if given["kind"] == "CustomResourceDefinition" and "webhook" in conversion:
                client = _client(conversion["webhook"]["clientConfig"], url, ca)
                webhook = {**conversion["webhook"], "clientConfig": client}
                spec = {**given["spec"], "conversion": {**conversion, "webhook": webhook}}
                given = {**given, "spec": spec}
            before.append(given)
    return before, webhooks


def _is_ours(rules: Sequence[Object]) -> bool:
    return all(
        group == _OWN_GROUP or (group, resource) == _JOBS
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    )


def _client(given: Object, url: str, ca: bytes) -> Object:
    return {"url": url + given["service"]["path"], "caBundle": base64.b64encode(ca).decode()}
