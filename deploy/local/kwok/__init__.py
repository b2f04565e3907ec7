"""KWOK: thousands of simulated nodes on a local control plane, for tests of scale.

May import: `deploy.local`.
Tests: tests/kwok.
"""
