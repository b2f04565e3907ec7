"""The story itself: submit the jobs, look on until all is over, then say what happened."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console

from controller.policy.wording import counted
from deploy.local.demo.board import Board
from deploy.local.demo.cast import NAMESPACE, Cast
from deploy.local.demo.facts import Chronicle, Role
from deploy.local.demo.stage import Scene
from deploy.local.demo.watch import Watcher
from deploy.local.errors import PlaneError

_REDRAW_S = 0.25
_SUBMIT_PATIENCE_S = 60.0  # for the first jobs to get their GPUs, before the one that is to wait is submitted


@dataclass(frozen=True)
class DemoOutcome:
    """Outcome of the demo. ``seconds``: from the first submission to the end of the last run, s."""

    chronicles: Sequence[Chronicle]
    seconds: float
    timed_out: bool


def run_story(stage: Scene, cast: Cast, console: Console, patience: float) -> DemoOutcome:
    """Run the story to its end, or for ``patience`` s.

    Errors: PlaneError when the plane or the operator fails on the way.
    """
    chronicles = [Chronicle(f"{NAMESPACE}/{job['metadata']['name']}", role) for job, role in cast.jobs]
    stage.apply(cast.supplies)
    watcher = Watcher(stage.kubeconfig, NAMESPACE)
    began = time.monotonic()
    try:
        with Board(chronicles, stage.node_gpus, console) as board:
            first = [job for job, role in cast.jobs if role is not Role.WAITING]
            late = [job for job, role in cast.jobs if role is Role.WAITING]
            for job in first:
                stage.apply([job])
            board.log(f"submitted {', '.join(job['metadata']['name'] for job in first)}", "bold")
            running = [c for c in chronicles if c.role is not Role.WAITING]
            if not _follow(
                board, watcher, stage, began + _SUBMIT_PATIENCE_S, lambda: all(map(_runs, running))
            ):
                states = ", ".join(
                    f"{c.name}: {c.summary or 'not looked at'}, {_start_condition(c)}" for c in running
                )
                raise PlaneError(
                    f"the first jobs do not run after {_SUBMIT_PATIENCE_S:g} s ({states}); "
                    f"pods: {board.pods()}; the operator's last words:\n{stage.operator_log()}"
                )
            stage.apply(late)
            board.log(
                f"submitted {', '.join(job['metadata']['name'] for job in late)}: no GPU is free", "bold"
            )
            done = _follow(
                board,
                watcher,
                stage,
                began + patience,
                lambda: all(c.finished and _quiet(c) for c in chronicles),
            )
    finally:
        watcher.close()
    return DemoOutcome(chronicles, time.monotonic() - began, not done)


def _runs(c: Chronicle) -> bool:
    """Return whether it runs, or did: of a run that was seen too late its evals tell."""
    return bool(c.evals) or (c.admission is not None and c.admission.running_since is not None)


def _start_condition(c: Chronicle) -> str:
    """Return what was seen of its start, for an error."""
    if c.admission is None:
        return f"no admission seen, {counted(len(c.evals), 'eval')}"
    return f"running since {c.admission.running_since}, {counted(len(c.evals), 'eval')}"


def _quiet(c: Chronicle) -> bool:
    """Nothing that the summary tells is still to come."""
    return c.role is not Role.OVER_OPTIMISING or not c.stopped or bool(c.record.retained)


def _follow(board: Board, watcher: Watcher, stage: Scene, deadline: float, over: Callable[[], bool]) -> bool:
    """Take changes in and redraw until it is over (True) or the deadline has passed (False)."""
    checked = time.monotonic()
    while not over():
        now = time.monotonic()
        if now > deadline:
            return False
        if now - checked > 5.0:
            checked = now
            if problem := stage.problem():
                raise PlaneError(f"the cluster broke down: {problem}")
        end = now + _REDRAW_S
        while (left := end - time.monotonic()) > 0:
            try:
                board.take(watcher.changes.get(timeout=left))
            except queue.Empty:
                break
        board.refresh()
    board.refresh()
    return True
