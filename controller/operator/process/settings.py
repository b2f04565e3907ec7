"""The operator's settings, read from ``EVALSTOP_*`` environment variables, all checked at the start."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from controller import names
from controller.checkpoints import endpoints
from controller.checkpoints.access_jobs import AccessSettings
from controller.environ import (
    SettingsError,
    described,
    listed,
    log_format_setting,
    log_level_setting,
    number,
    setting,
    switch,
    text,
    values_of,
    whole_number,
)
from controller.frozen import dataclass
from controller.kube.lease import Timing
from controller.metrics.address import AddressPolicy
from controller.policy.job import STALL
from controller.web.metrics_settings import MetricsSettings, problems_of

__all__ = ["PREFIX", "Settings", "SettingsError", "describe"]

PREFIX = "EVALSTOP_"
_ACCESS = AccessSettings()
_TIMING = Timing()


def _text(text: str) -> str:
    """a text that is not empty"""  # noqa: D401, D403 -- part of an error
    if not text:
        raise ValueError
    return text


def _addresses(text: str) -> str:
    """address classes (Public, Private, Shared, Loopback) and networks, separated by commas"""  # noqa: D403 -- part of an error
    AddressPolicy.parse(text)
    return text


def _https(text: str) -> str:
    """https:// addresses, separated by commas"""
    if not all(url.startswith("https://") for url in listed(text)):
        raise ValueError
    return text


def _endpoints(text: str) -> str:
    """some of Https, ClusterHttp, Http and Loopback, separated by commas"""  # noqa: D401, D403 -- part of an error
    endpoints.parse(text)
    return text


