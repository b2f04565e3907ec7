"""Kubernetes for the shells: API client, watch cache, watcher, event recorder. No decisions here."""
