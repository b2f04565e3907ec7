"""Paths of pins in a status: short however long the location is, and the very same when they are read."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_api_record import beyond

from controller.api.paths import gathered, spread
from controller.api.record import record, size, status
from controller.api.schema import structural
from controller.api.status import JobStatus
from controller.policy.job.record import (
    EvalBaseline,
    InFlight,
    JobRecord,
    Operation,
    ProtectedCheckpoint,
    ShortBaselines,
)
from controller.policy.job.types import Desired
from controller.policy.types import Attempt, PolicySpec

UID = "0f2a1bb7-1111-2222-3333-444455556666"
DESIRED = Desired("a/b", UID, 1, "gold", 1, 1, rule=PolicySpec("scan"))


def kept(step: int, path: str) -> ProtectedCheckpoint:
    return ProtectedCheckpoint(
        step, step, path, "sha256:" + "a" * 64, 1e9, 10**12, 0.5, Attempt(2, "9f2c41d0")
    )


def full(location: str) -> JobRecord:
    """With as many pins as a record can name."""
    pins = f"{location}/.evalstop/{UID}"

    def pin(step: int) -> ProtectedCheckpoint:
        return kept(step, f"{pins}/2-9f2c41d0-{step}")

    release = tuple(pin(step).path for step in range(8))
    return JobRecord(
        secured=pin(1),
        beside=pin(2),
        restored=kept(3, f"{pins}/resume/checkpoint-3"),
        pinned=tuple(map(pin, range(4, 8))),
        retained=(kept(8, "/retained/a/b-0f2a1/8"),),
        to_release=release,
        access=InFlight(Operation.SECURE, 40, serial=7, release=release),
        baseline=EvalBaseline(1e9, "2-9f2c41d0", 10, pin(10), short=ShortBaselines(3, 1, "v", pin(11))),
    )


@pytest.mark.parametrize("root", ["/mnt/ckpt/", "s3://bucket/"])
def test_a_long_location_makes_no_long_status(root: str) -> None:
    """Of 410 characters it took 14,700 bytes before evals and conditions; a status has 9,150."""
    short, long = full(f"{root}x"), full(f"{root}{'x' * (512 - len(root))}")
    sizes = [size(status(one, DESIRED, 0.0)) for one in (short, long)]
    assert sizes[1] - sizes[0] == 512 - len(root) - 1, "the location is said once"
    assert sizes[1] < 4500
    for one in (short, long):
        stored = status(one, DESIRED, 0.0)
        assert list(beyond(stored, structural(JobStatus), "status")) == []
        assert record(stored) == one
    stored = status(short, DESIRED, 0.0)
    assert stored["secured"]["path"] == "2-9f2c41d0-1"
    assert stored["pinsFolder"] == f"{root}x/.evalstop/{UID}"
    assert stored["retained"][0]["path"] == "/retained/a/b-0f2a1/8", "what people copy from is whole"


ROOTS = ("/a/.evalstop/u", "/a/.evalstop/v", "s3://a/.evalstop/u", "/a", "")
RESTS = ("1-40", "resume/checkpoint-4", "1-40.3fa91c02/9f2c41d0", "/x", "s3://b", "")
PATHS = st.sampled_from(
    [
        *(f"{root}/{rest}" for root in ROOTS for rest in RESTS),
        *("", "1-40", "./1-40", "/", "/a/.evalstop/u"),
    ]
)


@given(st.lists(PATHS, max_size=6), PATHS, PATHS)
def test_every_path_reads_back_exactly(release: list[str], secured: str, before: str) -> None:
    found: dict[str, Any] = {
        "toRelease": release,
        "secured": {"path": secured},
        "baseline": {"kept": {"path": before}},
        "access": {"release": release[:2]},
        "other": 1,
    }
    short = gathered(found)
    assert {k: v for k, v in spread(short).items() if k != "pinsFolder"} == found
