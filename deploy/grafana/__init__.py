"""Grafana dashboards, written from tables: `python -m deploy.grafana`.

May import: nothing else of ours: the dashboards are tables.
Tests: tests/alerts.
"""
