"""Real trainers need 5 GB of packages, which `make test-trainers` installs: `make test` leaves them out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real_trainers.process import Start, Trainer, environment
from tests.real_trainers.warm import LEARN, Warm

collect_ignore_glob = [] if os.environ.get("EVALSTOP_REAL_TRAINERS") else ["test_*.py"]


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[Start]:
    """Make trainers of a script, so many ranks and variables, which torchrun starts; all are ended."""
    yield from _made(tmp_path, None)


@pytest.fixture
def warmed(tmp_path: Path, warm: Warm) -> Iterator[Start]:
    """Make trainers that are forked: they start within a second, and a rank is a pod's own process."""
    yield from _made(tmp_path, warm)


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    """A process that has imported what a first GRPO run was seen to import."""
    folder = tmp_path_factory.mktemp("warm")
    made = Warm(os.environ["EVALSTOP_REAL_TRAINERS"], environment(), folder / "log")
    first = Trainer(folder, "grpo.py", warm=made, EVERY="1", PROMPTS="4", **{LEARN: str(folder / "modules")})
    first.start(2)
    assert first.end() == 0, first.said[-4000:]
    made.learn(folder / "modules")
    yield made
    made.close()


def _made(folder: Path, warm: Warm | None) -> Iterator[Start]:
    made: list[Trainer] = []

    def make(script: str, ranks: int = 1, **variables: str) -> Trainer:
        made.append(Trainer(folder / f"t{len(made)}", script, ranks, warm, **variables))
        return made[-1]

    yield make
    for one in made:
        one.kill()
