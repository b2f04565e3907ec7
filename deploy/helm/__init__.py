"""The Helm chart `evalstop`, and what generates the parts of it that follow from the code.

May import: `controller.api`, the settings of operator, extender and dashboard, `deploy.local`.
Tests: tests/chart.
"""
