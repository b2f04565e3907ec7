"""The settings of a process's metrics, the same for every process that serves them."""

from __future__ import annotations

from controller.environ import choice, setting, text, whole_number
from controller.frozen import dataclass

REVIEW = "review"  # over TLS, for whoever the API server says may read them
OPEN = "open"  # over plain HTTP, for everybody who reaches the port


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """Base of a process's settings: where and how its metrics are served."""

    metrics_host: str = setting("", text, "address on which /metrics is served; empty: that of the probes")
    metrics_port: int = setting(8444, whole_number(0, 65535, "port; 0: any free one"), "its port")
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


def problems_of(values: dict[str, object], prefix: str) -> list[str]:
    """Return what is wrong with these settings together, each being right by itself."""
    if bool(values.get("metrics_certificate")) == bool(values.get("metrics_key")):
        return []
    return [f"{prefix}METRICS_CERTIFICATE and {prefix}METRICS_KEY: expected both or none"]
