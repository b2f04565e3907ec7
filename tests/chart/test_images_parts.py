"""What images are made of: the part of the lock that each needs, and what the Dockerfile promises."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from controller.install import pools
from deploy.images import build, sublock
from deploy.kind.nodes import settings
from deploy.local.errors import PlaneError

LOCK = """\
# a comment
foo-bar==1.0 \\
    --hash=sha256:aa \\
    --hash=sha256:bb
numpy==2.4 ; python_full_version < '3.12' \\
    --hash=sha256:cc
numpy==2.5 ; python_full_version >= '3.12' \\
    --hash=sha256:dd
"""


def test_a_package_keeps_its_hashes_and_each_of_its_pins() -> None:
    found = sublock.entries(LOCK)
    assert set(found) == {"foo-bar", "numpy"}
    assert found["foo-bar"].count("--hash=") == 2
    assert [line.split()[0] for line in found["numpy"].splitlines()[::2]] == ["numpy==2.4", "numpy==2.5"]
    assert sublock.pins(LOCK).splitlines() == [
        "foo-bar==1.0",
        "numpy==2.4 ; python_full_version < '3.12'",
        "numpy==2.5 ; python_full_version >= '3.12'",
    ]


def test_a_line_that_pins_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"line 2 of the lock: '-r other\.txt', expected NAME==VERSION"):
        sublock.entries("foo==1\n-r other.txt\n")


def test_what_names_stand_for() -> None:
    project = {"dependencies": ["a>=1"], "optional-dependencies": {"x": ["b"]}}
    assert sublock.wanted(project, ["project", "[x]", "c"]) == ["a>=1", "b", "c"]
    with pytest.raises(ValueError, match=r"\[y\]: no such extra; there are x"):
        sublock.wanted(project, ["[y]"])


def test_the_lock_pins_everything_that_an_image_asks_for_by_name(repository: Path) -> None:
    found = sublock.entries((repository / "requirements.lock").read_text())
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    asked = sublock.wanted(project, ["project", "[objectstore]", "setuptools"])
    names = {sublock.canonical(match.group()) for text in asked if (match := re.match(r"[\w.-]+", text))}
    assert names <= set(found)


def test_the_images_run_as_nobody_from_a_base_that_is_an_argument(repository: Path) -> None:
    text = build.DOCKERFILE.read_text()
    stages = re.split(r"^FROM ", text, flags=re.MULTILINE)[1:]
    assert {stage.splitlines()[0] for stage in stages} == {
        f"${{BASE_IMAGE}} AS {name}" for name in ("trainer-build", "trainer", "operator-build", "operator")
    }
    for stage in stages:
        if "-build" not in stage.splitlines()[0]:
            assert "USER 65532:65532" in stage
            assert "pip" not in stage
    assert re.findall(r"pip install(?! --no-deps)", text) == [], "only what is locked is installed"
    assert "requirements.lock" in (repository / ".dockerignore").read_text()


def test_the_build_takes_base_and_flags_from_the_environment() -> None:
    given = {"BASE_IMAGE": "local/python:3.11", "IMAGE_BUILD_FLAGS": "--network host"}
    words = build.command("trainer", given)
    assert words[words.index("--target") + 1] == "trainer"
    assert words[words.index("--build-arg") + 1] == "BASE_IMAGE=local/python:3.11"
    assert words[words.index("--network") + 1] == "host"
    assert "--build-arg" not in build.command("operator", {})
    with pytest.raises(PlaneError, match="no docker on PATH"):
        build.build({"PATH": "/nowhere"})


def test_the_names_of_a_kind_cluster() -> None:
    assert settings({}) == ("evalstop", "")
    assert settings({"KIND_CLUSTER": "a", "KIND_NODE_IMAGE": "b:c"}) == ("a", "b:c")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{}", None),
        ("a: b", "expected a list of pools, got dict"),
        ("- {name: a}", "pool 0: expected name and spec"),
        ("- {name: a, spec: {}}\n- {spec: {}}", "pool 1: expected name and spec"),
    ],
)
def test_pools_of_values(text: str, problem: str | None) -> None:
    if problem is None:
        assert pools.pools(text) == []
        return
    with pytest.raises(ValueError, match=re.escape(problem)):
        pools.pools(text)
