"""The `evalstop` command, also `kubectl rlhf`: one file per subcommand (`controller.cli.places`).

A command's file is loaded when the command is asked for, and at its top nothing that takes long (API client,
plotting): a command that needs it loads it when it runs (tests/cli/test_cli_start.py). The commands that one
waits for do without typer, as long as they are called plainly (`controller.cli.quick`).
"""

from __future__ import annotations

import gc
import io
import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from controller.cli import quick
from controller.cli.places import COMMANDS
from controller.cli.terminal import say

if TYPE_CHECKING:
    from controller.cli.app import app

__all__ = ["COMMANDS", "app", "complete_for_kubectl", "main"]


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from controller.cli.app import app

    return app


def main() -> None:
    """Entry point of the console scripts `evalstop` and `kubectl-rlhf`."""
    gc.set_threshold(100_000)  # what a command imports stays: it need not be looked through again and again
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a name that the terminal cannot show ends no command
    plugin = os.path.basename(sys.argv[0]).startswith("kubectl")
    if not plugin and "_EVALSTOP_COMPLETE" in os.environ:
        code = quick.complete(os.environ)
    else:
        code = quick.run(sys.argv[1:])
    if code is not None:
        _end(code)
    from controller.cli.app import app

    app(prog_name="kubectl rlhf" if plugin else "evalstop")


def _end(code: int) -> NoReturn:
    """End the process without taking apart what it loaded, which takes as long as loading a part of it."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(code)


def complete_for_kubectl() -> None:
    """Entry point of `kubectl_complete-rlhf`, which kubectl runs for `kubectl rlhf … <TAB>`.

    It is given the words so far, the last one incomplete, and prints candidates, one a line, then what to do
    with them: 4 says that no names of files are to be added.
    """
    offered = quick.offered(sys.argv[1:-1], sys.argv[-1]) if len(sys.argv) > 1 else None
    if offered is None:
        offered = _offered_by_typer()
    for line in (*offered, ":4"):
        say(line)


def _offered_by_typer() -> list[str]:
    import contextlib
    import shlex

    from controller.cli.app import app

    words = ["evalstop", *sys.argv[1:]]
    os.environ.update(
        _EVALSTOP_COMPLETE="complete_bash", COMP_WORDS=shlex.join(words), COMP_CWORD=str(len(words) - 1)
    )
    offered = io.StringIO()
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(offered):
        app(prog_name="evalstop", args=[])
    return [line for line in offered.getvalue().splitlines() if line]


if __name__ == "__main__":
    main()
