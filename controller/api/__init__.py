"""The custom resources: schemas, what a manifest means to `controller.policy`, and statuses there and back.

A change here changes the CRDs: run `make generate`.
May import: `controller.policy`, `controller.objects` (contract "Arrows run one way").
Tests: tests/api.
"""
