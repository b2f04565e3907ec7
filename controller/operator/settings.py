"""The operator's settings, read from ``EVALSTOP_*`` environment variables, all checked at the start."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from controller.checkpoints.jobs import AccessSettings
from controller.environ import SettingsError, choice, described, setting, switch, text, values_of
from controller.kube.lease import Timing
from controller.metrics.address import AddressPolicy
from controller.policy.transfer import STALL

__all__ = ["PREFIX", "Settings", "SettingsError", "describe"]

PREFIX = "EVALSTOP_"
NAMESPACE = "evalstop-system"  # of the operator, where nobody tells
_ACCESS = AccessSettings()
_TIMING = Timing()


def _number(low: float, high: float, unit: str) -> Callable[[str], float]:
    def parse(text: str) -> float:
        value = float(text)
        if not low <= value <= high:
            raise ValueError
        return value

    parse.__doc__ = f"a number from {low:g} to {high:g} ({unit})"
    return parse


def _whole(low: int, high: int, unit: str) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise ValueError
        return value

    parse.__doc__ = f"a whole number from {low} to {high} ({unit})"
    return parse


def _text(text: str) -> str:
    """a text that is not empty"""
    if not text:
        raise ValueError
    return text


def _addresses(text: str) -> str:
    """address classes (Public, Private, Shared, Loopback) and networks, separated by commas"""
    AddressPolicy.parse(text)
    return text


@dataclass(frozen=True, slots=True)
class Settings:
    """Each field is read from ``EVALSTOP_<FIELD IN CAPITALS>``; see docs/operator.md for the table."""

    host: str = setting("0.0.0.0", _text, "address on which /healthz, /readyz and /metrics are served")
    port: int = setting(8080, _whole(0, 65535, "port; 0: any free one"), "their port")
    queue_host: str = setting(
        "127.0.0.1", _text, "address of the queue API (docs/queueing.md); it asks nobody who they are"
    )
    queue_port: int = setting(8081, _whole(0, 65535, "port; 0: any free one"), "its port")
    workers: int = setting(8, _whole(1, 256, "workers"), "RLHFJobs worked on at the same time")
    relist_seconds: float = setting(
        300.0, _number(1, 86400, "s"), "between full LISTs that mend what the watch missed"
    )
    foreign_seconds: float = setting(
        15.0, _number(0.1, 3600, "s"), "between looks at GPU pods that belong to no RLHFJob"
    )
    foreign_list_seconds: float = setting(
        60.0,
        _number(0.1, 3600, "s"),
        "the same, at least, where a look takes a LIST of all the cluster's pods",
    )
    pool_delay: float = setting(
        0.05, _number(0, 60, "s"), "a pool pass waits this long, so that a burst of events makes one pass"
    )
    api_timeout: float = setting(30.0, _number(1, 300, "s"), "for one API call")
    drain_seconds: float = setting(10.0, _number(0, 300, "s"), "for passes under way after SIGTERM")
    stall_seconds: float = setting(60.0, _number(1, 3600, "s"), "without progress after which /healthz fails")
    access_image: str = setting(_ACCESS.image, _text, "image of the access Jobs")
    access_stall_seconds: float = setting(
        STALL,
        _number(30, 604800, "s"),
        "without a byte moved after which an access Job is given up and made anew",
    )
    scrape_addresses: str = setting("Public,Private", _addresses, "which pod addresses may be scraped")
    scrape_timeout: float = setting(5.0, _number(0.1, 60, "s"), "for one scrape, from first to last byte")
    scrape_concurrency: int = setting(64, _whole(1, 4096, "scrapes"), "scrapes at the same time")
    decision_log: str = setting("", text, "file for the decision log; empty: none")
    decision_log_bytes: int = setting(
        64 * 2**20, _whole(4096, 2**40, "bytes"), "size at which the decision log is rotated"
    )
    decision_log_files: int = setting(
        4, _whole(1, 1000, "files"), "decision log files kept, the current one too"
    )
    log_level: str = setting("INFO", choice("DEBUG", "INFO", "WARNING", "ERROR"), "level of the log")
    log_format: str = setting("json", choice("json", "console"), "form of the log lines on stderr")
    leader_elect: bool = setting(
        True, switch, "whether a Lease decides which replica acts; false only where there is one replica"
    )
    lease_namespace: str = setting(
        "", text, "namespace of the Lease; empty: POD_NAMESPACE or evalstop-system"
    )
    lease_name: str = setting("evalstop-operator", _text, "its name; replicas of one installation share it")
    lease_seconds: int = setting(
        _TIMING.duration, _whole(1, 3600, "s"), "without renewal after which another replica takes over"
    )
    lease_renew_seconds: float = setting(
        _TIMING.deadline, _number(0.5, 3600, "s"), "without renewal after which a leader acts no more"
    )
    lease_retry_seconds: float = setting(
        _TIMING.retry, _number(0.1, 600, "s"), "between renewals, and between a standby's looks"
    )
    instance: str = setting("", text, "name of this process in Events; empty: POD_NAME or the host's name")

    @staticmethod
    def from_environ(environ: Mapping[str, str] = os.environ) -> Settings:
        """Read all variables.

        Raises:
            SettingsError: listing every variable that is wrong, unknown ``EVALSTOP_*`` names among them.
        """
        values, problems = values_of(Settings, PREFIX, environ, _FOREIGN)
        if problems:
            raise SettingsError("; ".join(problems))
        if not values.get("instance"):
            values["instance"] = environ.get("POD_NAME") or socket.gethostname()
        if not values.get("lease_namespace"):
            values["lease_namespace"] = environ.get("POD_NAMESPACE") or NAMESPACE
        settings = Settings(**values)
        settings.timing()
        return settings

    def timing(self) -> Timing:
        """When the Lease is renewed and when it runs out.

        Raises:
            SettingsError: a leader would not have stopped when its Lease can be taken.
        """
        try:
            return Timing(self.lease_seconds, self.lease_renew_seconds, self.lease_retry_seconds)
        except ValueError as error:
            names = ("LEASE_RETRY_SECONDS", "LEASE_RENEW_SECONDS", "LEASE_SECONDS")
            raise SettingsError(f"{' < '.join(PREFIX + name for name in names)} is needed: {error}") from None


# Variables of the trainer's and the access Job's contracts: not ours, and no mistake.
_FOREIGN = frozenset({"EVALSTOP_RUN_DIR", "EVALSTOP_REQUEST"})


def describe() -> list[tuple[str, str, str]]:
    """(variable, default, meaning) of each setting, for the docs and for ``--help``."""
    return described(Settings, PREFIX)