@dataclass(frozen=True, slots=True)
class Settings(MetricsSettings):
    """Each field is read from ``EVALSTOP_<FIELD IN CAPITALS>`` (table: docs/operate/operator.md)."""

    host: str = setting("0.0.0.0", _text, "address on which /healthz and /readyz are served, for probes")
    port: int = setting(8080, whole_number(0, 65535, "port; 0: any free one"), "their port (plain HTTP)")
    queue_host: str = setting(
        "127.0.0.1", _text, "address of the queue API (docs/operate/queueing.md); it asks nobody who they are"
    )
    queue_port: int = setting(
        names.QUEUE_API_PORT, whole_number(0, 65535, "port; 0: any free one"), "its port"
    )
    steps_host: str = setting(
        "0.0.0.0",
        _text,
        "address of the step API of rollouts (docs/use/rollouts.md), for trainers and actors",
    )
    steps_port: int = setting(8446, whole_number(0, 65535, "port; 0: any free one"), "its port (HTTPS)")
    steps_certificate: str = setting(
        "", text, "PEM file of its certificate; empty or not there: the step API is not served"
    )
    steps_key: str = setting("", text, "PEM file of that certificate's private key")
    steps_ca: str = setting(
        "", text, "PEM file of the authority that trainers and actors trust; empty: the certificate itself"
    )
    steps_urls: str = setting(
        "",
        _https,
        "https:// addresses, by commas, at which trainers and actors reach the step API of each replica; "
        "empty: RLHFJobs with spec.rollout are refused",
    )
    actor_image: str = setting(
        names.ACTOR_IMAGE, _text, "image of the sidecar in actors' pods, with python and controller.actor"
    )
    watch_namespaces: str = setting("", text, "namespaces that are served, separated by commas; empty: all")
    queue_hosts: str = setting(
        "", text, "names, by commas, by which it may be asked besides localhost and addresses"
    )
    workers: int = setting(8, whole_number(1, 256, "workers"), "RLHFJobs worked on at the same time")
    relist_seconds: float = setting(
        300.0, number(1, 86400, "s"), "between full LISTs that mend what the watch missed"
    )
    foreign_seconds: float = setting(
        15.0, number(0.1, 3600, "s"), "between looks at GPU pods that belong to no RLHFJob"
    )
    foreign_list_seconds: float = setting(
        60.0,
        number(0.1, 3600, "s"),
        "the same, at least, where a look takes a LIST of all the cluster's pods",
    )
    pool_delay: float = setting(
        0.05, number(0, 60, "s"), "a pool pass waits this long, so that a burst of events makes one pass"
    )
    api_timeout: float = setting(30.0, number(1, 300, "s"), "for one API call")
    drain_seconds: float = setting(10.0, number(0, 300, "s"), "for passes under way after SIGTERM")
    stall_seconds: float = setting(60.0, number(1, 3600, "s"), "without progress after which /healthz fails")
    access_image: str = setting(_ACCESS.image, _text, "image of the access Jobs")
    access_stall_seconds: float = setting(
        STALL,
        number(30, 604800, "s"),
        "without a byte moved after which an access Job is given up and made anew",
    )
    store_endpoints: str = setting(
        _ACCESS.endpoints, _endpoints, "where the object stores that trainers name may be"
    )
    scrape_addresses: str = setting("Private", _addresses, "which pod addresses may be scraped")
    scrape_timeout: float = setting(5.0, number(0.1, 60, "s"), "for one scrape, from first to last byte")
    scrape_concurrency: int = setting(64, whole_number(1, 4096, "scrapes"), "scrapes at the same time")
    scrape_namespace_concurrency: int = setting(
        16, whole_number(1, 4096, "scrapes"), "of these, at most so many of one namespace"
    )
    decision_log: str = setting("", text, "file for the decision log; empty: none")
    decision_log_bytes: int = setting(
        64 * 2**20, whole_number(4096, 2**40, "bytes"), "size at which the decision log is rotated"
    )
    decision_log_files: int = setting(
        4, whole_number(1, 1000, "files"), "decision log files kept, the current one too"
    )
    log_level: str = log_level_setting()
    log_format: str = log_format_setting()
    leader_elect: bool = setting(
        True, switch, "whether a Lease decides which replica acts; false only where there is one replica"
    )
    lease_namespace: str = setting(
        "", text, "namespace of the Lease; empty: POD_NAMESPACE or evalstop-system"
    )
    lease_name: str = setting("evalstop-operator", _text, "its name; replicas of one installation share it")
    lease_seconds: int = setting(
        _TIMING.duration, whole_number(1, 3600, "s"), "without renewal after which another replica takes over"
    )
    lease_renew_seconds: float = setting(
        _TIMING.deadline, number(0.5, 3600, "s"), "without renewal after which a leader acts no more"
    )
    lease_retry_seconds: float = setting(
        _TIMING.retry, number(0.1, 600, "s"), "between renewals, and between a standby's looks"
    )
    instance: str = setting("", text, "name of this process in Events; empty: POD_NAME or the host's name")

    @staticmethod
    def from_environ(environ: Mapping[str, str] = os.environ) -> Settings:
        """Read all variables.

        Raises:
            SettingsError: listing every variable that is wrong, unknown ``EVALSTOP_*`` names among them.
        """
        values, problems = values_of(Settings, PREFIX, environ, _FOREIGN)
        problems += problems_of(values, PREFIX)
        if bool(values.get("steps_certificate")) != bool(values.get("steps_key")):
            problems.append(f"{PREFIX}STEPS_CERTIFICATE and {PREFIX}STEPS_KEY: expected both or none")
        if problems:
            raise SettingsError("; ".join(problems))
        if not values.get("instance"):
            values["instance"] = environ.get("POD_NAME") or socket.gethostname()
        if not values.get("lease_namespace"):
            values["lease_namespace"] = environ.get("POD_NAMESPACE") or names.NAMESPACE
        settings = Settings(**values)
        settings.timing()
        return settings

    @property
    def namespaces(self) -> tuple[str, ...]:
        """Those that are served; none: all."""
        return listed(self.watch_namespaces)

    def timing(self) -> Timing:
        """Return when the Lease is renewed and when it runs out.

        Raises:
            SettingsError: a leader would not have stopped when its Lease can be taken.
        """
        try:
            return Timing(self.lease_seconds, self.lease_renew_seconds, self.lease_retry_seconds)
        except ValueError as error:
            order = ("LEASE_RETRY_SECONDS", "LEASE_RENEW_SECONDS", "LEASE_SECONDS")
            raise SettingsError(f"{' < '.join(PREFIX + name for name in order)} is needed: {error}") from None


# Variables of the trainer's and the access Job's contracts: not ours, and no mistake.
_FOREIGN = frozenset({"EVALSTOP_RUN_DIR", "EVALSTOP_REQUEST", "EVALSTOP_STEPS_TOKEN"})


def describe() -> list[tuple[str, str, str]]:
    """(variable, default, meaning) of each setting, for the docs and for ``--help``."""
    return described(Settings, PREFIX)
