"""The generation engine: actors, slots, iterations, prefill, starts, moves. It decides and estimates nothing.

Kept apart from the planner's estimate, so that the one can be judged by the other.
May import: the kernel and the laws, and nothing of the planner (contract "The generation engine estimates
nothing").
Tests: tests/sim.
"""
