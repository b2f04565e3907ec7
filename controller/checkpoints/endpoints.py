"""Addresses that a trainer's environment may name as its object store: those that a store can be at.

An access Job reaches its store with the trainer's own variables. What it meets there it tells in the status
of the RLHFJob, which more people read than may run pods; so an instance's metadata service is no store, nor
is a service of the node itself. Names are not resolved: what a pod can reach is for a NetworkPolicy to say.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from controller.checkpoints.errors import AccessError, Reason
from controller.environ import listed

ALLOWED_ENV = "EVALSTOP_STORE_ENDPOINTS"
HTTPS = "Https"  # at any address but those below
CLUSTER_HTTP = "ClusterHttp"  # without TLS: of Services and of private addresses
HTTP = "Http"  # without TLS, anywhere
LOOPBACK = "Loopback"  # the node's or pod's own, as in tests
KINDS = (HTTPS, CLUSTER_HTTP, HTTP, LOOPBACK)
DEFAULT = f"{HTTPS},{CLUSTER_HTTP}"

# Variables that say where a store is; not those that say where credentials are to be had.
_VARIABLE = re.compile(
    r"(AWS|AZURE|GOOGLE)_(?!.*(METADATA|MSI|IDENTITY|CONTAINER|STS))\w*(ENDPOINT|_URL)\w*\Z"
)
_METADATA = tuple(
    ipaddress.ip_network(text)
    for text in (
        "fd00:ec2::/32",
        "fd20:ce::254/128",
        "100.100.100.200/32",
        "168.63.129.16/32",
        "192.0.0.192/32",
    )
)
_METADATA_NAMES = ("metadata", "metadata.google.internal", "instance-data", "instance-data.ec2.internal")


def parse(text: str) -> frozenset[str]:
    """Kinds of endpoints, separated by commas. Raises: ValueError naming the one that is none."""
    kinds = listed(text)
    for kind in kinds:
        if kind not in KINDS:
            raise ValueError(f"{kind!r}: expected some of {', '.join(KINDS)}")
    return frozenset(kinds)


def check(environment: Mapping[str, str]) -> None:
    """Check the addresses of object stores in the variables of the trainer's container.

    Raises:
        AccessError: BAD_REQUEST, a variable names an address that the operator's settings do not allow.
    """
    allowed = parse(environment.get(ALLOWED_ENV, DEFAULT))
    for name in sorted(environment):
        if _VARIABLE.match(name) and environment[name]:
            why = problem(environment[name], allowed)
            if why is not None:
                raise AccessError(
                    Reason.BAD_REQUEST,
                    f"{name} of the trainer's container: {why}; the operator's setting "
                    f"{ALLOWED_ENV} ({', '.join(sorted(allowed))}) decides that",
                )


def problem(url: str, allowed: frozenset[str]) -> str | None:
    """Return why a store may not be at a URL; None: it may."""
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").rstrip(".").lower()
    except ValueError:
        return "not a URL, expected https:// and a host"
    if parts.scheme not in ("https", "http") or not host:
        return f"scheme {parts.scheme[:16]!r}, expected https:// and a host"
    address = _address(host)
    if _never(host, address):
        return "a metadata service or an address of that kind, which no object store has"
    if host == "localhost" or host.endswith(".localhost") or (address is not None and address.is_loopback):
        return None if LOOPBACK in allowed else "the machine itself, expected the address of a store"
    if parts.scheme == "https":
        return None if HTTPS in allowed else "https is not allowed"
    if HTTP in allowed or (CLUSTER_HTTP in allowed and _in_cluster(host, address)):
        return None
    return "http without TLS, which is for stores in the cluster; expected https://"


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped if mapped is not None else address


def _never(host: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None) -> bool:
    if address is None:
        # 0xa9fea9fe, 2852039166 and 169.254.1 are addresses to the C library.
        return (
            host in _METADATA_NAMES
            or re.fullmatch(r"[0-9]+|0x[0-9a-f]+|[0-9a-fx.]*\.[0-9]+", host) is not None
        )
    return (
        address.is_link_local
        or address.is_multicast
        or address.is_unspecified
        or any(address in network for network in _METADATA if network.version == address.version)
    )


def _in_cluster(host: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None) -> bool:
    if address is not None:
        return address.is_private
    return "." not in host or re.search(r"\.svc(\.|\Z)", host) is not None
