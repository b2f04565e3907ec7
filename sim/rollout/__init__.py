"""Elastic rollouts, simulated: the production planner, carried out by a generation engine of its own.

May import: what `sim` may.
Tests: tests/sim, tests/sim_cli.
"""
