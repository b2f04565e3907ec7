"""The operator: watches the cluster, scrapes trainers, and carries out the plans of `controller.policy`.

It decides nothing itself.

May import: everything of `controller` but `cli`, `extender`, `install`, `parity` (contract "Arrows run one
way").
Tests: tests/operator, tests/lease, tests/tenants, tests/upgrade, tests/story.
"""
