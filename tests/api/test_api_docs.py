"""What docs/use/stop-actions.md shows is accepted as it stands."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from api_examples import JOB, pool

from controller.api.convert import desired
from controller.policy.stopping import MODIFIERS
from sim import specs

PAGE = (Path(__file__).parents[2] / "docs" / "use" / "stop-actions.md").read_text()
BLOCKS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS)
def test_examples_are_accepted(block: str) -> None:
    spec = {k: v for k, v in JOB["spec"].items() if k != "modifiers"} | yaml.safe_load(block)
    found = desired({**JOB, "spec": spec}, pool())
    assert found.problem is None
    assert found.modifiers or found.guardrails


def test_the_patch_is_one() -> None:
    (patch,) = re.findall(r"-p '(.*?)'", PAGE)
    found = desired({**JOB, "spec": {**JOB["spec"], **json.loads(patch)["spec"]}}, pool())
    assert found.problem is None
    assert found.modifiers[0].params["forget"] is True


def test_the_simulator_takes_the_same_words() -> None:
    (text,) = re.findall(r"simulator \(`(.*?)`\)", PAGE)
    assert specs.rule(text).guardrails


def test_every_modifier_is_in_the_table() -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) >= set(MODIFIERS)
