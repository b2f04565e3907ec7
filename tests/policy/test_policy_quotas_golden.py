"""Without quotas every decision is as it was before there were any, byte for byte."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from golden_decisions import POLICIES, SEEDS, digest, name

KNOWN = json.loads(Path(__file__).with_name("golden_decisions.json").read_text())


@pytest.mark.parametrize("spec", POLICIES, ids=name)
def test_a_pool_without_quotas_decides_as_before(spec) -> None:
    # The others were compared when quotas came in; one of each goes on telling.
    number = POLICIES.index(spec) % SEEDS
    assert digest(spec, number) == KNOWN[name(spec)][number]
