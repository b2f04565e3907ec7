"""The passes over jobs and pools: load, plan, write the status, carry out the actions, post Events.

What is to be done is decided in `controller.policy` alone.
May import: `state`, `process` (contract "Rooms of the operator").
Tests: tests/operator.
"""
