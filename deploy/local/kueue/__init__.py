"""Kueue on a local control plane: the real manager, as one more process of the plane (`manager.Kueue`).

May import: `controller.names`, `deploy.local`.
Tests: tests/kueue.
"""
