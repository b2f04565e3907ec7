"""A real Kubernetes control plane as local processes, and nodes that run pods as processes.

May import: `controller.extender` and `controller.web` for their configuration, `deploy.local`; `controller`
imports nothing of it (contract "The product does not lean on the local plane").
Tests: tests/local.
"""
