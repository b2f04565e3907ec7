"""Prometheus and promtool for the tests of alerts, from Debian without root (`acquire`).

May import: of `deploy.local` recipes, reports and errors.
Tests: tests/alerts.
"""
