"""`evalstop version`: which code this is, by everything that a decision depends on."""

import typer


def version() -> None:
    """Print the version, and the versions of the API, the decision log and the stop rules."""
    from importlib import metadata

    from controller import names
    from controller.cli import output
    from controller.cli.terminal import terminal
    from controller.cli.why import wrapped
    from controller.policy import decision_log
    from controller.policy.stopping import RULES

    rules = ", ".join(f"{name} {rule.version}" for name, rule in sorted(RULES.items()))
    typer.echo(f"evalstop {metadata.version('evalstop')}")
    versions = f"API {names.API_VERSION}, decision log {decision_log.VERSION}, stop rules: {rules}"
    output.lines(wrapped(versions, terminal()))
