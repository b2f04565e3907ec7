"""Display of the demo while it runs: a live table on a terminal, plain lines elsewhere.

It shows only what the API says: status and Events of the RLHFJobs, and which pods are bound to which nodes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from controller import names, workloads
from deploy.local.demo.facts import Chronicle, Role
from deploy.local.demo.watch import Change

_COLOUR = {
    "Running": "green",
    "Completed": "bold green",
    "Declining": "yellow",
    "Stopping": "bold red",
    "Stopped": "bold red",
    "Queued": "blue",
    "Starting": "cyan",
    "Refused": "bold red",
    "Failed": "bold red",
}
_ROLE_COLOUR = {Role.OVER_OPTIMISING: "dark_orange", Role.HEALTHY: "green", Role.WAITING: "dodger_blue1"}
_BARS = "▁▂▃▄▅▆▇█"
_CURVE = 24  # evals shown as a curve
# Events of every job's daily round; `kubectl describe` shows them. The rest is the story.
_ROUTINE = frozenset(
    {"Valid", "Queued", "NotAdmitted", "Starting", "NoPods", "Running", "Scraped", "Secured", "NotDeclining"}
    | {"Finished", "PodsTerminating"}
)
_PLAIN_EVERY = 10.0  # s between lines of numbers where nothing can be redrawn


class Board:
    """Feed it changes; it redraws itself (terminal) or prints what is new (elsewhere)."""

    def __init__(self, chronicles: Sequence[Chronicle], nodes: Mapping[str, int], console: Console) -> None:
        self.chronicles = {c.key: c for c in chronicles}
        self._nodes = nodes  # name -> GPUs
        self._console = console
        self._pods: dict[str, Mapping[str, Any]] = {}
        self._logged: set[tuple[str, str]] = set()
        self._states: dict[str, str] = {}
        self._began = time.monotonic()
        self._printed_at = self._began
        self._live = (
            Live(console=console, auto_refresh=False, transient=False) if console.is_terminal else None
        )

    def __enter__(self) -> Board:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.update(self.render(), refresh=True)
            self._live.stop()

    def take(self, change: Change) -> None:
        """Take one change in; new Events and changes of state are told at once."""
        if change.kind == "pods":
            self._take_pod(change)
        elif change.kind == "events" and change.verb == "ADDED":
            self._take_event(change.obj)
        elif change.kind == "jobs" and change.verb in ("ADDED", "MODIFIED"):
            metadata = change.obj["metadata"]
            chronicle = self.chronicles.get(f"{metadata['namespace']}/{metadata['name']}")
            if chronicle is not None and chronicle.see(change.obj):
                self._log_state(chronicle)

    def refresh(self) -> None:
        """Redraw, or print the numbers now and then."""
        if self._live is not None:
            self._live.update(self.render(), refresh=True)
        elif time.monotonic() - self._printed_at >= _PLAIN_EVERY:
            self._printed_at = time.monotonic()
            for c in self.chronicles.values():
                if c.evals and not c.finished:
                    self.log(f"{c.name}: {_numbers(c)}")

    def log(self, text: str, colour: str = "") -> None:
        """One line, with the time, above the table."""
        line = Text.assemble((f"{datetime.now():%H:%M:%S} ", "dim"), (text, colour))
        (self._live.console if self._live else self._console).print(line, soft_wrap=True, highlight=False)

    def _take_pod(self, change: Change) -> None:
        if change.verb == "RELIST":
            self._pods.clear()
            return
        uid = change.obj["metadata"]["uid"]
        terminal = (change.obj.get("status") or {}).get("phase") in ("Succeeded", "Failed")
        if change.verb == "DELETED" or terminal or not change.obj["spec"].get("nodeName"):
            self._pods.pop(uid, None)
        else:
            self._pods[uid] = change.obj

    def _take_event(self, event: Mapping[str, Any]) -> None:
        about = event["involvedObject"]
        key = f"{about.get('namespace')}/{about.get('name')}"
        if about.get("kind") != "RLHFJob" or key not in self.chronicles:
            return
        reason = event.get("reason", "")
        entry = (key, reason + event.get("message", ""))
        starting = reason == "Unreachable" and not self.chronicles[key].evals
        if entry in self._logged or reason in _ROUTINE or starting:
            return
        self._logged.add(entry)
        colour = "yellow" if event.get("type") == "Warning" else ""
        self.log(f"{about['name']}: {reason}: {event.get('message')}", colour)

    def _log_state(self, c: Chronicle) -> None:
        if self._live is None and c.summary and self._states.get(c.key) != c.summary:
            self._states[c.key] = c.summary
            self.log(f"{c.name}: {c.summary}; {_numbers(c)}")

    def render(self) -> Group:
        """Return jobs and nodes as they stand."""
        return Group(self._jobs_table(), self._nodes_line())

    def _jobs_table(self) -> Table:
        seconds = time.monotonic() - self._began
        table = Table(
            title=f"RLHFJobs after {seconds:.0f} s",
            title_justify="left",
            title_style="bold",
            box=box.SIMPLE_HEAD,
            pad_edge=False,
        )
        for header, justify in (
            ("job", "left"),
            ("step", "right"),
            ("eval", "right"),
            ("best", "right"),
            ("streak", "right"),
            ("GPUs", "right"),
            ("state", "left"),
            ("evals", "left"),
        ):
            table.add_column(header, justify=justify, no_wrap=True)  # type: ignore[arg-type]
        for c in self.chronicles.values():
            newest = c.evals[-1] if c.evals else None
            best = c.record.best
            of = f"/{c.total_steps}" if c.total_steps else ""
            table.add_row(
                Text(c.name, style=_ROLE_COLOUR[c.role]),
                f"{newest.step}{of}" if newest else "",
                c.printed.get("eval", ""),
                f"{c.printed.get('best', '')} @{best.step}" if best else "",
                c.printed.get("streak", ""),
                c.printed.get("gpus", ""),
                Text(c.summary, style=_COLOUR.get(c.summary, "")),
                Text(curve([e.score for e in c.evals][-_CURVE:]), style=_ROLE_COLOUR[c.role]),
            )
        return table

    def pods(self) -> str:
        """Return each pod with its phase and the conditions that it does not meet, and why."""
        return "; ".join(sorted(map(_pod_text, self._pods.values()))) or "none"

    def _nodes_line(self) -> Text:
        """Return each node's GPUs, as coloured blocks, by the job whose pods hold them."""
        text = Text("nodes  ")
        for node, gpus in self._nodes.items():
            text.append(f"{node} ", "dim")
            free = gpus
            for pod in self._pods.values():
                held = workloads.gpus(pod["spec"]) if pod["spec"].get("nodeName") == node else 0
                free -= held
                job = (pod["metadata"].get("labels") or {}).get(names.LABEL_JOB, "")
                c = self.chronicles.get(f"{pod['metadata']['namespace']}/{job}")
                text.append("■" * held, _ROLE_COLOUR[c.role] if c else "white")
            text.append("□" * max(free, 0) + "  ", "dim")
        return text


def curve(values: Sequence[float]) -> str:
    """Return a line of bars, one per value, from the lowest to the highest."""
    if not values:
        return ""
    low, high = min(values), max(values)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((v - low) * scale)] for v in values)


def _numbers(c: Chronicle) -> str:
    if not c.evals:
        return f"GPUs {c.printed.get('gpus', '0')}, no eval yet"
    best = c.record.best
    return (
        f"step {c.evals[-1].step}/{c.total_steps}, eval {c.printed.get('eval')}, "
        f"best {c.printed.get('best')} at step {best.step if best else '-'}, "
        f"streak {c.printed.get('streak', '-')}, GPUs {c.printed.get('gpus', '0')}"
    )


def _pod_text(pod: Mapping[str, Any]) -> str:
    status = pod.get("status") or {}
    unmet = [c for c in status.get("conditions") or () if c["status"] != "True"]
    words = [f"not {c['type']}: {c.get('reason') or ''} {c.get('message') or ''}".strip() for c in unmet]
    return f"{pod['metadata']['name']} {status.get('phase')}" + "".join(f", {word}" for word in words)
