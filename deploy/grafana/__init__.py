"""Grafana dashboards, written from tables: `python -m deploy.grafana`."""
