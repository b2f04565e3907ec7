"""The formats that are read, in words: printed by `evalstop sim formats`, and in docs/use/traces.md."""

from __future__ import annotations

from sim.traces import own, philly_json, trainer
from sim.traces.logs import LOGS
from sim.traces.read import DECISIONS

OTHERS = {
    own.NAME: "our own, JSON lines: a header, then one job a line (docs/use/traces.md)",
    philly_json.NAME: "Microsoft Philly's cluster_job_log: a JSON array of jobs with attempts",
    trainer.NAME: "a recording of the example trainer: JSON lines with step, gold and time",
    DECISIONS: "a decision log of the operator",
}


def describe() -> str:
    """Return one line for each format; for a CSV its columns, by what they are to a job."""
    lines = [f"{name}: {doc}" for name, doc in OTHERS.items()]
    for log in LOGS.values():
        columns = ", ".join(
            f"{field} = {column.title}" + (" (optional)" if column.optional else "")
            for field, column in log.columns.items()
        )
        lines.append(f"{log.name}: {log.doc}, CSV; {columns}")
    return "\n".join(lines) + "\n"
