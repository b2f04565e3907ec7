"""The process: settings, credentials, and the extender that it runs."""

from __future__ import annotations

from collections.abc import Mapping

from controller.extender.process import Extender
from controller.extender.scheduler_config import ConfigError, ignorable
from controller.extender.settings import Settings, describe
from controller.kube.connect import connect
from controller.kube.connection import NoCredentials
from controller.program import Program, stop_signal


def read(environ: Mapping[str, str]) -> Settings:
    """Return the settings. Raises SettingsError, ConfigError: the scheduler's file is not one, or none."""
    settings = Settings.from_environ(environ)
    if settings.scheduler_config:
        ignorable(settings.scheduler_config)  # better now than when the metric is first read
    return settings


async def run(settings: Settings, environ: Mapping[str, str]) -> int:
    """Run the extender until SIGTERM or SIGINT and return its exit code."""
    return await Extender(settings, await connect(environ)).run(stop_signal())


main = Program("controller.extender", read, describe, run, (ConfigError, NoCredentials, OSError)).main
