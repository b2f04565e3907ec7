"""Digests of what pools decided before there were quotas, without the words for it.

Written anew on purpose only:
.venv/bin/python tests/policy/golden_decisions.py > tests/policy/golden_decisions.json
"""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any

from quota_world import QuotaWorld, arrivals

from controller.policy.codec import dumps, encode
from controller.policy.types import PolicySpec

NODES = {"n1": 8, "n2": 8, "n3": 8, "n4": 4}
POLICIES = [
    PolicySpec("fifo"),
    PolicySpec("fifo", {"backfill": True}),
    PolicySpec("fifo", {"max_wait": 60.0}),
    PolicySpec("las", {"first_threshold": 40.0, "second_threshold": 160.0}),
    PolicySpec("las", {"first_threshold": 40.0, "second_threshold": 160.0, "max_wait": 60.0}),
    PolicySpec("las", {"first_threshold": 40.0, "second_threshold": 160.0, "variant": "Tiresias"}),
    PolicySpec("fairShare"),
    PolicySpec("fairShare", {"preempt": True, "epoch": 4.0, "max_wait": 60.0}),
]
SEEDS, JOBS, TICKS = 6, 60, 160


def name(spec: PolicySpec) -> str:
    return spec.name + "".join(f",{k}={v}" for k, v in spec.params.items())


def _wordless(value: Any) -> Any:
    """Without sentences for people: they change, and decide nothing."""
    if isinstance(value, dict):
        return {key: _wordless(v) for key, v in value.items() if key != "message"}
    return [_wordless(v) for v in value] if isinstance(value, list) else value


def digest(spec: PolicySpec, seed: int) -> str:
    """Of every plan of a pool that is crowded, and in which runs are stopped, lowered and preempted."""
    world = QuotaWorld(NODES, spec, arrivals(seed, JOBS, 100), seed)
    found = hashlib.sha256()
    for plan in world.run(TICKS):
        found.update(dumps(_wordless(encode(plan))).encode() + b"\n")
    assert world.ended
    return found.hexdigest()


if __name__ == "__main__":
    json.dump({name(s): [digest(s, n) for n in range(SEEDS)] for s in POLICIES}, sys.stdout, indent=1)
    print()
