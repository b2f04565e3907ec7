"""The extender's settings, read from ``EVALSTOP_EXTENDER_*`` environment variables, checked at the start."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields

from controller import names
from controller.environ import SettingsError, choice, described, setting, text, values_of
from controller.web.status import OPEN, REVIEW, MetricsSettings
from controller.web.tls import Tls

__all__ = ["PREFIX", "Settings", "SettingsError", "describe"]

PREFIX = "EVALSTOP_EXTENDER_"


def _port(text: str) -> int:
    """a port from 0 (any free one) to 65535"""
    value = int(text)
    if not 0 <= value <= 65535:
        raise ValueError
    return value


def _seconds(text: str) -> float:
    """seconds, from 0.1 to 86400"""
    value = float(text)
    if not 0.1 <= value <= 86400:
        raise ValueError
    return value


def _file(text: str) -> str:
    """a file that can be read"""
    with open(text, "rb"):
        return text


def _names(text: str) -> str:
    """one name or more, by commas"""
    if not any(name.strip() for name in text.split(",")):
        raise ValueError
    return text


def _form(text: str) -> str:
    """json or console"""
    if text not in ("json", "console"):
        raise ValueError
    return text


@dataclass(frozen=True, slots=True)
class Settings:
    """Each field is read from ``EVALSTOP_EXTENDER_<FIELD IN CAPITALS>``; docs/extender.md has the table."""

    host: str = setting("0.0.0.0", text, "address on which the verbs are served")
    port: int = setting(8443, _port, "their port (HTTPS, client certificates required)")
    certificate: str = setting("", _file, "PEM file of the serving certificate")
    key: str = setting("", _file, "PEM file of its private key")
    client_ca: str = setting("", _file, "PEM file of the authority that signs clients' certificates")
    client_names: str = setting(
        names.SCHEDULER_NAME,
        _names,
        "who of its clients may ask: common names or DNS names of their certificates, by commas",
    )
    status_host: str = setting(
        "0.0.0.0", text, "address on which /healthz and /readyz are served, for probes"
    )
    status_port: int = setting(8081, _port, "their port (plain HTTP)")
    metrics_host: str = setting("", text, "address on which /metrics is served; empty: that of the probes")
    metrics_port: int = setting(8444, _port, "its port")
    metrics_access: str = setting(
        REVIEW,
        choice(REVIEW, OPEN),
        "over TLS, for those who may get the path /metrics (review), or over plain HTTP for everybody (open)",
    )
    metrics_certificate: str = setting(
        "",
        text,
        "PEM file of its certificate; empty or not there: one is made that nobody can verify",
    )
    metrics_key: str = setting("", text, "PEM file of that certificate's private key")
    scheduler_name: str = setting(names.SCHEDULER_NAME, text, "schedulerName of the pods that are served")
    scheduler_config: str = setting(
        "", _file, "kube-scheduler's KubeSchedulerConfiguration, read for the metric on ignorable"
    )
    namespace: str = setting(
        names.NAMESPACE, text, f"namespace of CSIStorageCapacity {names.WAKE_OBJECT}, its own"
    )
    rack_label: str = setting(names.RACK_LABEL, text, "node label that names a node's rack")
    relist_seconds: float = setting(1800.0, _seconds, "between full LISTs that mend what the watch missed")
    look_seconds: float = setting(
        15.0, _seconds, "between looks for parked pods that this process has not refused itself"
    )
    api_timeout: float = setting(30.0, _seconds, "for one API call")
    log_level: str = setting("INFO", choice("DEBUG", "INFO", "WARNING", "ERROR"), "level of the log")
    log_format: str = setting("json", _form, "form of the log lines on stderr")

    @staticmethod
    def from_environ(environ: Mapping[str, str] = os.environ) -> Settings:
        """Read all variables.

        Raises:
            SettingsError: listing every variable that is wrong, missing or unknown.
        """
        values, problems = values_of(Settings, PREFIX, environ)
        docs = {PREFIX + f.name.upper(): f.metadata["doc"] for f in fields(Settings)}
        for variable in (PREFIX + name for name in ("CERTIFICATE", "KEY", "CLIENT_CA")):
            if variable not in environ:
                problems.append(f"{variable}: not set, expected a {docs[variable]}")
        if bool(values.get("metrics_certificate")) != bool(values.get("metrics_key")):
            problems.append(f"{PREFIX}METRICS_CERTIFICATE and {PREFIX}METRICS_KEY: expected both or none")
        if problems:
            raise SettingsError("; ".join(problems))
        return Settings(**values)

    def tls(self) -> Tls:
        """Of the verbs."""
        asked = (name.strip() for name in self.client_names.split(","))
        return Tls(self.certificate, self.key, self.client_ca, frozenset(name for name in asked if name))

    def metrics(self) -> MetricsSettings:
        """Where and how metrics are served."""
        host = self.metrics_host or self.status_host
        certificate, key = self.metrics_certificate, self.metrics_key
        return MetricsSettings(host, self.metrics_port, self.metrics_access, certificate, key)


def describe() -> list[tuple[str, str, str]]:
    """(variable, default, meaning) of each setting, for the docs and for ``--help``."""
    return described(Settings, PREFIX)
