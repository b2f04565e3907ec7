"""All targets: one file for each place that tenants' text comes from."""

from __future__ import annotations

from collections.abc import Mapping

from tests.fuzz.target import Target
from tests.fuzz.targets import groups, logs, manifests, objects, pages, rollouts, sharing, store, texts

TARGETS: Mapping[str, Target] = {
    target.name: target
    for module in (pages, texts, objects, manifests, store, logs, rollouts, sharing, groups)
    for target in module.TARGETS
}
