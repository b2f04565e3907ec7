"""The generation engine: actors, slots, iterations, prefill, starts, moves; it decides nothing and estimates nothing.

Kept apart from the planner's estimate (`controller.policy.rollout`) by an import contract, so that the one can be
judged by the other.
"""
