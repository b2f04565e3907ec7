"""Remember when the client certificate ends that last asked the extender: kube-scheduler's.

A kube-scheduler that is not the chart's may hold a copy in its configuration, which nobody renews with the
Secret, and whose end is seen nowhere else.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any

# s after which who asked here is forgotten. A scheduler keeps to one replica for as long as its connection
# lasts: what another replica has seen of it may be the certificate before.
FORGET = 86400.0


class LastCertificate:
    """The client certificate that last asked this process."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._now = monotonic
        self._ends = 0.0
        self._at = float("-inf")

    def observe(self, shown: Mapping[str, Any]) -> None:
        """Somebody asks with this certificate, as ``getpeercert`` gives it."""
        self.note(ssl.cert_time_to_seconds(shown["notAfter"]))

    def note(self, ends: float) -> None:
        """Somebody asks whose certificate ends then (s since the epoch)."""
        self._ends, self._at = ends, self._now()

    @property
    def ends(self) -> float | None:
        """Return when the certificate that last asked ends; None: nobody has asked for a day."""
        return self._ends if self._now() - self._at < FORGET else None
