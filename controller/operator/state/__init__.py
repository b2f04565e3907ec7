"""What the operator knows of the cluster, from its caches: jobs as they are loaded for a pass, nodes, pods of
others.

May import: nothing of the operator's other rooms (contract "Rooms of the operator").
Tests: tests/operator.
"""
