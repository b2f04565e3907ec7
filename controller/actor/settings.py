"""The sidecar's settings, read from ``EVALSTOP_ACTOR_*`` environment variables, checked at the start."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from controller.environ import (
    SettingsError,
    choice,
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

__all__ = ["PREFIX", "Settings", "SettingsError", "describe"]

PREFIX = "EVALSTOP_ACTOR_"
ENGINES = ("Plain", "vLLM")


_urls = https_urls("the step API")


def _folder(value: str) -> str:
    """a folder that is there"""  # noqa: D401, D403 -- part of an error
    if value and not Path(value).is_dir():
        raise ValueError
    return value


@dataclass(frozen=True, slots=True)
class Settings:
    """Each field is read from ``EVALSTOP_ACTOR_<FIELD IN CAPITALS>`` (table: docs/use/rollouts.md)."""

    engine: str = setting("Plain", choice(*ENGINES), "which engine it stands before")
    socket: str = setting("/run/engine/engine.sock", text, "Unix socket that the engine listens on")
    model: str = setting("", text, "name of the model, which vLLM wants with each request")
    host: str = setting("0.0.0.0", text, "address that the sidecar listens on")
    port: int = setting(8700, whole_number(0, 65535, "port; 0: any free one"), "its port (HTTPS)")
    address: str = setting("", text, "address at which clients reach it; empty: that of the pod, $POD_IP")
    steps: str = setting("", _urls, "where it registers")
    steps_ca: str = setting("", text, "PEM file of the authority that the step API's certificate is of")
    token: str = setting("/var/run/secrets/evalstop.dev/token", text, "file of the projected token")
    weights: str = setting("", _folder, "folder of weights on a shared volume; empty: they are pushed")
    scratch: str = setting("", _folder, "folder for pushed weights; empty: the system's for temporary files")
    weights_bytes: int = setting(1 << 30, whole_number(1, 1 << 42, "bytes"), "of pushed weights at most")
    register_seconds: float = setting(10.0, number(0.1, 3600.0, "s"), "between registrations")
    log_level: str = log_level_setting()
    log_format: str = log_format_setting()

    @staticmethod
    def from_environ(environ: Mapping[str, str] = os.environ) -> Settings:
        """Read all variables.

        Raises:
            SettingsError: listing every variable that is wrong, missing or unknown.
        """
        values, problems = values_of(Settings, PREFIX, environ)
        if not values.get("steps"):
            problems.append(f"{PREFIX}STEPS: not set, expected {_urls.__doc__}")
        if problems:
            raise SettingsError("; ".join(problems))
        return Settings(**values)


def describe() -> list[tuple[str, str, str]]:
    """(variable, default, meaning) of each setting."""
    return described(Settings, PREFIX)
