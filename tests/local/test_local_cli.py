"""`python -m deploy.local up`: what is started, in which order, and what happens if that fails."""

from pathlib import Path
from typing import Any

import pytest

from deploy.local import cli, nodes
from deploy.local.errors import PlaneError

Said = list[str]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Said:
    """What `up` asks for, in order; nothing is started."""
    calls: Said = []

    class Plane:
        def __init__(self, work: Path, options: Any, report: Any) -> None:
            self.work = work

        def up(self, fresh: bool) -> None:
            calls.append("up")

        def detach(self) -> None:
            calls.append("detach")

        def __exit__(self, *error: object) -> None:
            calls.append("down")

    class Kueue:
        def __init__(self, plane: Plane) -> None:
            self.plane = plane

        def start(self) -> None:
            calls.append("kueue")
            if self.plane.work.name == "bad":
                raise PlaneError("no Kueue")

        @staticmethod
        def installed(plane: Plane) -> bool:
            return plane.work.name == "had"

    class Nodes:
        def __init__(self, plane: Plane, count: int, gpus: int, labels: dict[str, str]) -> None:
            self.count, self.gpus, self.labels = count, gpus, labels

        def start(self) -> None:
            marked = "".join(f" {key}={value}" for key, value in self.labels.items())
            calls.append(f"{self.count} nodes with {self.gpus}{marked}")

    monkeypatch.setattr(cli, "Plane", Plane)
    monkeypatch.setattr(cli, "Kueue", Kueue)
    monkeypatch.setattr(nodes, "Nodes", Nodes)
    return calls


@pytest.mark.parametrize(
    ("arguments", "status", "expected"),
    [
        (["--work", "x"], 0, ["up", "detach"]),
        (["--work", "x", "--nodes", "2", "--gpus", "4"], 0, ["up", "2 nodes with 4", "detach"]),
        (
            ["--nodes", "1", "--label", "a=b", "--label", "c.d/e="],
            0,
            ["up", "1 nodes with 2 a=b c.d/e=", "detach"],
        ),
        (["--label", "a=b"], 2, []),  # of no node
        (["--nodes", "1", "--label", "a"], 2, []),
        (["--work", "x", "--kueue", "--nodes", "1"], 0, ["up", "kueue", "1 nodes with 2", "detach"]),
        (["--work", "had"], 0, ["up", "kueue", "detach"]),  # its cluster knows Kueue
        (["--work", "bad", "--kueue"], 1, ["up", "kueue", "down"]),
    ],
)
def test_up(said: Said, arguments: list[str], status: int, expected: list[str]) -> None:
    assert cli.main(["up", *arguments]) == status
    assert said == expected
