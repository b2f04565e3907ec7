"""Settings of the dashboard in a cluster, from ``EVALSTOP_DASHBOARD_*`` environment variables."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from pathlib import Path

from controller import names
from controller.environ import (
    SettingsError,
    choice,
    described,
    listed,
    log_format_setting,
    log_level_setting,
    setting,
    text,
    values_of,
)
from controller.frozen import dataclass
from controller.web.dashboard.access import AUDIENCE

PREFIX = "EVALSTOP_DASHBOARD_"


def _port(value: str) -> int:
    """a port, 0 to 65535; 0: any free one"""  # noqa: D401, D403 -- part of an error
    number = int(value)
    if not 0 <= number <= 65535:
        raise ValueError
    return number


def _file(what: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        if value and not Path(value).is_file():
            raise ValueError
        return value

    parse.__doc__ = f"{what}, as a file that is there"
    return parse


def _url(value: str) -> str:
    """an http or https address"""  # noqa: D401, D403 -- part of an error
    if value and not value.startswith(("http://", "https://")):
        raise ValueError
    return value


@dataclass(frozen=True, slots=True)
class Settings:
    """Each field is read from ``EVALSTOP_DASHBOARD_<FIELD IN CAPITALS>``; see docs/use/dashboard.md."""

    host: str = setting(
        "127.0.0.1", text, "address on which it listens; another than loopback needs a certificate"
    )
    port: int = setting(8082, _port, "its port")
    status_host: str = setting(
        "", text, "address on which /healthz and /readyz are served over plain HTTP; empty: not at all"
    )
    status_port: int = setting(8083, _port, "their port")
    tls_cert: str = setting("", _file("a certificate in PEM"), "certificate that it shows; empty: plain HTTP")
    tls_key: str = setting("", _file("a private key in PEM"), "its key")
    plain_http: str = setting(
        "refuse", choice("refuse", "allow"), "listen elsewhere without a certificate: where a proxy has TLS"
    )
    allowed_hosts: str = setting(
        "", text, "names, by commas, that the Host header may say besides localhost and addresses"
    )
    audience: str = setting(
        AUDIENCE, text, "what viewers' tokens must be made for; empty: the API server, as its own tokens are"
    )
    queue_url: str = setting("", _url, "the operator's queue API; empty: positions come from the statuses")
    operator_namespace: str = setting(
        names.NAMESPACE, text, "namespace of the operator's Lease, which tells whether it lives"
    )
    log_level: str = log_level_setting()
    log_format: str = log_format_setting()

    @property
    def hosts(self) -> tuple[str, ...]:
        return listed(self.allowed_hosts.lower())

    @staticmethod
    def from_environ(environ: Mapping[str, str] = os.environ) -> Settings:
        """Read all variables.

        Raises:
            SettingsError: listing every variable that is wrong, and what does not go together.
        """
        values, problems = values_of(Settings, PREFIX, environ)
        found = Settings(**values)
        if bool(found.tls_cert) != bool(found.tls_key):
            problems.append(f"{PREFIX}TLS_CERT and {PREFIX}TLS_KEY: expected both or none")
        if not found.tls_cert and found.plain_http == "refuse" and not _loopback(found.host):
            problems.append(
                f"{PREFIX}HOST={found.host!r} without {PREFIX}TLS_CERT: tokens would cross the network in "
                f"the clear; give a certificate, or {PREFIX}PLAIN_HTTP=allow where a proxy in front has TLS"
            )
        if problems:
            raise SettingsError("; ".join(problems))
        return found


def _loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def describe() -> list[tuple[str, str, str]]:
    """(variable, default, meaning) of each setting, for the docs and for ``--help``."""
    return described(Settings, PREFIX)
