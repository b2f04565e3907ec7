"""Programs of the chart's hooks, run in the operator's image: pools from values, and a check of the
installation.

May import: everything of `controller` but `cli`, `operator`, `extender`, `parity`.
Tests: tests/chart.
"""
