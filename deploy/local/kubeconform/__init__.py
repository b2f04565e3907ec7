"""kubeconform, which checks manifests against JSON schemas, and the schemas, made from a running plane's
OpenAPI.

May import: of `deploy.local` recipes.
Tests: tests/chart.
"""
