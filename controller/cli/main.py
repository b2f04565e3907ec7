"""The `evalstop` command: one file per subcommand, listed here."""

import typer

from controller.cli import extender, queue, replay, rules, sim, version

app = typer.Typer(
    name="evalstop",
    help="EvalStop on Kubernetes: stops RLHF runs that are past their best, and explains why.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("queue")(queue.queue)
app.command("replay")(replay.replay)
app.command("version")(version.version)
app.add_typer(extender.app)
app.add_typer(rules.app)
app.add_typer(sim.app)


def main() -> None:
    """Entry point of the console script."""
    app()


if __name__ == "__main__":
    main()
