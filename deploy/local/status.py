"""The status of a local control plane: its processes, and whether it is up."""

import dataclasses

from deploy.local import processes
from deploy.local.control import ProcessReport, State


@dataclasses.dataclass(frozen=True)
class ProcessStatus:
    """One process of the plane. `state`: running, exited (by itself) or stopped (on request)."""

    name: str
    state: str
    pid: int | None
    exit_code: int | None
    memory_bytes: int | None


@dataclasses.dataclass(frozen=True)
class Status:
    """The plane as `status` found it."""

    up: bool  # no process has left by itself, and the API server says that it is ready
    url: str | None
    problem: str | None  # why it is not up; None when it is, or when nothing runs
    processes: tuple[ProcessStatus, ...]


def of_process(kept: ProcessReport, state: State) -> ProcessStatus:
    """Return one process as the plane's supervisor has it on record, and as the machine shows it."""
    running = kept.running
    word = "running" if running else "exited" if state.kept_up and not kept.stopped else "stopped"
    memory = processes.resident_bytes(kept.process.pid) if running else None
    return ProcessStatus(kept.name, word, kept.process.pid if running else None, kept.exit_code, memory)
