"""The brain: every decision of operator, extender and simulator. Pure: equal input gives equal output.

Rooms: `job`, `fleet`, `pool`, `node`, with `stopping` (stop rules) and `queueing` (queue policies) beside
them.
May import: the standard library without clock, randomness and I/O (contract "The brain is pure").
Tests: tests/policy, tests/faults; every decision that was once logged: tests/frame.
"""
