"""Addresses that may be scraped: by default only unicast addresses of networks a pod can live in.

``status.podIP`` is written by whoever may write pod status. Without this check such a writer could turn the
operator into a client of its own loopback, of a cloud's metadata service or of a translated address.
"""

from __future__ import annotations

import ipaddress
from enum import StrEnum

from controller.environ import listed
from controller.frozen import dataclass

SETTING = "EVALSTOP_SCRAPE_ADDRESSES"

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class AddressClass(StrEnum):
    """Class of an address. The first four can be allowed; an address of the others is never scraped."""

    PUBLIC = "Public"
    PRIVATE = "Private"  # RFC 1918, and unique local IPv6 (RFC 4193)
    SHARED = "Shared"  # 100.64.0.0/10, RFC 6598: pod networks of some clouds
    LOOPBACK = "Loopback"  # the local plane's pods (deploy/local)
    LINK_LOCAL = "LinkLocal"
    MULTICAST = "Multicast"
    METADATA = "Metadata"  # instance metadata and credentials services of clouds
    TRANSLATED = "Translated"  # an IPv4 address inside an IPv6 one: mapped, compatible, 6to4, Teredo, NAT64
    RESERVED = "Reserved"  # unspecified, broadcast, documentation, benchmarks, future use


_ALLOWABLE = (AddressClass.PUBLIC, AddressClass.PRIVATE, AddressClass.SHARED, AddressClass.LOOPBACK)


def _networks(*texts: str) -> tuple[_Network, ...]:
    return tuple(ipaddress.ip_network(text) for text in texts)


# Link-local ones are listed for the message; the others would pass as private, shared or public.
_METADATA = _networks(
    "169.254.169.254/32",  # most clouds
    "169.254.170.2/32",  # AWS, credentials of tasks
    "169.254.170.23/32",  # AWS, credentials of pods
    "fd00:ec2::/32",  # AWS over IPv6
    "fd20:ce::254/128",  # Google over IPv6
    "100.100.100.200/32",  # Alibaba
    "168.63.129.16/32",  # Azure's wire server
    "192.0.0.192/32",  # Oracle, older
)
_TRANSLATED = _networks(
    "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32"
)
_PRIVATE = _networks("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")
_SHARED = _networks("100.64.0.0/10")
_COMPATIBLE = ipaddress.ip_network("::/96")


def _within(address: _Address, networks: tuple[_Network, ...]) -> bool:
    return any(address.version == network.version and address in network for network in networks)


def classify(address: _Address) -> AddressClass:
    """Return the class of an address; total, and the dangerous readings are tried first."""
    if _within(address, _METADATA):
        return AddressClass.METADATA
    if address.is_multicast:
        return AddressClass.MULTICAST
    if address.is_unspecified:
        return AddressClass.RESERVED
    if address.is_loopback:
        # Python calls ::ffff:127.0.0.1 loopback from 3.13 on; it is a translated one in every version here.
        return AddressClass.TRANSLATED if _within(address, _TRANSLATED) else AddressClass.LOOPBACK
    if _within(address, _TRANSLATED) or _within(address, (_COMPATIBLE,)):
        return AddressClass.TRANSLATED
    if address.is_link_local:
        return AddressClass.LINK_LOCAL
    if _within(address, _PRIVATE):
        return AddressClass.PRIVATE
    if _within(address, _SHARED):
        return AddressClass.SHARED
    return AddressClass.PUBLIC if address.is_global else AddressClass.RESERVED


@dataclass(frozen=True, slots=True)
class AddressPolicy:
    """The classes that may be scraped, and networks allowed beside them (of the allowable classes only)."""

    classes: frozenset[AddressClass] = frozenset({AddressClass.PRIVATE})
    networks: tuple[_Network, ...] = ()

    @staticmethod
    def parse(text: str) -> AddressPolicy:
        """Read the setting: class names and networks by commas, as in ``Private,100.64.0.0/16``.

        Raises:
            ValueError: an item is neither, or the list is empty; the message names the setting and the item.
        """
        classes: set[AddressClass] = set()
        networks: list[_Network] = []
        for item in listed(text):
            known = next((c for c in _ALLOWABLE if c.lower() == item.lower()), None)
            if known is not None:
                classes.add(known)
                continue
            try:
                networks.append(ipaddress.ip_network(item))
            except ValueError:
                raise ValueError(
                    f"{SETTING}: {item!r} is neither {', '.join(_ALLOWABLE)} nor a network like 10.4.0.0/14"
                ) from None
        if not classes and not networks:
            raise ValueError(
                f"{SETTING} is {text!r}: expected at least one of {', '.join(_ALLOWABLE)} or a network"
            )
        return AddressPolicy(frozenset(classes), tuple(networks))

    def problem(self, text: str) -> str | None:
        """Return why this pod IP may not be scraped, with what would change that; None: it may."""
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            return f"pod IP {text[:60]!r} is not an IP address"
        if getattr(address, "scope_id", None):
            return f"pod IP {text[:60]} has a zone: only plain addresses are scraped"
        kind = classify(address)
        if kind not in _ALLOWABLE:
            return f"pod IP {address} is {kind}: such addresses are never scraped"
        if kind in self.classes or _within(address, self.networks):
            return None
        allowed = ", ".join([*(c for c in _ALLOWABLE if c in self.classes), *map(str, self.networks)])
        return (
            f"pod IP {address} is {kind}, allowed: {allowed}; the operator's setting {SETTING} decides that"
        )
