"""What the libraries' own savers left of PEFT, FSDP and ZeRO, recorded: judged here as the fresh ones are."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.torn import environment, recorded


@pytest.mark.parametrize("kind", recorded.KINDS)
def test_recorded_checkpoints_are_whole_and_without_a_file_they_are_not(kind: str, tmp_path: Path) -> None:
    folder = recorded.unpack(kind, tmp_path)
    (tmp_path / "scratch").mkdir()
    assert recorded.check(folder, kind, tmp_path / "scratch") > 10


@pytest.mark.parametrize("kind", recorded.KINDS)
def test_the_first_checkpoint_of_a_run_tells_by_itself_that_it_is_whole(kind: str, tmp_path: Path) -> None:
    """Of how many ranks the files are, a file says: no other checkpoint and no save record is needed."""
    folder = recorded.unpack(kind, tmp_path)
    for other in (".evalstop", f"checkpoint-{recorded.STEPS}"):
        shutil.rmtree(folder / other)
    (found,) = recorded.judged(folder)
    assert (found.problem, found.evidence) == (None, "Manifest")


def test_they_are_of_the_versions_that_are_killed() -> None:
    kept = json.loads(recorded.VERSIONS.read_text())
    assert {name: kept[name] for name in kept if name in environment.versions()} == {
        name: version for name, version in environment.versions().items() if name in kept
    }
    assert {"torch", "transformers", "accelerate", "peft", "deepspeed"} <= set(kept)
