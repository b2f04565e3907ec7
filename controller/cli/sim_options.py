"""Options that several `evalstop sim` commands share, and how they are read. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sim.experiments.findings import Findings

UNUSABLE = 2

Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout; nothing else goes there.")]
Table = Annotated[
    Path | None, typer.Option("--table", help="Write every figure to this file, .csv or .parquet (tidy).")
]
Html = Annotated[Path | None, typer.Option("--html", help="Write a page with plots to this file.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting; `evalstop sim settings` lists them."),
]
NumberSet = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A number of the setting; a wrong NAME lists them."),
]
Workers = Annotated[int | None, typer.Option(help="Processes; default: one for each core.", min=1)]
Base = Annotated[str, typer.Option(help="Base queue policy, NAME or NAME:param=value,…")]
Rule = Annotated[
    str,
    typer.Option(
        help="Stop rule, NAME:param=value,…; modifiers follow after a +, guardrails (METRIC=RULE) after a |."
    ),
]


@contextmanager
def refusing() -> Iterator[None]:
    """End the command with a message and exit code 2 if something that was given cannot be used."""
    try:
        yield
    except (ValueError, OSError) as error:
        problem = str(error)
        if isinstance(error, OSError) and error.filename is not None:
            problem = f"cannot read {error.filename}: {error.strerror}; name a file"
        typer.echo(f"evalstop sim: {problem}", err=True)
        raise typer.Exit(UNUSABLE) from None


def pairs(texts: list[str] | None) -> dict[str, str]:
    """``NAME=VALUE`` texts by name.

    Raises:
        ValueError: a text is not of that form.
    """
    values = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"--set: {text!r} is not allowed, expected NAME=VALUE")
        values[name.strip()] = value.strip()
    return values


def check_outputs(table: Path | None, html: Path | None) -> None:
    """Refuse what could not be written before any work is done."""
    if table is not None:
        from sim.report.files import check_table_path

        check_table_path(table)
    if html is not None and not html.absolute().parent.is_dir():
        raise ValueError(f"html: {str(html)!r} is not allowed, expected a file in a folder that exists")


def put_out(
    findings: Findings,
    *,
    as_json: bool,
    table: Path | None,
    html: Callable[[], None] | None = None,
    plain: bool = False,
) -> None:
    """Write findings to the files that were asked for, and to stdout.

    Args:
        findings: what an experiment found.
        as_json: whether stdout gets JSON; else a table.
        table: file for the rows; None: no file.
        html: writes the page; None: no page.
        plain: whether the table is plain text; else it is drawn for a terminal.
    """
    if table is not None:
        from sim.report.files import write_table

        write_table(table, [findings])
    if html is not None:
        html()
    if as_json:
        import json

        typer.echo(json.dumps(findings.document(), allow_nan=False))
    elif plain:
        from sim.report.plain import text

        typer.echo(text(findings), nl=False)
    else:
        from sim.report.terminal import show

        show(findings)
