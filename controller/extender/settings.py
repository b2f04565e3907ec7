"""The extender's settings, read from ``EVALSTOP_EXTENDER_*`` environment variables, checked at the start."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields

from controller import names
from controller.environ import (
    SettingsError,
    described,
    listed,
    log_format_setting,
    log_level_setting,
    number,
    setting,
    text,
    values_of,
    whole_number,
)
from controller.frozen import dataclass
from controller.web.metrics_settings import MetricsSettings, problems_of
from controller.web.tls import Tls

__all__ = ["PREFIX", "Settings", "SettingsError", "describe"]

PREFIX = "EVALSTOP_EXTENDER_"
_PORT = whole_number(0, 65535, "port; 0: any free one")
_SECONDS = number(0.1, 86400, "s")


def _file(text: str) -> str:
    """a file that can be read"""  # noqa: D401, D403 -- part of an error
    with open(text, "rb"):
        return text


def _names(text: str) -> str:
    """one name or more, by commas"""  # noqa: D403 -- part of an error
    if not listed(text):
        raise ValueError
    return text


@dataclass(frozen=True, slots=True)
class Settings(MetricsSettings):
    """Each field is read from ``EVALSTOP_EXTENDER_<FIELD IN CAPITALS>`` (table: docs/operate/extender.md)."""

    host: str = setting("0.0.0.0", text, "address on which the verbs are served")
    port: int = setting(8443, _PORT, "their port (HTTPS, client certificates required)")
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
    status_port: int = setting(8081, _PORT, "their port (plain HTTP)")
    scheduler_name: str = setting(names.SCHEDULER_NAME, text, "schedulerName of the pods that are served")
    scheduler_config: str = setting(
        "", _file, "kube-scheduler's KubeSchedulerConfiguration, read for the metric on ignorable"
    )
    namespace: str = setting(
        names.NAMESPACE, text, f"namespace of CSIStorageCapacity {names.WAKE_OBJECT}, its own"
    )
    rack_label: str = setting(names.RACK_LABEL, text, "node label that names a node's rack")
    relist_seconds: float = setting(1800.0, _SECONDS, "between full LISTs that mend what the watch missed")
    look_seconds: float = setting(
        15.0, _SECONDS, "between looks for parked pods that this process has not refused itself"
    )
    api_timeout: float = setting(30.0, _SECONDS, "for one API call")
    log_level: str = log_level_setting()
    log_format: str = log_format_setting()

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
        problems += problems_of(values, PREFIX)
        if problems:
            raise SettingsError("; ".join(problems))
        return Settings(**values)

    def tls(self) -> Tls:
        """Of the verbs."""
        return Tls(self.certificate, self.key, self.client_ca, frozenset(listed(self.client_names)))


def describe() -> list[tuple[str, str, str]]:
    """(variable, default, meaning) of each setting, for the docs and for ``--help``."""
    return described(Settings, PREFIX)
