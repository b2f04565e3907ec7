"""The status of a GPUPool that remembers something of its jobs as a fleet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from controller.api.codec import encode
from controller.api.fleet import stored_stops
from controller.api.status import PoolStatus
from controller.policy.types import MetricNoise, PastStop, SharedFall, StopCount


def stored(
    count: StopCount,
    noise: tuple[MetricNoise, ...] = (),
    falls: tuple[SharedFall, ...] = (),
    past: Sequence[PastStop] = (),
) -> dict[str, Any]:
    return encode(PoolStatus(stops=stored_stops(count, past), noise=noise, shared_falls=falls))
