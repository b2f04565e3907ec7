"""Whether the operator lives, by its Lease: told by one clock, and quietly."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from controller import names
from controller.api.values import timestamp
from controller.kube.errors import ApiError
from controller.kube.lease import RefusedNote, UnwrittenNote
from controller.web.dashboard.feed import (
    API_SILENT,
    NOT_SERVED,
    NOT_WRITTEN,
    OPERATOR_AWAY,
    OPERATOR_REFUSED,
    Feed,
    Stale,
)
from controller.web.dashboard.operator_lease import OperatorLease


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Leases:
    """An API server with one Lease, or what it answers instead."""

    def __init__(self) -> None:
        self.spec: dict[str, Any] = {}
        self.annotations: dict[str, str] = {}
        self.failure: ApiError | None = None

    def renew(self, holder: str = "operator-0", at: float | None = None) -> None:
        renewed = timestamp(time.time() if at is None else at)
        self.spec = {"holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": 15}

    async def get(self, resource: Any, name: str, namespace: str) -> dict[str, Any]:
        assert (resource.plural, name, namespace) == ("leases", "evalstop-operator", "system")
        if self.failure is not None:
            raise self.failure
        return {"metadata": {"annotations": self.annotations}, "spec": self.spec}


def looked(leases: Leases, clock: Clock, seconds: float, lease: OperatorLease) -> float | None:
    clock.now += seconds
    asyncio.run(lease.look())
    return lease.away_since()


def made() -> tuple[Leases, Clock, OperatorLease]:
    leases, clock = Leases(), Clock()
    return leases, clock, OperatorLease(leases, "system", clock)  # type: ignore[arg-type]


def test_while_it_is_renewed_nothing_is_said_and_then_since_when() -> None:
    leases, clock, lease = made()
    assert lease.away_since() is None, "nothing is known yet"
    for second in range(5):
        leases.renew(at=time.time() + second)
        assert looked(leases, clock, 10.0, lease) is None
    assert looked(leases, clock, 20.0, lease) is None, "a new leader may come"
    away = looked(leases, clock, 10.0, lease)
    assert away == pytest.approx(time.time() + 4.0, abs=3.0)
    leases.renew("operator-1", at=time.time() + 60.0)
    assert looked(leases, clock, 1.0, lease) is None, "another one has taken over"


def test_another_clock_is_not_believed_but_an_old_lease_is() -> None:
    leases, clock, lease = made()
    leases.renew(at=time.time() - 120.0)  # the operator's clock is two minutes behind
    assert looked(leases, clock, 0.0, lease) is None
    leases, clock, lease = made()
    leases.renew(at=time.time() - 3600.0)  # it was left behind an hour ago
    assert looked(leases, clock, 0.0, lease) == pytest.approx(time.time() - 3600.0, abs=3.0)


def test_without_the_right_or_where_no_lease_was_ever_seen_nothing_is_known() -> None:
    leases, clock, lease = made()
    leases.failure = ApiError(404, "NotFound", "it may be installed elsewhere")
    assert looked(leases, clock, 100.0, lease) is None
    leases.failure = None
    leases.renew()
    looked(leases, clock, 0.0, lease)
    leases.failure = ApiError(403, "Forbidden", "no")
    assert looked(leases, clock, 100.0, lease) is None


def test_a_lease_that_is_gone_is_renewed_by_nobody() -> None:
    """The operator's namespace was deleted, and the page went on as if it were there."""
    leases, clock, lease = made()
    leases.renew()
    looked(leases, clock, 0.0, lease)
    leases.failure = ApiError(404, "NotFound", "gone")
    assert looked(leases, clock, 20.0, lease) is None, "it is made anew at once where it was deleted alone"
    assert looked(leases, clock, 10.0, lease) is not None
    feed = Feed(leases)  # type: ignore[arg-type]
    feed._lease = lease
    assert feed.stale(time.time()).why == OPERATOR_AWAY


def test_an_api_server_that_is_away_does_not_make_the_operator_live() -> None:
    leases, clock, lease = made()
    leases.renew()
    looked(leases, clock, 0.0, lease)
    leases.failure = ApiError(0, "Unavailable", "no answer")
    assert looked(leases, clock, 100.0, lease) is not None


