"""The extender's settings, read from ``EVALSTOP_EXTENDER_*`` environment variables, checked at the start."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from controller import names

PREFIX = "EVALSTOP_EXTENDER_"


class SettingsError(Exception):
    """One or more variables are wrong; the message names each, its value and what would be right."""


def _text(text: str) -> str:
    """any text"""
    return text


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


def _level(text: str) -> str:
    """one of DEBUG, INFO, WARNING, ERROR"""
    if text not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise ValueError
    return text


def _form(text: str) -> str:
    """json or console"""
    if text not in ("json", "console"):
        raise ValueError
    return text


def _setting(default: Any, parse: Any, doc: str) -> Any:
    return field(default=default, metadata={"parse": parse, "doc": doc})


@dataclass(frozen=True, slots=True)
class Settings:
    """Each field is read from ``EVALSTOP_EXTENDER_<FIELD IN CAPITALS>``; docs/extender.md has the table."""

    host: str = _setting("0.0.0.0", _text, "address on which the verbs are served")
    port: int = _setting(8443, _port, "their port (HTTPS, client certificates required)")
    certificate: str = _setting("", _file, "PEM file of the serving certificate")
    key: str = _setting("", _file, "PEM file of its private key")
    client_ca: str = _setting("", _file, "PEM file of the authority that signs clients' certificates")
    status_host: str = _setting(
        "0.0.0.0", _text, "address on which /healthz, /readyz and /metrics are served"
    )
    status_port: int = _setting(8081, _port, "their port (plain HTTP)")
    scheduler_name: str = _setting(names.SCHEDULER_NAME, _text, "schedulerName of the pods that are served")
    scheduler_config: str = _setting(
        "", _file, "kube-scheduler's KubeSchedulerConfiguration, read for the metric on ignorable"
    )
    rack_label: str = _setting(names.RACK_LABEL, _text, "node label that names a node's rack")
    relist_seconds: float = _setting(1800.0, _seconds, "between full LISTs that mend what the watch missed")
    look_seconds: float = _setting(
        15.0, _seconds, "between looks for parked pods that this process has not refused itself"
    )
    api_timeout: float = _setting(30.0, _seconds, "for one API call")
    log_level: str = _setting("INFO", _level, "level of the log")
    log_format: str = _setting("json", _form, "form of the log lines on stderr")

    @staticmethod
    def from_environ(environ: Mapping[str, str] = os.environ) -> Settings:
        """Read all variables.

        Raises:
            SettingsError: listing every variable that is wrong, missing or unknown.
        """
        known = {PREFIX + f.name.upper(): f for f in fields(Settings)}
        values: dict[str, Any] = {}
        problems: list[str] = []
        for variable, text in sorted(environ.items()):
            if not variable.startswith(PREFIX):
                continue
            if variable not in known:
                problems.append(f"{variable}: no such setting; there are {', '.join(sorted(known))}")
                continue
            parse = known[variable].metadata["parse"]
            try:
                values[known[variable].name] = parse(text)
            except (ValueError, OSError):
                problems.append(f"{variable}={text!r}: expected {parse.__doc__}")
        for variable in (PREFIX + name for name in ("CERTIFICATE", "KEY", "CLIENT_CA")):
            if variable not in environ:
                problems.append(f"{variable}: not set, expected a {known[variable].metadata['doc']}")
        if problems:
            raise SettingsError("; ".join(problems))
        return Settings(**values)


def describe() -> list[tuple[str, str, str]]:
    """(variable, default, meaning) of each setting, for the docs and for ``--help``."""
    return [
        (PREFIX + f.name.upper(), str(f.default), f"{f.metadata['doc']}; {f.metadata['parse'].__doc__}")
        for f in fields(Settings)
    ]
