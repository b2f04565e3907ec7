"""The commands as typer takes them; each is loaded when it is asked for (`controller.cli.lazy_group`)."""

from __future__ import annotations

from typing import Annotated

import typer

from controller.cli import flags, lazy_group
from controller.cli.places import COMMANDS

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
