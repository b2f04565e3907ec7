"""Each target of the Makefile does something, and what `make` calls takes the arguments it is given."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from deploy.kind import stories
from deploy.kind.__main__ import arguments

ROOT = Path(__file__).parents[2]
PHONY = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
assert PHONY is not None
TARGETS = PHONY[1].split()


def made(*words: str) -> str:
    """Return what make would run where everything is installed."""
    installed = (
        "LICENSE"  # stands for the stamp, and -o says that it is not to be made anew, whatever its age
    )
    given = ["make", "-n", "-o", installed, "--no-print-directory", f"STAMP={installed}", "BIN=bin", *words]
    return subprocess.run(given, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("target", [t for t in TARGETS if t != "setup"])
def test_a_target_does_something(target: str) -> None:
    """`make lint` and `make status` had no recipe: they did nothing and said that all was well."""
    assert "Nothing to be done" not in made(target)


def test_a_story_on_kind_gets_its_options() -> None:
    (line,) = made("kind", "STORY=elastic", "ACTS=--act gang --runs 1").splitlines()
    words = shlex.split(line)
    given = arguments().parse_args(words[words.index("deploy.kind") + 1 :])
    assert given.what == "elastic"
    assert stories.parsed(given.what, given.more).act == ["gang"]
    with pytest.raises(SystemExit):
        stories.parsed("shared", ["--jobs", "4"])


@pytest.mark.parametrize("target", ["kind", "test-kind", "kind-parity"])
@pytest.mark.parametrize("keep", [False, True])
def test_the_arguments_of_kind_are_taken(target: str, keep: bool) -> None:
    more = ["PARITY=--jobs 3 --seed 1"] if target == "kind-parity" else []
    (line,) = made(target, *more, *(["KEEP_IMAGES=1"] if keep else [])).splitlines()
    words = shlex.split(line)
    given = arguments().parse_args(words[words.index("deploy.kind") + 1 :])
    assert given.keep_images is keep
    assert given.what == {"kind": "demo", "test-kind": "test", "kind-parity": "parity"}[target]
    assert given.more == (["--jobs", "3", "--seed", "1"] if more else [])
