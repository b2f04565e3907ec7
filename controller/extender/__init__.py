"""The scheduler extender: tells kube-scheduler whose a node's GPUs are, from memory only.

May import: everything of `controller` but `cli`, `operator`, `install`, `parity` (contract "Arrows run one
way").
Tests: tests/extender.
"""
