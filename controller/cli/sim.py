"""`evalstop sim …`: the simulator's commands, one file for each group of them.

Exit codes: 0 done, 2 what was given cannot be used (the message names file, line and field, or option).
"""

from __future__ import annotations

import typer

from controller.cli import sim_experiments, sim_rollout, sim_sharing, sim_traces

app = typer.Typer(
    name="sim",
    help="Simulate the production policy: the paper's experiments, and your own cluster's log.",
    no_args_is_help=True,
)
sim_experiments.register(app)
sim_traces.register(app)
app.add_typer(sim_rollout.app)
app.add_typer(sim_sharing.app)
