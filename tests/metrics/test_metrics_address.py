"""Which pod IPs may be scraped."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.metrics.address import AddressClass, AddressPolicy, classify

CLASSES = [
    ("10.1.2.3", "Private"),
    ("172.31.0.1", "Private"),
    ("172.32.0.1", "Public"),
    ("192.168.1.1", "Private"),
    ("8.8.8.8", "Public"),
    ("fd12::1", "Private"),
    ("2600::1", "Public"),
    ("100.64.0.9", "Shared"),
    ("127.0.0.1", "Loopback"),
    ("127.1.2.3", "Loopback"),
    ("::1", "Loopback"),
    ("169.254.0.1", "LinkLocal"),
    ("fe80::1", "LinkLocal"),
    ("169.254.169.254", "Metadata"),
    ("169.254.170.2", "Metadata"),
    ("fd00:ec2::254", "Metadata"),
    ("100.100.100.200", "Metadata"),
    ("168.63.129.16", "Metadata"),
    ("224.0.0.1", "Multicast"),
    ("ff02::1", "Multicast"),
    ("::ffff:10.0.0.1", "Translated"),
    ("::ffff:127.0.0.1", "Translated"),
    ("::ffff:169.254.169.254", "Translated"),
    ("::10.0.0.1", "Translated"),
    ("64:ff9b::a00:1", "Translated"),
    ("2002:7f00:1::", "Translated"),
    ("2001:0:7f00:1::", "Translated"),
    ("0.0.0.0", "Reserved"),
    ("0.1.2.3", "Reserved"),
    ("::", "Reserved"),
    ("255.255.255.255", "Reserved"),
    ("240.0.0.1", "Reserved"),
    ("192.0.2.1", "Reserved"),
    ("2001:db8::1", "Reserved"),
]


@pytest.mark.parametrize(("address", "kind"), CLASSES)
def test_every_address_has_its_class(address: str, kind: str) -> None:
    assert classify(ipaddress.ip_address(address)) == kind


@pytest.mark.parametrize(("address", "kind"), CLASSES)
def test_by_default_only_private_addresses_are_scraped(address: str, kind: str) -> None:
    problem = AddressPolicy().problem(address)
    assert (problem is None) == (kind == "Private")
    assert problem is None or kind in problem


def test_loopback_is_opened_by_the_setting_that_the_refusal_names() -> None:
    problem = AddressPolicy().problem("127.9.9.9")
    assert problem == (
        "pod IP 127.9.9.9 is Loopback, allowed: Private; "
        "the operator's setting EVALSTOP_SCRAPE_ADDRESSES decides that"
    )
    assert AddressPolicy.parse("private, loopback").problem("127.9.9.9") is None
    assert AddressPolicy.parse("Loopback").problem("10.0.0.1") is not None


def test_a_network_opens_itself_only() -> None:
    policy = AddressPolicy.parse("100.64.0.0/16")
    assert policy.problem("100.64.3.4") is None
    assert policy.problem("100.65.3.4") is not None
    assert policy.problem("10.0.0.1") is not None


@given(st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)))
def test_no_setting_opens_what_is_never_scraped(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    everything = AddressPolicy.parse("Public,Private,Shared,Loopback,0.0.0.0/0,::/0")
    refusable = {"LinkLocal", "Multicast", "Metadata", "Translated", "Reserved"}
    assert (everything.problem(str(address)) is not None) == (classify(address) in refusable)


@pytest.mark.parametrize("address", [a for a, k in CLASSES if k in ("Metadata", "LinkLocal", "Translated")])
def test_the_widest_setting_still_refuses(address: str) -> None:
    assert "never scraped" in (
        AddressPolicy.parse("Public,Private,Shared,Loopback,0.0.0.0/0,::/0").problem(address) or ""
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "localhost",
        "010.0.0.1",
        "0x7f.1",
        "2130706433",
        "10.0.0.1:80",
        "fe80::1%eth0",
        "fd12::1%1",
        "٣.1.1.1",
    ],
)
def test_only_plain_literals_are_addresses(text: str) -> None:
    assert AddressPolicy.parse("Public,Private,Shared,Loopback").problem(text) is not None


@pytest.mark.parametrize("text", ["", " , ", "Everything", "Metadata", "LinkLocal", "10.0.0.1/8"])
def test_a_wrong_setting_is_refused_with_its_name_and_what_would_be_right(text: str) -> None:
    with pytest.raises(ValueError, match=r"EVALSTOP_SCRAPE_ADDRESSES.*Public, Private, Shared, Loopback"):
        AddressPolicy.parse(text)


def test_classes_cover_every_reading() -> None:
    assert {kind for _, kind in CLASSES} == set(AddressClass)
