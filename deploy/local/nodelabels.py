"""Labels that nodes register with: read from `key=value`, and held against what a node may say of itself."""

import re
from collections.abc import Iterable, Mapping

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_DOMAIN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_KUBERNETES = ("kubernetes.io", "k8s.io")
# Of Kubernetes' own labels, those that NodeRestriction leaves to kubelets.
_KUBELET_DOMAINS = ("kubelet.kubernetes.io", "node.kubernetes.io")
_KUBELET_KEYS = ("topology.kubernetes.io/zone", "topology.kubernetes.io/region")


def parse(given: Iterable[str]) -> dict[str, str]:
    """Labels by key from texts `key=value`. Raises ValueError naming the one at fault."""
    found: dict[str, str] = {}
    for text in given:
        key, sign, value = text.partition("=")
        if not sign:
            raise ValueError(f"label {text!r}: expected key=value")
        if found.setdefault(key, value) != value:
            raise ValueError(f"label {text!r}: {key} is {found[key]!r} already")
    check(found)
    return found


def check(labels: Mapping[str, str]) -> None:
    """Check labels that a node is to set on itself.

    Raises:
        ValueError: a label is malformed, or the API server does not let a node set it on itself.
    """
    for key, value in labels.items():
        domain, slash, name = key.rpartition("/")
        well = _NAME.fullmatch(name) and (not slash or (len(domain) <= 253 and _DOMAIN.fullmatch(domain)))
        if not well:
            raise ValueError(f"label {key!r}: expected a key such as evalstop.dev/gpu-pool")
        if value and not _NAME.fullmatch(value):
            raise ValueError(
                f"label {key}={value!r}: a value is at most 63 letters, digits, '-', '_' and '.', "
                "a letter or digit first and last"
            )
        if _within(domain, _KUBERNETES) and not (_within(domain, _KUBELET_DOMAINS) or key in _KUBELET_KEYS):
            raise ValueError(
                f"label {key}: a node may not set it on itself (NodeRestriction); set it afterwards: "
                f"kubectl label node --all {key}={value}"
            )


def _within(domain: str, parents: Iterable[str]) -> bool:
    return any(domain == parent or domain.endswith(f".{parent}") for parent in parents)
