"""Evidence about stop rules: histories of evals in, how each rule would have done out.

May import: what `sim` may.
Tests: tests/sim_rules.
"""
