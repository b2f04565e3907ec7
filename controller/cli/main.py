"""The `evalstop` command, also `kubectl rlhf`: one file per subcommand, listed here.

Nothing here or at the top of those files loads what takes long (API client, plotting): a command that needs
it loads it when it runs (tests/cli/test_cli_start.py).
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from controller.cli import (
    change,
    checkpoints,
    dashboard,
    export,
    extender,
    flags,
    get,
    history,
    jobs,
    parity,
    pin,
    pools,
    queue,
    replay,
    rules,
    sim,
    simulate,
    top,
    version,
    what_if,
    why,
)
from controller.cli.doctor import command as doctor

LOOK, ACT, RUN, STUDY = "Look", "Act", "Run it", "Study"

app = typer.Typer(
    name="evalstop",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
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


app.command("list", rich_help_panel=LOOK)(jobs.list_jobs)
app.command("get", rich_help_panel=LOOK)(get.get)
app.command("why", rich_help_panel=LOOK)(why.why)
app.command("history", rich_help_panel=LOOK)(history.history)
app.command("pools", rich_help_panel=LOOK)(pools.pools)
app.command("queue", rich_help_panel=LOOK)(queue.queue)
app.command("top", rich_help_panel=LOOK)(top.top)
app.command("dashboard", rich_help_panel=LOOK)(dashboard.dashboard)
app.command("mode", rich_help_panel=ACT)(change.mode)
app.command("stop", rich_help_panel=ACT)(change.stop)
app.command("resume", rich_help_panel=ACT)(change.resume)
app.command("pin", rich_help_panel=ACT)(pin.pin)
app.command("simulate", rich_help_panel=STUDY)(simulate.simulate)
app.command("export", rich_help_panel=STUDY)(export.export)
app.command("what-if", rich_help_panel=STUDY)(what_if.what_if)
app.command("replay", rich_help_panel=STUDY)(replay.replay)
app.command("parity", rich_help_panel=STUDY)(parity.parity)
app.add_typer(rules.app, rich_help_panel=STUDY)
app.add_typer(sim.app, rich_help_panel=STUDY)
app.add_typer(extender.app, rich_help_panel=RUN)
app.command("checkpoints", rich_help_panel=LOOK)(checkpoints.checkpoints)
app.command("doctor", rich_help_panel=RUN)(doctor.doctor)
app.command("version", rich_help_panel=RUN)(version.version)


def main() -> None:
    """Entry point of the console scripts `evalstop` and `kubectl-rlhf`."""
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
