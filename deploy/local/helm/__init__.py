"""Helm, built from its Go module like the control plane: `recipe.HELM`, and `client.Helm` that runs it.

May import: of `deploy.local` recipes and errors.
Tests: tests/chart.
"""
