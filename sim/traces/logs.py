"""The logs that are known, as they were published. One entry each; docs/use/traces.md prints this table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil

from sim.traces.columns import Cells, Column, Log, gpus, moment, number, seconds, text, time, whole


def _none_of(column: str) -> Callable[[Cells], str]:
    """Return a function that says of a row why it is left out: "no GPUs", or "" if ``column`` has some."""
    return lambda cells: "no GPUs" if cells.get(column, "").strip() in ("0", "0.0", "") else ""


def _pod(cells: Cells) -> str:
    if cells.get("num_gpu", "").strip() in ("0", ""):
        return "no GPUs"
    if not cells.get("scheduled_time", "").strip():
        return "never scheduled"
    return "" if cells.get("deletion_time", "").strip() else "not over when the log ended"


def _not_started(cells: Cells) -> str:
    if reason := _none_of("gpu_num")(cells):
        return reason
    started = cells.get("start_time", "").strip()
    return "never started" if started in ("", "None", "NaN", "nan") else ""


def _rounded_up(text_: str) -> int:
    """Shares of a GPU take a whole one: the simulator does not split GPUs."""
    return ceil(number(text_))


def _from_ms(text_: str) -> float:
    return number(text_) / 1000.0


_SLURM: Mapping[str, Column] = {
    "key": text("job_id"),
    "tenant": text("user"),
    "submitted": time("submit_time"),
    "gpus": gpus("gpu_num"),
    "work": seconds("duration"),
}

OWN = Log(
    "evalstop-csv",
    "our own, without evals",
    {
        "key": text("job"),
        "submitted": seconds("submitted"),
        "gpus": gpus("gpus"),
        "work": seconds("work"),
        "gpus_per_replica": Column(("gpus_per_replica",), whole, "a whole number of GPUs", optional=True),
        "priority": Column(("priority",), whole, "a whole number", optional=True),
        "weight": Column(("weight",), number, "a finite number", optional=True),
        "estimate": seconds("estimate", optional=True),
        "group": text("group", optional=True),
    },
    frozenset({"job", "submitted", "gpus", "work"}),
    ordered=True,
)

LOGS: Mapping[str, Log] = {
    log.name: log
    for log in (
        OWN,
        Log(
            "philly-csv",
            "Microsoft Philly, 82k jobs",
            {
                "tenant": text("cluster"),
                "submitted": time("timestamp"),
                "gpus": gpus("num_gpus"),
                "work": seconds("duration"),
            },
            frozenset({"timestamp", "duration", "num_gpus", "gpu_time", "cluster"}),
            notes=("Times have no time zone; they are taken as they stand.",),
        ),
        Log(
            "openb",
            "Alibaba 2023, pods",
            {
                "key": text("name"),
                "tenant": text("qos"),
                "submitted": time("creation_time"),
                "gpus": gpus("num_gpu"),
                "work": Column(
                    ("scheduled_time", "deletion_time"),
                    moment,
                    "a time in seconds",
                    join=lambda start, end: end - start,
                ),
            },
            frozenset({"name", "num_gpu", "gpu_milli", "creation_time", "deletion_time", "scheduled_time"}),
            leave_out=_pod,
            notes=("A pod with a share of a GPU (gpu_milli below 1000) takes a whole one here.",),
        ),
        Log(
            "acme-kalos",
            "Shanghai AI Lab, Kalos",
            {**_SLURM, "group": text("type")},
            frozenset({"job_id", "user", "gpu_num", "type", "duration", "fail_time", "stop_time"}),
            leave_out=_not_started,
            notes=("`duration` is taken as published; in Kalos it can exceed end minus start.",),
        ),
        Log(
            "acme-seren",
            "Shanghai AI Lab, Seren",
            {**_SLURM, "group": text("type")},
            frozenset({"job_id", "user", "node_num", "gpu_num", "type", "duration", "gpu_time"}),
            leave_out=_not_started,
        ),
        Log(
            "helios",
            "SenseTime Helios",
            {**_SLURM, "tenant": text("vc")},
            frozenset({"job_id", "user", "vc", "gpu_num", "cpu_num", "node_num", "duration"}),
            leave_out=_not_started,
            notes=("Times are local and have no time zone; they are taken as they stand.",),
        ),
        Log(
            "pai",
            "Alibaba PAI 2020, jobs",
            {
                "key": text("job_id"),
                "tenant": text("user"),
                "submitted": time("submit_time"),
                "gpus": Column(("num_gpu",), _rounded_up, "a number of GPUs"),
                "work": seconds("duration"),
            },
            frozenset({"job_id", "user", "submit_time", "duration", "num_gpu", "num_inst", "gpu_type"}),
            leave_out=_none_of("num_gpu"),
            notes=("A share of a GPU takes a whole one here; num_gpu is that of the whole job.",),
        ),
        Log(
            "muri",
            "Muri's extracts of Philly",
            {
                "key": text("job_id"),
                "submitted": Column(("submit_time",), _from_ms, "a time in milliseconds"),
                "gpus": gpus("num_gpu"),
                "work": Column(("duration",), _from_ms, "a duration in milliseconds"),
            },
            frozenset(
                {"job_id", "num_gpu", "submit_time", "iterations", "model_name", "duration", "interval"}
            ),
        ),
    )
}