def test_an_api_server_that_hangs_is_not_laid_to_the_operator() -> None:
    """It hung for 50 s; the page said that no operator renews its Lease."""
    leases, clock, lease = made()
    leases.renew()
    looked(leases, clock, 0.0, lease)
    feed = Feed(leases)  # type: ignore[arg-type]
    feed._lease = lease
    clock.now += 60.0  # the look that is under way has no answer
    assert feed.stale(time.time()).why == API_SILENT
    looked(leases, clock, 0.0, lease)
    assert feed.stale(time.time()).why == OPERATOR_AWAY, "it answers, and the Lease is as it was"
    leases.renew("operator-1", at=time.time() + 60.0)
    looked(leases, clock, 1.0, lease)
    assert feed.stale(time.time()) is None


def test_a_leader_that_is_refused_its_rights_is_told_and_one_that_is_away_first() -> None:
    """It renewed its Lease and could read nothing: the page showed all runs as well."""
    leases, clock, lease = made()
    feed = Feed(leases)  # type: ignore[arg-type]
    feed._lease = lease
    leases.renew()
    looked(leases, clock, 0.0, lease)
    assert feed.stale(time.time()) is None
    leases.annotations[names.ANNOTATION_REFUSED] = RefusedNote(1_790_000_000.0, "list pods").written()
    looked(leases, clock, 1.0, lease)
    assert feed.stale(time.time()) == Stale(1_790_000_000.0, OPERATOR_REFUSED)
    looked(leases, clock, 60.0, lease)
    assert feed.stale(time.time()).why == OPERATOR_AWAY
    leases.annotations.clear()
    leases.renew(at=time.time() + 60.0)
    looked(leases, clock, 1.0, lease)
    assert feed.stale(time.time()) is None


def test_a_namespace_that_is_shown_and_not_served_is_told() -> None:
    """It was left out of `watchNamespaces`, and its runs looked watched for good."""
    leases, clock, lease = made()
    feed = Feed(leases)  # type: ignore[arg-type]
    feed._lease = lease
    leases.renew()
    leases.spec["acquireTime"] = timestamp(1_790_000_000.0)
    leases.annotations[names.ANNOTATION_NAMESPACES] = "demo,lab"
    feed._jobs = {"demo/a": {}, "lab/b": {}}
    looked(leases, clock, 0.0, lease)
    assert feed.stale(time.time()) is None
    feed._jobs["prod/c"] = {}
    told = feed.stale(time.time())
    assert told == Stale(1_790_000_000.0, NOT_SERVED.format(namespaces="namespace prod"))
    feed._jobs["ops/d"] = {}
    assert "namespaces ops, prod" in feed.stale(time.time()).why


def test_runs_whose_status_is_refused_are_told_to_those_who_see_them() -> None:
    """They trained, and their evals were read, as far as the page knew."""
    leases, clock, lease = made()
    feed = Feed(leases)  # type: ignore[arg-type]
    feed._lease = lease
    leases.renew()
    feed._jobs = {"demo/a": {}, "lab/b": {}}
    feed._pools = {"a100": {}}
    named = ("GPUPool/a100", "RLHFJob/demo/a", "RLHFJob/prod/c")
    note = UnwrittenNote(1_790_000_000.0, 9, named, "Invalid (422): no")
    leases.annotations[names.ANNOTATION_UNWRITTEN] = note.written()
    looked(leases, clock, 0.0, lease)
    for namespaces, which in (
        (None, "the statuses of GPUPool a100, RLHFJob demo/a"),
        ({"demo", "lab"}, "the status of RLHFJob demo/a"),
        ({"lab"}, ""),
    ):
        told = Stale(note.since, NOT_WRITTEN.format(which=which)) if which else None
        assert feed.stale(time.time(), namespaces) == told
    leases.annotations.clear()
    looked(leases, clock, 1.0, lease)
    assert feed.stale(time.time()) is None


def test_what_is_said_names_no_address() -> None:
    assert Stale(1.0, OPERATOR_AWAY).why == OPERATOR_AWAY
    assert "://" not in OPERATOR_AWAY
