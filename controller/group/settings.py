"""A group pod's settings, read from ``EVALSTOP_GROUP_*`` environment variables, checked at the start."""

from __future__ import annotations

import os
from collections.abc import Mapping

from controller import names
from controller.environ import (
    SettingsError,
    described,
    https_urls,
    log_format_setting,
    log_level_setting,
    number,
    setting,
    text,
    values_of,
    whole_number,
)
from controller.frozen import dataclass
from controller.policy.sharing import MOST_RESIDENTS

__all__ = ["PREFIX", "Settings", "SettingsError", "describe"]

PREFIX = "EVALSTOP_GROUP_"
_MOST = 1 << 46


_urls = https_urls("the operator's step port")


def _family(value: str) -> str:
    """package.module:Class or /path/file.py:Class"""
    where, _, attribute = value.rpartition(":")
    if not where or not attribute.isidentifier():
        raise ValueError
    return value


@dataclass(frozen=True, slots=True)
class Settings:
    """Each field is read from ``EVALSTOP_GROUP_<FIELD IN CAPITALS>`` (docs/understand/groups-wire.md)."""

    family: str = setting("", _family, "the family's class")
    operator: str = setting("", _urls, "where tickets come from")
    operator_ca: str = setting("", text, "PEM file of the authority that the operator's certificate is of")
    token: str = setting(f"{names.STEPS_TOKEN_DIR}/token", text, "file of the projected token")
    listen: str = setting("0.0.0.0", text, "address that it listens on")
    port: int = setting(names.GROUP_PORT, whole_number(0, 65535, "port; 0: any free one"), "its port (HTTPS)")
    address: str = setting("", text, "address at which it is reached; empty: that of the pod, $POD_IP")
    pod: str = setting("", text, "the pod's UID; empty: $POD_UID")
    memory: str = setting("/run/evalstop/memory", text, "folder of host memory, on a memory volume")
    disk: str = setting("/run/evalstop/disk", text, "folder on the disk volume")
    device: str = setting("NVML", text, "NVML, or the folder of a local device")
    device_bytes: int = setting(0, whole_number(1, _MOST, "bytes"), "of the member's device memory")
    residual_bytes: int = setting(0, whole_number(0, _MOST, "bytes"), "that one sleeping worker keeps on it")
    host_bytes: int = setting(0, whole_number(1, _MOST, "bytes"), "of host memory that states may take")
    gpus: int = setting(1, whole_number(1, 1 << 16, "GPUs"), "of each member, for what residents are charged")
    max_residents: int = setting(3, whole_number(1, MOST_RESIDENTS, "jobs"), "residents")
    turns_in_a_row: int = setting(1, whole_number(1, 1000, "turns"), "while somebody else waits")
    turn_seconds: float = setting(600.0, number(0.1, 604_800.0, "s"), "that a turn may last")
    idle_seconds: float = setting(30.0, number(0.1, 604_800.0, "s"), "that its holder may be silent")
    body_bytes: int = setting(256 << 20, whole_number(1 << 10, 1 << 34, "bytes"), "of a call, and its answer")
    register_seconds: float = setting(10.0, number(0.1, 3600.0, "s"), "between registrations")
    python: str = setting("", text, "Python that workers run with; empty: this one")
    log_level: str = log_level_setting()
    log_format: str = log_format_setting()

    @staticmethod
    def from_environ(environ: Mapping[str, str] = os.environ) -> Settings:
        """Read all variables.

        Raises:
            SettingsError: listing every variable that is wrong, missing or unknown.
        """
        values, problems = values_of(Settings, PREFIX, environ)
        values["pod"] = values.get("pod") or environ.get("POD_UID", "")
        for name, parse in (("family", _family), ("operator", _urls), ("pod", text)):
            if not values.get(name) and not any(
                one.startswith(f"{PREFIX}{name.upper()}=") for one in problems
            ):
                problems.append(f"{PREFIX}{name.upper()}: not set, expected {parse.__doc__}")
        for name in ("device_bytes", "host_bytes"):
            if not values.get(name) and not any(
                one.startswith(f"{PREFIX}{name.upper()}=") for one in problems
            ):
                problems.append(f"{PREFIX}{name.upper()}: not set, expected a number of bytes")
        if problems:
            raise SettingsError("; ".join(problems))
        return Settings(**values)


def describe() -> list[tuple[str, str, str]]:
    """(variable, default, meaning) of each setting."""
    return described(Settings, PREFIX)
