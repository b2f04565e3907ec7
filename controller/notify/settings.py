"""Settings of the notifier, from ``EVALSTOP_NOTIFY_*`` environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import urlsplit

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
from controller.notify.happenings import KINDS

PREFIX = "EVALSTOP_NOTIFY_"
MOST = 8  # receivers


def _link(value: str) -> str:
    """an http or https address, or nothing"""  # noqa: D401, D403 -- part of an error
    if value and urlsplit(value).scheme not in ("http", "https"):
        raise ValueError
    return value


@dataclass(frozen=True, slots=True)
class Settings:
    """Each field is read from ``EVALSTOP_NOTIFY_<FIELD IN CAPITALS>``; see docs/operate/notifications.md."""

    url_file: str = setting(
        "/receivers/urls", text, "file with the addresses that are told, one on a line, http or https"
    )
    token_file: str = setting("", text, "file with a bearer token to show them; empty: none")
    kinds: str = setting(",".join(KINDS), text, "what they are told of, by commas")
    link: str = setting("", _link, "address of the dashboard, for links in events; empty: none")
    source: str = setting("/evalstop", text, "the events' source: which EvalStop tells, as a URI")
    again_seconds: float = setting(
        86400.0,
        number(0.0, 2592000.0, "seconds"),
        "what happened so long before a start is told after it, whether it was told before or not",
    )
    host: str = setting("127.0.0.1", text, "address on which /healthz and /readyz are served")
    port: int = setting(8084, whole_number(0, 65535, "port"), "their port")
    log_level: str = log_level_setting()
    log_format: str = log_format_setting()

    @property
    def wanted(self) -> tuple[str, ...]:
        return listed(self.kinds)

    @staticmethod
    def from_environ(environ: Mapping[str, str] = os.environ) -> Settings:
        """Read all variables.

        Raises:
            SettingsError: listing every variable that is wrong.
        """
        values, problems = values_of(Settings, PREFIX, environ)
        found = Settings(**values)
        if unknown := [one for one in found.wanted if one not in KINDS]:
            problems.append(f"{PREFIX}KINDS: {unknown[0]!r} is not one of {', '.join(KINDS)}")
        if problems:
            raise SettingsError("; ".join(problems))
        return found


def addresses(settings: Settings) -> list[str]:
    """Return whom to tell.

    Raises:
        SettingsError: the file cannot be read, or a line of it is no address. The line is not shown: it may
            hold a secret.
    """
    try:
        with open(settings.url_file, encoding="utf-8") as file:
            lines = [line.strip() for line in file.read(65536).splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror or str(error)).lower() if isinstance(error, OSError) else "not UTF-8 text"
        expected = "expected a file with the addresses that are told, one on a line"
        raise SettingsError(f"{PREFIX}URL_FILE={settings.url_file!r}: {why}, {expected}") from None
    found = []
    for number_, line in enumerate(lines, 1):
        if not line or line.startswith("#"):
            continue
        try:
            parts = urlsplit(line)
            fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            fits = False
        if not fits:
            raise SettingsError(
                f"{settings.url_file}, line {number_}: expected an address such as https://host/path"
            )
        found.append(line)
    if not 1 <= len(found) <= MOST:
        raise SettingsError(f"{settings.url_file}: {len(found)} addresses, expected 1 to {MOST}")
    return found


def describe() -> list[tuple[str, str, str]]:
    """(variable, default, meaning) of each setting, for the docs and for ``--help``."""
    return described(Settings, PREFIX)
