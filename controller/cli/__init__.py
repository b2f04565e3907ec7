"""The command `evalstop` (also `kubectl rlhf`): one file for each subcommand, `main` lists them.

`jobs`, `pools`, `job_view` and `history_input` read objects into what is printed; `formatting`, `table`,
`terminal` and `output` print.
May import: everything of `controller`; `sim` only within the commands that simulate, for it loads
slowly.
Tests: tests/cli, tests/sim_cli.
"""
