"""Prometheus and promtool for the tests of alerts, from Debian without root (`acquire`)."""
