"""Ways to install and run EvalStop: images, Helm chart, kind, a local control plane.

May import: everything of `controller` but `cli` and `parity`; `controller` imports nothing of it (contract
"The product does not lean on the local plane").
Tests: tests/chart, tests/local, tests/agent, tests/demo, tests/alerts.
"""
