"""Findings for people: terminal tables, tidy files, HTML pages with plots.

May import: what `sim` may; `terminal` and `page` load rich and matplotlib, so commands load them late.
Tests: tests/sim_experiments, tests/sim_cli.
"""
