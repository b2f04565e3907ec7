"""A story of jobs from its command line to its exit status: 0 if it happened, 1 if not, 130 after Ctrl-C."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from rich.console import Console

from deploy.local.demo.jobs_stage import PlaneStage
from deploy.local.demo.left_up import not_over_another
from deploy.local.demo.told import Row, told
from deploy.local.errors import PlaneError
from deploy.local.plane import Plane


class Findings(Protocol):
    """Findings of a story, a dataclass. ``problems``: things that must not be."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]
    problems: list[str]


Found = TypeVar("Found", bound=Findings)


@dataclasses.dataclass(frozen=True)
class Played(Generic[Found]):
    """A story that is over. ``decisions``: its decision log; ``tour``: lines to paste, "" if nothing is left
    up."""

    result: Found
    decisions: Path
    tour: str


def parsed(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None, left: str, lacks: str
) -> argparse.Namespace:
    """Return the arguments, by a story's own options and those that every story of jobs has.

    Args:
        parser: with the story's own options.
        arguments: None: those of the process.
        left: what is on a cluster that is left up.
        lacks: what a pool whose delegate is Kueue does not have, for which the story cannot be played.

    Raises:
        SystemExit: they are not right; what is wrong was printed.
    """
    parser.add_argument("--keep", action="store_true", help=f"leave the cluster up, with {left}")
    parser.add_argument("--fresh", action="store_true", help="end a demo that was left up, and begin anew")
    parser.add_argument(
        "--queue",
        choices=("builtin", "kueue"),
        default="builtin",
        help="who queues the jobs: the pool itself",
    )
    given = parser.parse_args(arguments)
    if given.queue == "kueue":
        parser.error(f"--queue kueue: a pool whose delegate is Kueue has no {lacks}; leave QUEUE out")
    return given


def run(
    story: str,
    given: argparse.Namespace,
    play: Callable[[argparse.Namespace], Played[Found]],
    rows: Callable[[Found], Sequence[Row]],
    pictured: Callable[[Found], Iterable[str]] = lambda result: (),
) -> int:
    """Play a story and print what it found; return the exit status.

    Args:
        story: its name, as in ``make demo STORY=``.
        given: its arguments, as `parsed` returns them.
        play: plays it.
        rows: what it found beside its goals.
        pictured: lines that come before these.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    console = Console(highlight=False)
    began = time.monotonic()
    try:
        not_over_another(given.out, given.fresh, story)
        played = play(given)
    except PlaneError as error:
        console.print(f"error: {error}", style="bold red", soft_wrap=True, markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("interrupted; every process of the demo was ended")
        return 130
    return report(played, rows(played.result), pictured(played.result), given.out, time.monotonic() - began)


def report(
    played: Played[Found], rows: Sequence[Row], pictured: Iterable[str], out: Path, seconds: float
) -> int:
    """Print what a story found, and write it; return the exit status.

    Args:
        played: the story.
        rows: what it found beside its goals.
        pictured: lines that come before these.
        out: folder of its summary.
        seconds: that it took.
    """
    console, result = Console(highlight=False), played.result
    for line in pictured:
        console.print(line, soft_wrap=True, markup=False)
    told(rows, result.problems, played.decisions, console)
    summary = write(result, out)
    for problem in result.problems:
        console.print(f"not as it should be: {problem}", style="bold red", soft_wrap=True, markup=False)
    if played.tour:
        console.print(played.tour, soft_wrap=True, markup=False)
    console.print(f"facts: {summary}; the whole story took {seconds:.0f} s")
    return 1 if result.problems else 0


def acted(
    built: PlaneStage,
    given: argparse.Namespace,
    result: Found,
    acts: Iterable[Callable[[], None]],
    leave: Callable[[], None],
    tour: Callable[[Plane], str],
) -> Played[Found]:
    """Play a story's acts on its stage, and leave the cluster up if that was asked for.

    Args:
        built: the stage.
        given: the story's arguments.
        result: what the acts find; it is written after each.
        acts: play one each.
        leave: leaves jobs behind on a cluster that is left up.
        tour: returns lines to paste for it.
    """
    for act in acts:
        act()
        write(result, given.out)  # a later act may fail
    if not given.keep:
        return Played(result, built.decisions, "")
    decisions = Path(shutil.copy(built.decisions, given.out))  # that one goes on
    leave()
    words = tour(built.plane)
    built.plane.detach()
    return Played(result, decisions, words)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def write(result: Findings, out: Path) -> Path:
    """Write what was found so far; return the file."""
    summary = out / "summary.json"
    summary.write_text(json.dumps(dataclasses.asdict(result), indent=1) + "\n")
    return summary
