"""Kubernetes for the shells: API client, watch cache, watcher, event recorder. No decisions here.

May import: `controller.api`, `controller.policy`; nothing of metrics, checkpoints or workloads (contract
"Arrows run one way").
Tests: tests/kube, tests/lease.
"""
