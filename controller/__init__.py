"""EvalStop as it runs in clusters and on users' machines: docs/architecture.md draws the packages.

May import: `sim` only in commands and `parity`; never `deploy` or `examples`.
Tests: tests/, one folder for each package.
"""
