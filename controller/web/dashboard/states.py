"""The states of a job as words, shapes and groups: colour never tells anything alone."""

from __future__ import annotations

from typing import NamedTuple


class State(NamedTuple):
    """``shape`` stands before the word, ``tone`` picks the colour, lists are filtered by ``group``."""

    word: str
    shape: str
    tone: str  # good | busy | wait | warn | stop | bad | done
    group: str  # running | waiting | stopped | ended | refused
    meaning: str


_STATES = (
    State("Running", "●", "good", "running", "trains, and its evals are read"),
    State("Crashing", "↯", "bad", "running", "holds its GPUs; its trainer, or its group's worker, ends"),
    State("NotStarting", "⊘", "bad", "running", "holds its GPUs; a pod waits for what does not come"),
    State("Unsafe", "△", "bad", "running", "trains; its best checkpoint is not in safety"),
    State("Unwatched", "◎", "bad", "running", "trains; its evals are not read"),
    State("Blind", "◑", "bad", "running", "trains; its rule lacks what it judges by, or can stop nothing"),
    State("WouldStop", "▽", "warn", "running", "trains, in Shadow; its rule would have stopped it"),
    State("Declining", "▼", "warn", "running", "trains; its stop rule says that it is past its best"),
    State("Demoted", "◆", "warn", "running", "trains; gives way to every job that waits"),
    State(
        "RunsOn", "‼", "bad", "running", "holds its GPUs; its spec cannot be carried out, so no rule stops it"
    ),
    State("Starting", "◐", "busy", "running", "has its GPUs; not all pods are ready yet"),
    State("Stopping", "◼", "stop", "running", "its stop is decided and being carried out"),
    State("Queued", "○", "wait", "waiting", "waits for GPUs"),
    State("Preempting", "◌", "wait", "waiting", "gives its GPUs back and queues again"),
    State("Unfit", "✕", "bad", "waiting", "asks for more GPUs than its pool has"),
    State("New", "·", "wait", "waiting", "the operator has not looked at it yet"),
    State("Stopped", "■", "stop", "stopped", "stopped by its rule or its user"),
    State("Completed", "✓", "done", "ended", "ran to its end"),
    State("Failed", "✗", "bad", "ended", "its workload failed"),
    State("Refused", "!", "bad", "refused", "its spec cannot be carried out"),
    State("Unreadable", "?", "bad", "refused", "this version cannot read it"),
)
STATES = {state.word: state for state in _STATES}
GROUPS = ("running", "waiting", "stopped", "ended", "refused")


def state(word: str) -> State:
    """Return a state by its word; one of a newer version shows as it is."""
    return STATES.get(word) or State(word, "·", "wait", "waiting", "a state that this version does not know")
