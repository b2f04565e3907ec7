"""A family of shared worker groups: does it keep what a group relies on, what does it take, and what to
write into the pool.

The checks are the client's (`python -m evalstop_client.conform`), since they run where the family runs: in
its own Python, with its own packages. Here they are started, and shown.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from controller import bounded
from controller.cli.doctor.findings import Finding, note, ok, wrong
from controller.policy.job import Cure

PROGRAM = "evalstop_client.conform"
LONGEST = 1800.0  # s for all checks
_OUTPUT = 4 << 20  # bytes
_CURES = {
    "offload": "give all device memory back in offload(), with every reference to it",
    "sleeper": "keep nothing of the state in the process after offload()",
    "repeatable": "put all that decides a result into a region, random numbers too",
    "changes": "name the region in @function(changes=[…])",
    "regions": "have the same regions, of the same sizes, from load() on",
    "restored": "have copy_in and copy_out copy all of a region",
    "fresh": "have load(fresh=True) make the same state each time: set the seed before it",
    "worker": "see the error; the family's own code raised it",
}


class FamilyReport:
    """The findings of the checks, and what they measured.

    Args:
        document: that they printed.
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.measured: Mapping[str, Any] = document.get("measured") or {}
        self.pool: Mapping[str, Any] | None = document.get("pool")
        self.findings = [_finding(one) for one in document.get("findings") or []]
        self.findings += _times(self.measured)

    def as_yaml(self) -> list[str]:
        """Return what to write into ``GPUPool.spec.sharing`` and ``RLHFJob.spec.sharing``, as lines of
        YAML."""
        if self.pool is None:
            return []
        entry = self.pool
        return [
            "GPUPool:",
            "  spec:",
            "    sharing:",
            "      families:",
            f"      - name: {entry['name']}",
            f"        replicas: {entry['replicas']}",
            "        gpusPerReplica: 1  # of each member's pod",
            f"        deviceBytes: {entry['deviceBytes']}",
            f"        residualBytes: {entry['residualBytes']}",
            f"        hostBytes: {entry['hostBytes']}  # three residents and a spare",
            "        template: …  # of a member's pod; its memory limit has to hold more than hostBytes",
            "RLHFJob:",
            "  spec:",
            "    sharing:",
            f"      family: {entry['name']}",
            f"      stateBytes: {self.measured['stateBytes']}  # of each member",
        ]


def examine(family: str, members: int, python: str, *, gpu: bool) -> FamilyReport:
    """Check a family in the Python that it runs with, and return what is found.

    Args:
        family: ``FILE.py``, ``FILE.py:Class`` or ``package.module:Class``.
        members: processes that work together.
        python: that has the family's packages, and evalstop-client; "": this one.
        gpu: measure GPUs; else a device of shared memory.

    Raises:
        ValueError: there is no such family, or no such Python; the message says what was expected.
    """
    command = [python or sys.executable, "-m", PROGRAM, family, "--members", str(members)]
    command += ["--gpu"] if gpu else []
    try:
        done = subprocess.run(command, capture_output=True, timeout=LONGEST, env=_environment())
    except OSError as error:
        raise ValueError(
            f"{command[0]}: {error.strerror}, expected a Python that has evalstop-client"
        ) from None
    except subprocess.TimeoutExpired:
        return FamilyReport(
            {"findings": [{"level": "WRONG", "about": "worker", "text": f"not done after {LONGEST:g} s"}]}
        )
    errors = done.stderr.decode(errors="replace").strip().splitlines()
    try:
        document = bounded.load(done.stdout.splitlines()[-1], PROGRAM, _OUTPUT)
    except (ValueError, IndexError):
        if any(
            "No module named 'evalstop_client" in line or "No module named evalstop_client" in line
            for line in errors
        ):
            raise ValueError(
                f"{command[0]} has no evalstop-client, expected it: pip install evalstop-client"
            ) from None
        raise ValueError(f"the checks ended with {done.returncode}: {' '.join(errors[-2:])[:400]}") from None
    if "error" in document:
        raise ValueError(str(document["error"]))
    return FamilyReport(document)


def _environment() -> dict[str, str]:
    """Return this process's environment; the family's file may import what lies in the present folder."""
    paths = [os.getcwd(), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def _finding(one: Mapping[str, Any]) -> Finding:
    about, text = str(one["about"]), str(one["text"])
    if one["level"] == "WRONG":
        return wrong(about, text, Cure(_CURES.get(about, "see docs/use/sharing.md")))
    return note(about, text) if one["level"] == "note" else ok(about, text)


def _times(measured: Mapping[str, Any]) -> list[Finding]:
    """Return how long a switch and each function take, which is what sharing is worth."""
    if "loadSeconds" not in measured:
        return []
    load, offload = measured["loadSeconds"], measured["offloadSeconds"]
    found = [
        ok(
            "switch", f"{load + offload:.3f} s: {offload:.3f} s to take a state off, {load:.3f} s to load one"
        ),
    ]
    if "saveSeconds" in measured:
        found.append(ok("release", f"{measured['saveSeconds']:.3f} s to write a new version"))
    each = measured.get("functionSeconds") or {}
    if each:
        text = ", ".join(f"{name} {seconds:.3f} s" for name, seconds in sorted(each.items()))
        found.append(ok("functions", f"longest call of each: {text}"))
    return found


def as_document(report: FamilyReport) -> dict[str, Any]:
    """Return what is measured, as JSON has it."""
    measured: dict[str, Any] = json.loads(json.dumps(report.measured))
    return {"measured": measured, "pool": report.pool}
