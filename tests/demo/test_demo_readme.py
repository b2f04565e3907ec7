"""The README names only what is there."""

import re
from pathlib import Path

import pytest
import yaml

from controller.api.rlhfjob import RLHFJobSpec


def readme(repository: Path) -> str:
    return (repository / "README.md").read_text()


def test_every_link_leads_somewhere(repository: Path) -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)", readme(repository)) if "://" not in link]
    assert len(links) == 1 + 8, "the picture, and where to read on"
    assert [link for link in links if not (repository / link).exists()] == []


def test_every_make_target_exists(repository: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (repository / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:^    |`)make ([a-z]+)", readme(repository), re.MULTILINE))
    assert {"demo", "test"} <= named <= targets


def test_the_sample_is_one_that_the_api_knows(repository: Path) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", readme(repository), re.DOTALL)
    job = yaml.safe_load(block.replace("{…}", "{}"))
    assert job["kind"] == "RLHFJob"
    spec = RLHFJobSpec.model_validate(job["spec"])
    assert spec.primary.name == "gold_reward"


@pytest.mark.parametrize("name", ["demo.png"])
def test_the_picture_is_small(repository: Path, name: str) -> None:
    assert 10_000 < (repository / "docs" / "images" / name).stat().st_size < 200_000
