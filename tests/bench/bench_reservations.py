"""What it costs to announce reservations: all of a pool's in its status, or one small object per gang.

200 jobs stop at the same moment, each for a gang of eight pods on eight nodes. The pool writes its list once,
then 200 times more as the gangs are bound one after the other (the worst case: passes take a burst together).
Baseline: 200 small objects made, and 200 taken away.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from controller.api.codec import encode
from controller.api.status import PoolStatus
from controller.policy.types import Reservation
from deploy.local.api import LocalApi
from deploy.local.components import Options
from deploy.local.plane import Plane
from tests.bench.rows import Row

GANGS, MEMBERS = 200, 8
_REPOSITORY = Path(__file__).parents[2]
_POOLS = "/apis/evalstop.dev/v1alpha1/gpupools"
_OBJECTS = "/api/v1/namespaces/default/configmaps"


def run(say: Callable[[str], None]) -> Iterator[Row]:
    with (
        tempfile.TemporaryDirectory(prefix="evalstop-bench-", dir="/var/tmp") as folder,
        Plane(Path(folder), Options(controllers=False, scheduler=False)) as plane,
    ):
        plane.kubectl("apply", "-f", str(_REPOSITORY / "crds"))
        plane.established()
        client = plane.client()
        client.post(_POOLS, _pool())
        reservations = _stored(tuple(_reservation(i) for i in range(GANGS)))
        size = len(str(reservations).encode())
        say(f"{GANGS} reservations of {MEMBERS} nodes: {size / 1000:.0f} kB of status")
        whole = _seconds(lambda: _write(client, reservations))
        each = [_seconds(lambda i=i: _write(client, reservations[i:])) for i in range(1, GANGS + 1)]
        made = sum(_seconds(lambda i=i: client.post(_OBJECTS, _object(i))) for i in range(GANGS))
        gone = sum(_seconds(lambda i=i: client.delete(f"{_OBJECTS}/reservation-{i}")) for i in range(GANGS))
    yield Row("reservations: status of a pool with 200 reservations of 8 nodes", size / 1000, "kB")
    yield Row("reservations: to announce 200 (baseline: an object each)", whole * 1000, "ms", made * 1000)
    yield Row(
        "reservations: to end them one by one (baseline: an object each)", sum(each) * 1000, "ms", gone * 1000
    )


def _write(client: LocalApi, reservations: list[dict[str, Any]]) -> None:
    client.patch(f"{_POOLS}/p/status", {"status": {"reservations": reservations}})


def _seconds(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def _reservation(i: int) -> Reservation:
    nodes = tuple(f"gpu-node-{i * MEMBERS + j:05d}.cluster.local" for j in range(MEMBERS))
    return Reservation(f"team-a/stopped-run-{i:03d}", f"team-b/waiting-run-{i:03d}", nodes, 1.8e9 + i, 1)


def _stored(found: tuple[Reservation, ...]) -> list[dict[str, Any]]:
    reservations: list[dict[str, Any]] = encode(PoolStatus(reservations=found))["reservations"]
    return reservations


def _object(i: int) -> dict[str, Any]:
    (reservation,) = _stored((_reservation(i),))
    meta = {"name": f"reservation-{i}"}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": meta,
        "data": {"reservation": str(reservation)},
    }


def _pool() -> dict[str, Any]:
    spec = {
        "nodeSelector": [{"key": "pool", "value": "p"}],
        "allowedNamespaces": [{"name": "*"}],
    }
    meta = {"name": "p"}
    return {"apiVersion": "evalstop.dev/v1alpha1", "kind": "GPUPool", "metadata": meta, "spec": spec}
