"""What the libraries' own savers left of PEFT, FSDP and ZeRO, recorded: judged here as the fresh ones are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.torn import environment, recorded


@pytest.mark.parametrize("kind", recorded.KINDS)
def test_recorded_checkpoints_are_whole_and_without_a_file_they_are_not(kind: str, tmp_path: Path) -> None:
    folder = recorded.unpack(kind, tmp_path)
    (tmp_path / "scratch").mkdir()
    assert recorded.check(folder, kind, tmp_path / "scratch") > 10


def test_they_are_of_the_versions_that_are_killed() -> None:
    kept = json.loads(recorded.VERSIONS.read_text())
    assert {name: kept[name] for name in kept if name in environment.versions()} == {
        name: version for name, version in environment.versions().items() if name in kept
    }
    assert {"torch", "transformers", "accelerate", "peft", "deepspeed"} <= set(kept)
