"""State of the cluster from the operator's caches: jobs as a pass loads them, nodes, pods of others.

May import: nothing of the operator's other rooms (contract "Rooms of the operator").
Tests: tests/operator.
"""
