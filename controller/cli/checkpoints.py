"""`evalstop checkpoints`: what an access Job would find in a folder. It needs no cluster.

Exit codes: 0 a checkpoint is whole, and could be pinned by the user asked for; 1 none is; 2 the folder cannot
be used, or which layout it has is not known.
"""

from __future__ import annotations

import json as json_module
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controller import names
from controller.cli import formatting, output
from controller.cli.failure import Exit, Failure, command
from controller.cli.table import Column, render
from controller.cli.terminal import terminal

if TYPE_CHECKING:
    from controller.checkpoints.listing import Listed
    from controller.checkpoints.recognition import Recognised
    from controller.checkpoints.store import Store

HEAD = (
    Column("STEP", right=True),
    Column("NAME"),
    Column("WHOLE"),
    Column("EVIDENCE", gives_way=2),
    Column("SIZE", right=True),
    Column("PIN", gives_way=1),
    Column("LOADS, OR WHY NOT", text=True),
)


def _layouts() -> list[str]:
    from controller.checkpoints.layouts import LAYOUTS

    return [names.AUTO_LAYOUT, *LAYOUTS]


Folder = Annotated[
    Path,
    typer.Argument(
        metavar="FOLDER",
        help="The folder that the trainer writes its checkpoints to.",
        exists=True,
        file_okay=False,
        resolve_path=True,
    ),
]
Layout = Annotated[
    str,
    typer.Option("--layout", help="Whose habits the folder follows; Auto: found.", autocompletion=_layouts),
]
As = Annotated[
    str,
    typer.Option(
        "--as", metavar="UID[:GID,...]", help="Say whether an access Job of this user could pin them."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout; nothing else goes there.")]


@command
def checkpoints(
    folder: Folder, layout: Layout = names.AUTO_LAYOUT, user: As = "", json: Json = False
) -> None:
    """List the checkpoints in FOLDER: whole or why not, by which evidence, and what loads them.

    They are judged as an access Job judges them, as they lie there now. With --as the owners and modes of
    files and folders are asked whether such a Job could pin them, and how.
    """
    from controller.checkpoints.errors import AccessError
    from controller.checkpoints.listing import listed
    from controller.checkpoints.rights import User
    from controller.checkpoints.volume import Volume

    try:
        who = User.parse(user) if user else None
        store = Volume(os.fspath(folder))
        chosen = _chosen(store, layout)
        found = listed(store, chosen.layout, who)
    except (AccessError, ValueError, OSError) as error:
        raise Failure(Exit.USAGE, str(error)) from None
    if json:
        document = {
            "folder": str(folder),
            "layout": chosen.layout.name,
            "by": chosen.by or None,
            "checkpoints": [one.to_json() for one in found],
        }
        typer.echo(json_module.dumps(document, indent=2))
    else:
        output.lines(_page(found, chosen))
    if not any(one.problem is None and (one.pinning is None or one.pinning.method) for one in found):
        raise typer.Exit(Exit.REFUSED)


def _chosen(store: Store, layout: str) -> Recognised:
    """Return the layout that was named, or the only one that fits. Raises: Failure, none or several do."""
    from controller.checkpoints.layouts import LAYOUTS
    from controller.checkpoints.recognition import Recognised, recognised, several

    if layout in LAYOUTS:
        return Recognised(LAYOUTS[layout], "")
    if layout != names.AUTO_LAYOUT:
        raise Failure(Exit.USAGE, f"--layout: {layout!r}, expected one of {', '.join(_layouts())}")
    found = recognised(store)
    if len(found) == 1:
        return found[0]
    what = f"{several(found)} fit" if found else "no checkpoint of any known layout is in it"
    raise Failure(Exit.USAGE, f"{store.root}: {what}", "say which layout it has by --layout")


def _page(found: Sequence[Listed], chosen: Recognised) -> list[str]:
    by = f", by {chosen.by}" if chosen.by else ""
    head = [f"layout {chosen.layout.name}{by}", ""]
    if not found:
        return [*head, "no checkpoints"]
    columns = [c for c in HEAD if c.title != "PIN" or found[0].pinning is not None]
    return [*head, *render(columns, [_row(one) for one in found], terminal())]


def _row(one: Listed) -> list[str]:
    whole = "yes" if one.problem is None else "no"
    parts = [one.problem or one.loads]
    row = [str(one.step), one.name, whole, one.evidence or "-", formatting.size(one.bytes)]
    if one.pinning is not None:
        row.append(one.pinning.method or "no")
        parts += [one.pinning.problem] if one.pinning.problem else []
    return [*row, "; ".join(parts)]
