"""`evalstop doctor`: what is wrong with an installation or a job, and the command that mends it.

May import: what `controller.cli` may.
Tests: tests/cli.
"""
