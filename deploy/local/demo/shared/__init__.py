"""The story of shared worker groups, `make demo STORY=shared`: RL jobs take turns on one real GPU slot.

Two arms: each job alone in a group, one after the other; then all of them as residents of one.
May import: `controller` for names and the queue API's paths, `sim.sharing` for what was to be expected.
Tests: tests/demo.
"""
