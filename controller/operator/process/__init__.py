"""The operator's process: settings, leader election, work queues, clock, health, metrics, the log of
decisions.

May import: nothing of the operator's other rooms (contract "Rooms of the operator").
Tests: tests/operator, tests/lease.
"""
