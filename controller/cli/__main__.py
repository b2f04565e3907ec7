"""`python -m controller.cli`: the `evalstop` command where its script is not installed."""

from controller.cli.main import main

main()
