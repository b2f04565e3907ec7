"""Timelines, facts and calibrations for the tests of parity."""

from __future__ import annotations

import json
from collections.abc import Sequence

from controller.parity.calibration import Calibration, Measured, measure
from controller.parity.facts import Admitted, Facts, Words
from controller.parity.report import Report
from controller.parity.timeline import How, Lived, Stay, Timeline

DELAYS = {
    "queue_delay": 0.5,
    "start_delay": 1.0,
    "eval_delay": 2.0,
    "retain_time": 1.0,
    "preempt_delay": 3.0,
    "suspend_delay": 0.5,
    "end_delay": 1.0,
    "handover_delay": 0.25,
}
CALIBRATED = Calibration(tuple(Measured(name, 4, mean, 0.1, "a, b") for name, mean in DELAYS.items()))

Row = (
    tuple[float, float, How]
    | tuple[float, float, How, float | None]
    | tuple[float, float, How, float | None, tuple[str, ...]]
)


def timeline(**jobs: tuple[float, Sequence[Row]]) -> Timeline:
    """``a=(0.0, [(1.0, 5.0, How.END)])``: submission, and (admitted, freed, how, decided, nodes) of each."""
    return Timeline(
        tuple(
            Lived(key, 1, submitted, tuple(Stay(*row) for row in rows))
            for key, (submitted, rows) in jobs.items()
        )
    )


def facts(key: str, *, at: float = 0.0, began: float = 1.0, ended: float = 10.0, seen: float = 11.0) -> Facts:
    """A job admitted at ``at`` that trained from ``began`` to ``ended``, which was seen at ``seen``."""
    found = Facts(key, 1, submitted=at, ended=seen)
    found.admissions[1] = Admitted(at, words=Words(began, ended, 0.0, ended - began, False))
    return found


def told(lived: Timeline) -> list[Facts]:
    """What a cluster would have told of these stays, had each delay been exactly `DELAYS`."""
    found = []
    for job in lived.jobs:
        one = Facts(job.key, job.gpus, submitted=job.submitted)
        trained = 0.0
        for number, stay in enumerate(job.stays, start=1):
            left = DELAYS["end_delay" if stay.how is How.END else "suspend_delay"]
            began, ended = stay.admitted + DELAYS["start_delay"], stay.freed - left
            admitted = one.admissions[number] = Admitted(stay.admitted, nodes=stay.nodes)
            if ended >= began:
                to = trained + ended - began
                admitted.words = Words(began, ended, trained, to, stay.how is not How.END)
                trained = to
            if stay.how is How.PREEMPT:
                admitted.preempted, admitted.back = stay.decided, stay.freed
            elif stay.how is How.STOP:
                one.decided, one.pods_gone = stay.decided, stay.freed
            else:
                one.ended = stay.freed
        found.append(one)
    return found


def calibration_facts() -> list[Facts]:
    """Jobs from which exactly `DELAYS` are measured: one that ends, one preempted, one stopped, one next."""
    d = DELAYS
    ends = Facts("ends", 1, submitted=0.0)
    trained = d["queue_delay"] + d["start_delay"]
    ends.admissions[1] = Admitted(d["queue_delay"], words=Words(trained, trained + 8, 0, 8, False))
    ends.done[1] = trained + 8 + d["end_delay"]
    ends.ended = ends.done[1] + 2.0  # the status tells later

    gives_way = Facts("gives-way", 1, submitted=0.0)
    told = 3.0 + d["preempt_delay"]
    gives_way.admissions[1] = Admitted(
        d["queue_delay"],
        preempted=3.0,
        back=told + d["suspend_delay"],
        words=Words(trained, told, 0, 4, True),
    )
    stops = Facts("stops", 1, submitted=0.0, decided=4.0 + d["eval_delay"], decided_step=300)
    left = stops.decided + d["retain_time"]  # type: ignore[operator]
    stops.admissions[1] = Admitted(
        d["queue_delay"], words=Words(trained, left, 0, 4, True, ((200, 3.0), (300, 4.0)))
    )
    stops.pods_gone = left + d["suspend_delay"]
    # After the last of these GPUs came free.
    waits = Facts("waits", 1, submitted=1.0)
    at = ends.done[1] + d["handover_delay"]
    waits.admissions[1] = Admitted(at, words=Words(at + d["start_delay"], at + 5, 0, 4, False))
    return [ends, gives_way, stops, waits]


def known_overheads() -> str:
    """What `evalstop parity --overheads` reads, of these jobs."""
    return json.dumps(Report({}, measure([calibration_facts()]), ()).document())
