"""The `evalstop` command, also `kubectl rlhf`: one file per subcommand, listed here.

A command's file is loaded when the command is asked for, and at its top nothing that takes long (API client,
plotting): a command that needs it loads it when it runs (tests/cli/test_cli_start.py).
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from controller.cli import flags, lazy_group
from controller.cli.lazy_group import Place

LOOK, ACT, RUN, STUDY = "Look", "Act", "Run it", "Study"

COMMANDS = {
    "list": Place(LOOK, "controller.cli.jobs", "list_jobs"),
    "get": Place(LOOK, "controller.cli.get", "get"),
    "why": Place(LOOK, "controller.cli.why", "why"),
    "history": Place(LOOK, "controller.cli.history", "history"),
    "pools": Place(LOOK, "controller.cli.pools", "pools"),
    "rollouts": Place(LOOK, "controller.cli.rollouts", "rollouts"),
    "groups": Place(LOOK, "controller.cli.groups", "groups"),
    "queue": Place(LOOK, "controller.cli.queue", "queue"),
    "top": Place(LOOK, "controller.cli.top", "top"),
    "dashboard": Place(LOOK, "controller.cli.dashboard", "dashboard"),
    "mode": Place(ACT, "controller.cli.change", "mode"),
    "stop": Place(ACT, "controller.cli.change", "stop"),
    "resume": Place(ACT, "controller.cli.change", "resume"),
    "pin": Place(ACT, "controller.cli.pin", "pin"),
    "report": Place(STUDY, "controller.cli.report", "report"),
    "simulate": Place(STUDY, "controller.cli.simulate", "simulate"),
    "export": Place(STUDY, "controller.cli.export", "export"),
    "what-if": Place(STUDY, "controller.cli.what_if", "what_if"),
    "replay": Place(STUDY, "controller.cli.replay", "replay"),
    "parity": Place(STUDY, "controller.cli.parity", "parity"),
    "rules": Place(STUDY, "controller.cli.rules", "app"),
    "sim": Place(STUDY, "controller.cli.sim", "app"),
    "extender": Place(RUN, "controller.cli.extender", "app"),
    "check": Place(RUN, "controller.cli.check", "check"),
    "checkpoints": Place(LOOK, "controller.cli.checkpoints", "checkpoints"),
    "doctor": Place(RUN, "controller.cli.doctor.command", "doctor"),
    "version": Place(RUN, "controller.cli.version", "version"),
}

app = typer.Typer(
    name="evalstop",
    cls=lazy_group.group(COMMANDS),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        from controller.cli import version

        version.version()
        raise typer.Exit


@app.callback()
def before(
    namespace: flags.Namespace = "",
    kubeconfig: flags.Kubeconfig = "",
    context: flags.Context = "",
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Stop RLHF runs that are past their best, and explain why (EvalStop on Kubernetes)."""
    flags.BEFORE.update(namespace=namespace, kubeconfig=kubeconfig, context=context)


def main() -> None:
    """Entry point of the console scripts `evalstop` and `kubectl-rlhf`."""
    gc.set_threshold(100_000)  # what a command imports stays: it need not be looked through again and again
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a name that the terminal cannot show ends no command
    plugin = Path(sys.argv[0]).name.startswith("kubectl")
    app(prog_name="kubectl rlhf" if plugin else "evalstop")


def complete_for_kubectl() -> None:
    """Entry point of `kubectl_complete-rlhf`, which kubectl runs for `kubectl rlhf … <TAB>`.

    It is given the words so far, the last one incomplete, and prints candidates, one a line, then what to do
    with them: 4 says that no names of files are to be added.
    """
    words = ["evalstop", *sys.argv[1:]]
    os.environ.update(
        _EVALSTOP_COMPLETE="complete_bash", COMP_WORDS=shlex.join(words), COMP_CWORD=str(len(words) - 1)
    )
    offered = io.StringIO()
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(offered):
        app(prog_name="evalstop", args=[])
    for line in filter(None, [*offered.getvalue().splitlines(), ":4"]):
        typer.echo(line)


if __name__ == "__main__":
    main()
