"""The sweep over commands: the hostile scene at 80 and 200 columns, and faults put back that it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer.main

from controller.cli import history, jobs, queue
from controller.cli.main import COMMANDS, app
from controller.cli.terminal import Terminal
from tests.sweep import commands
from tests.sweep.hostile import POOL, long_name

FEW = [
    ["list", "-A"], ["list", "-A", "-o", "wide"], ["top", "--once", "-A"], ["pools"], ["pools", POOL],
    *([what, name] for what in ("why", "history") for name in (long_name(3), long_name(6), "huge")),
    ["why", "not-a-number"],
    ["get", long_name(6)], ["why", "minimize"], ["why", "crashing"], ["why", "loading"],
]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[commands.Shell]:
    with commands.shell(Path(tmp_path_factory.mktemp("sweep"))) as found:
        yield found


@pytest.mark.parametrize("columns", commands.COLUMNS)
def test_commands_over_the_hostile_scene(run: commands.Shell, columns: int) -> None:
    # What changes a job, and what looks for faults, says the same at any width: where it is narrow.
    looked = [*FEW, *(commands.acting(run.folder) if columns == min(commands.COLUMNS) else ())]
    found = [
        fault for one in looked for fault in commands.looked_at(run(*one, columns=columns), one, columns)
    ]
    assert [str(fault) for fault in found] == []


def test_each_command_there_is_is_looked_at_and_each_looked_at_is_one(run: commands.Shell) -> None:
    looked = commands.commands(run.queue, run.folder)
    shown = {words[0] for words in looked if "--help" not in words}
    assert shown.isdisjoint(commands.ELSEWHERE)
    assert shown | set(commands.ELSEWHERE) == set(COMMANDS)
    for words in looked:
        command = typer.main.get_command(app)
        rest = list(words)
        while hasattr(command, "commands") and rest != ["--help"]:
            assert rest[0] in command.commands, f"there is no {words}"
            command = command.commands[rest.pop(0)]
        if rest != ["--help"]:
            command.make_context(words[0], rest)


def test_what_everybody_looks_for_is_there(run: commands.Shell) -> None:
    assert [str(fault) for fault in commands.facts(run)] == []


def _namespace_goes(patch: pytest.MonkeyPatch) -> None:
    field = jobs.NAMESPACE
    patch.setattr(jobs, "NAMESPACE", replace(field, column=replace(field.column, gives_way=20)))


def _no_reason(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(jobs, "FIELDS", tuple(f for f in jobs.FIELDS if f.column.title != "REASON"))


def _wide_is_narrow(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(jobs, "fields", lambda wide, everywhere: [jobs.NAMESPACE, *jobs.FIELDS])
    patch.setattr(jobs, "table", lambda found, chosen, now, screen, header=True: jobs.render(
        [f.column for f in chosen], [[f.of(o, now) for f in chosen] for o in found], screen, header
    ))  # fmt: skip


def _cut_at_the_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Terminal, "cut_middle", Terminal.cut)


def _in_ascii(patch: pytest.MonkeyPatch) -> None:
    from controller.cli import top

    known = top.terminal
    patch.setattr(top, "terminal", lambda: replace(known(), unicode=False))


def _as_it_comes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(history, "timeline", lambda job, events: list(history._of_status(job)))


def _twice(patch: pytest.MonkeyPatch) -> None:
    known = history.timeline
    patch.setattr(history, "timeline", lambda job, events: [e for e in known(job, events) for _ in "ab"])


def _node_twice(patch: pytest.MonkeyPatch) -> None:
    from controller.cli import get

    known = get._facts
    patch.setattr(get, "_facts", lambda job, now: [*known(job, now), ("gpus", "planned on node-3, node-3")])


def _no_places(patch: pytest.MonkeyPatch) -> None:
    known: Callable[[list[Any]], None] = queue._show
    patch.setattr(queue, "_show", lambda items: known([{**one, "position": None} for one in items]))


@pytest.mark.parametrize(
    "fault",
    [_namespace_goes, _no_reason, _wide_is_narrow, _cut_at_the_end, _in_ascii, _as_it_comes, _twice,
     _node_twice, _no_places],
)  # fmt: skip
def test_a_fault_that_is_put_back_is_found(
    fault: Callable[[pytest.MonkeyPatch], None], run: commands.Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    assert commands.facts(run) != []
