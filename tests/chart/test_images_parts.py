"""What images are made of: the part of the lock that each needs, and what the Dockerfile promises."""

from __future__ import annotations

import re
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


def test_nothing_of_the_lock_is_lost(repository: Path) -> None:
    text = (repository / "requirements.lock").read_text()
    assert "".join(sublock.entries(text).values()) == text
    assert "://" not in text, "whoever installs decides where from"


def test_the_resolver_of_the_lock_is_pinned_itself(repository: Path) -> None:
    (pin,) = sublock.entries((repository / "deploy" / "uv.txt").read_text()).items()
    assert pin[0] == "uv"
    assert pin[1].count("--hash=sha256:") > 1
    lock = (repository / "Makefile").read_text().partition("\nlock:")[2].partition("\n\n")[0]
    assert "--require-hashes -r deploy/uv.txt" in lock


def test_the_stage_that_installs_takes_what_is_locked_from_a_base_that_is_an_argument(
    repository: Path,
) -> None:
    text = build.DOCKERFILE.read_text()
    assert re.findall(r"^FROM (.*)$", text, flags=re.MULTILINE) == ["${BASE_IMAGE}"]
    assert re.findall(r"^ARG (.*)$", text, flags=re.MULTILINE) == ["BASE_IMAGE"], (
        "no default: a tag would be one"
    )
    for copied in re.findall(r"^COPY (.*) \S+$", text, flags=re.MULTILINE):
        for name in copied.split():
            assert f"!{name}\n" in (repository / ".dockerignore").read_text()
    with pytest.raises(PlaneError, match="no docker on PATH"):
        build.build({"PATH": "/nowhere", "TRIAL": "1"})


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
