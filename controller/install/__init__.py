"""What the chart's hooks run in the operator's image: pools from values, and a look at what was installed.

May import: everything of `controller` but `cli`, `operator`, `extender`, `parity`.
Tests: tests/chart.
"""
