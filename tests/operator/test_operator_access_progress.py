"""The operator asks access pods how far they are: bytes, rate and time, and since when nothing moved."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from controller.checkpoints.progress import Meter, served
from controller.metrics.address import AddressPolicy
from controller.metrics.fetch import Caps, fetch
from controller.metrics.samples import MetricsError
from controller.operator.state.access_progress import CAPS, AccessProgress, parse
from controller.policy.job.record import Operation
from controller.policy.job.transfer import describe, stalled
from controller.policy.job.types import AccessView, ScrapeOutcome

JOB: dict[str, Any] = {"metadata": {"uid": "job-uid", "name": "run-retain-40-7-0f2a1"}}
POD: dict[str, Any] = {
    "spec": {"containers": [{"name": "access", "ports": [{"name": "progress", "containerPort": 9401}]}]},
    "status": {"phase": "Running", "podIP": "10.0.0.7"},
}
VIEW = AccessView("retain-40-7", Operation.RETAIN, finished=False)
GB = 10**9


@dataclass
class Rig:
    """An operator's memory of progress over a pod of the test's own; its time is turned by hand."""

    now: float = 1000.0
    meter: Meter = field(default_factory=Meter)
    broken: bool = False
    asked: list[tuple[str, int]] = field(default_factory=list)
    touched: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.known = AccessProgress(
            AddressPolicy(), 600.0, self.touched.append, lambda: self.now, self.answer, lambda: self.now
        )

    async def answer(self, ip: str, port: int, target: str, caps: Caps) -> bytes:
        self.asked.append((ip, port))
        if self.broken:
            raise MetricsError(ScrapeOutcome.TIMEOUT, "no connection")
        return self.meter.text().encode()

    def view(self, pod: dict[str, Any] = POD) -> AccessView:
        return self.known.of("ns/run", VIEW, JOB, [pod])

    def minute(self, pod: dict[str, Any] = POD) -> AccessView:
        self.now += 60.0
        self.view(pod)
        asyncio.run(self.known.ask_due())
        return self.view(pod)


def test_bytes_rate_and_time_left_come_each_minute() -> None:
    rig = Rig()
    rig.view()
    rig.meter.begin("Copying", 100 * GB)
    rig.minute()
    for _ in range(4):
        rig.meter.advance(6 * GB)
        view = rig.minute()
    assert view.progress is not None
    assert describe(view.progress) == "copying 24 GB of 100 GB, 100 MB/s, 13 min left"
    assert len(rig.asked) == len(rig.touched) == 5
    assert rig.touched[0] == "ns/run"


def test_one_pod_is_not_asked_more_than_once_a_minute() -> None:
    rig = Rig()
    rig.minute()
    rig.now += 5.0
    asyncio.run(rig.known.ask_due())
    assert len(rig.asked) == 1


def test_a_copy_that_moves_never_stalls_and_one_that_stands_still_does() -> None:
    rig = Rig()
    rig.view()
    rig.meter.begin("Copying", 10**12)
    for _ in range(90):  # row 5: it was killed after an hour
        rig.meter.advance(1)
        assert not stalled(rig.minute(), rig.now)
    for _ in range(10):
        assert not stalled(rig.minute(), rig.now)
    assert stalled(rig.minute(), rig.now)


def test_another_phase_is_movement_and_its_rate_is_its_own() -> None:
    rig = Rig()
    rig.view()
    rig.meter.begin("Copying", 10 * GB, 10 * GB)
    rig.minute()
    rig.meter.begin("Checking", 10 * GB)
    view = rig.minute()
    assert view.progress is not None
    assert (view.progress.phase, view.progress.rate, view.progress.moved_at) == ("Checking", 0.0, rig.now)


def test_a_pod_that_never_answers_counts_from_when_it_was_first_seen() -> None:
    rig = Rig(broken=True)
    rig.view()
    for _ in range(10):
        assert not stalled(rig.minute(), rig.now)
    view = rig.minute()
    assert view.progress is None
    assert stalled(view, rig.now)
    # An operator that has just started has seen nothing yet, and gives nothing up.
    later = Rig(now=rig.now)
    assert not stalled(later.view(), later.now)


def test_a_pod_that_answers_no_more_keeps_what_it_said() -> None:
    rig = Rig()
    rig.view()
    rig.meter.begin("Copying", 100)
    rig.meter.advance(7)
    before = rig.minute()
    rig.broken = True
    after = rig.minute()
    assert after.progress == before.progress
    assert stalled(after, rig.now + 600.0)


@pytest.mark.parametrize(
    "pod",
    [
        {**POD, "status": {"phase": "Pending"}},
        {**POD, "status": {"phase": "Running", "podIP": "169.254.169.254"}},
        {**POD, "spec": {"containers": [{"name": "access"}]}},
    ],
)
def test_a_pod_without_address_or_port_is_not_asked(pod: dict[str, Any]) -> None:
    rig = Rig()
    assert rig.minute(pod).progress is None
    assert rig.asked == []


def test_a_finished_job_is_forgotten() -> None:
    rig = Rig()
    rig.minute()
    done = AccessView("retain-40-7", Operation.RETAIN, finished=True, ok=True)
    assert rig.known.of("ns/run", done, JOB, [POD]) is done
    rig.now += 600.0
    asyncio.run(rig.known.ask_due())
    assert len(rig.asked) == 1


@pytest.mark.parametrize(
    "page",
    [
        b"",
        b"evalstop_access_bytes_done 7\n",
        b"evalstop_access_bytes_done -7\nevalstop_access_bytes_total 9\n",
        b"evalstop_access_bytes_done 7e3\nevalstop_access_bytes_total NaN\n",
        "evalstop_access_bytes_done \N{ARABIC-INDIC DIGIT SEVEN}\nevalstop_access_bytes_total 9\n".encode(),
        b"\xff\x00",
    ],
)
def test_pages_of_another_kind_say_nothing(page: bytes) -> None:
    assert parse(page) is None


def test_the_access_program_is_asked_over_a_real_connection() -> None:
    from controller.checkpoints.progress import METER

    METER.begin("Copying", 10 * GB, 3 * GB)
    with served({"POD_IP": "127.0.0.1"}, port=0) as port:
        assert port is not None
        for _ in range(3):
            page = asyncio.run(fetch("127.0.0.1", port, "/metrics", CAPS))
        assert parse(page) == ("Copying", 3 * GB, 10 * GB)
    METER.begin("", 0)
    assert parse(METER.text().encode()) == ("", 0, 0)


def test_without_an_address_nothing_is_served() -> None:
    with served({}) as port:
        assert port is None
    with served({"POD_IP": "198.51.100.1"}) as port:  # not this machine's
        assert port is None
