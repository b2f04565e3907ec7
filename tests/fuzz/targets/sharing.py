"""Measured steps of jobs, as `evalstop sim sharing advise` reads them."""

from __future__ import annotations

import json

from sim.sharing.advise import read
from tests.fuzz.target import Target
from tests.fuzz.targets.logs import in_a_file

JOB = {"job": "a", "trainingGpus": 16, "rolloutGpus": 8, "stateBytes": 8_600_000_000, "lag": 1,
       "switchSeconds": 3.2, "steps": [[61.2, 14.8], [58, 15.1], [60, 15], [59.5, 14], [62, 15]]}  # fmt: skip


def _lines() -> tuple[bytes, ...]:
    two = [json.dumps(JOB), json.dumps({**JOB, "job": "b", "lag": 0, "switchSeconds": None})]
    return two[0].encode(), "\n".join(two).encode()


TARGETS = (
    Target(
        "measured-steps",
        in_a_file("measured.jsonl", read),
        _lines,
        own=(ValueError,),
        most=1 << 16,
        words=(b"-1", b"1e999", b"NaN", b"null", b"true", b"[[1,1]]"),
    ),
)
