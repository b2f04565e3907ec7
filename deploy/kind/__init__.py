"""EvalStop on a kind cluster: real kubelets, containers and pod networks on one machine (`make kind`).

May import: `controller`, `deploy.helm`, `deploy.images`, `deploy.local`.
Tests: tests/chart.
"""
