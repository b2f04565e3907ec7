"""Experiments: many paired runs, what they say, and how sure that is.

May import: what `sim` may.
Tests: tests/sim_experiments.
"""
