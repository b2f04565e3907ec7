"""`make demo`: the main job, end to end, on a real control plane of its own.

May import: `controller` as a reader of statuses and stores does, `deploy.local`.
Tests: tests/demo, tests/story.
"""
