"""`evalstop export`: a pool's past, from decision logs and RLHFJobs, as a trace for the simulator."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from controller.cli import flags, history_input, output
from controller.cli.connection import USUAL, Connection
from controller.cli.failure import Exit, Failure, command
from controller.policy.wording import counted

if TYPE_CHECKING:
    from sim.traces.trace import Trace

Out = Annotated[Path | None, typer.Option("--out", help="File to write. Default: stdout.", dir_okay=False)]
Evals = Annotated[
    bool, typer.Option("--evals", help="The evals alone, as a CSV that `evalstop rules evaluate` reads.")
]


@command
@flags.connects
def export(
    files: history_input.Files = None,
    out: Out = None,
    evals: Evals = False,
    cluster: history_input.WithCluster = False,
    pool: history_input.PoolName = "",
    no_rotated: history_input.NotRotated = False,
    namespace: history_input.OfNamespace = "",
    connection: Connection = USUAL,
) -> None:
    """Write a pool's past as a trace, for `evalstop what-if` and `evalstop sim replay`.

    From decision logs, from the RLHFJobs in the cluster (no file named), or both. What is not known, and
    what could not be read, is told on stderr and stands in the trace.
    """
    if out is not None and output.is_read(out, files or ()):
        raise Failure(
            Exit.USAGE,
            f"--out: {out} is among the files that are read",
            "name another file: it would be lost",
        )
    trace = history_input.load(
        files or [],
        cluster=cluster,
        pool=pool,
        rotated=not no_rotated,
        connection=connection,
        namespace=namespace,
    )
    try:
        if evals:
            _whole(out, lambda path: _write_evals(trace, path))
        else:
            _whole(out, lambda path: _write(trace, path))
    except BrokenPipeError:
        raise  # who reads stdout has seen enough
    except OSError as error:
        where = f"--out: cannot write {out}" if out else "cannot write to stdout"
        raise Failure(Exit.USAGE, f"{where}: {error.strerror}", "name another file with --out") from None
    for note in trace.notes:
        typer.echo(note, err=True)
    ends: dict[str, int] = {}
    for job in trace.jobs:
        if job.past is not None:
            ends[str(job.past.end).lower()] = ends.get(str(job.past.end).lower(), 0) + 1
    how = ", ".join(f"{count} {end}" for end, count in sorted(ends.items())) or "no end recorded"
    made = sum(len(job.evals.at) for job in trace.jobs if job.evals is not None)
    typer.echo(
        f"{out or 'stdout'}: {counted(len(trace.jobs), 'job')} ({how}), {counted(made, 'eval')}", err=True
    )


def header(trace: Trace) -> dict[str, Any]:
    """Return what goes into the first line of an exported trace."""
    from dataclasses import asdict

    from sim import quotas
    from sim.traces.own import cluster_entry, guardrails_entry, spec_entry

    found: dict[str, Any] = {}
    if trace.cluster is not None:
        found["cluster"] = cluster_entry(trace.cluster)
    if trace.policy is not None:
        found["policy"] = spec_entry(trace.policy)
    if trace.quotas:
        found["quotas"] = quotas.entry(trace.quotas)
    if trace.rule is not None:
        found["rule"] = spec_entry(trace.rule.rule)
        found["modifiers"] = [spec_entry(modifier) for modifier in trace.rule.modifiers]
        found |= guardrails_entry(trace.rule)
    if trace.latencies is not None:
        found["run"] = {"setting": {"latencies": asdict(trace.latencies)}}
    found["history"] = {**trace.history, "left_out": dict(trace.left_out), "notes": trace.notes}
    return found


def _write(trace: Trace, path: Path) -> None:
    from sim.traces.own import write_own

    write_own(path, trace.jobs, header(trace))


def _write_evals(trace: Trace, path: Path) -> None:
    """Write the evals alone. Raises Failure: there is none."""
    from sim.rules import history
    from sim.rules.trace_series import series_of

    series = series_of(trace.jobs)
    if not series:
        raise Failure(Exit.REFUSED, "no job of that history made an eval", "evalstop export without --evals")
    history.write(path, series)


def _whole(out: Path | None, write: Callable[[Path], None]) -> None:
    """Whole or not at all: a file that is there already stays until the new one is complete."""
    if out is None:
        with tempfile.TemporaryDirectory(prefix="evalstop-export-") as folder:
            whole = Path(folder) / "whole"
            write(whole)
            with whole.open(encoding="utf-8", newline="") as lines:
                for line in lines:
                    typer.echo(line, nl=False)
        return
    beside = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        write(beside)
        beside.replace(out)
    finally:
        beside.unlink(missing_ok=True)
