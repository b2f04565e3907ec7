"""Shared worker groups, simulated: the production policy of turns, placement and charges on virtual groups.

May import: what `sim` may.
Tests: tests/sim, tests/sim_cli.
"""
