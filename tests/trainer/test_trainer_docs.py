"""The code in docs/use/trainer-contract.md runs, and its tables say what the code does."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller import names
from controller.metrics.parse import parse
from controller.policy.types import Paired
from evalstop_client import client as evalstop_client
from evalstop_client.client import EvalStopClient
from examples.trainer.checkpoints import CheckpointFolder

PAGE = (Path(__file__).parents[2] / "docs" / "use" / "trainer-contract.md").read_text()
LOOP, PAIRED = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(autouse=True)
def _world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A run file, and the handlers afterwards."""
    monkeypatch.setenv("EVALSTOP_RUN_DIR", str(tmp_path))
    monkeypatch.delenv("JOB_COMPLETION_INDEX", raising=False)
    ask(tmp_path)
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


def ask(folder: Path, resume: object = None, **request: object) -> None:
    content = {"uid": "u", "attempt": 1, "resume": resume, "request": {"id": 0, **request}}
    (folder / names.RUN_KEY).write_text(json.dumps(content))


def client(**changes: Any) -> EvalStopClient:
    return EvalStopClient(**{"host": "127.0.0.1", "port": 0, **changes})


class UsersTrainer:
    """What the first example assumes of a trainer."""

    total_steps = 200
    reward, kl = 1.5, 0.25

    def __init__(self, run_dir: Path) -> None:
        self.step, self.saved, self.run_dir = 0, [0], run_dir
        self.folder = run_dir / "ckpt"

    def load(self, path: str | None) -> int:
        self.step = int(Path(path).name.partition("-")[2]) if path else 0
        return self.step

    def train_one_step(self) -> int:
        self.step += 1
        if self.step == 120:
            ask(self.run_dir, id=1, evaluate=True)
        if self.step == 160:
            ask(self.run_dir, id=2, stop=True)
        return self.step

    def save_checkpoint(self) -> Path:
        self.saved.append(self.step)
        folder = self.folder / f"step-{self.step}"
        folder.mkdir(parents=True)
        (folder / "weights").write_text("w")
        return folder

    def evaluate(self) -> tuple[float, float, int]:
        assert self.step in self.saved or self.step == 120
        return 0.5, 0.01, 64

    def wait_for_sigterm_and_exit(self, code: int) -> None:
        sys.exit(code)


def test_fifteen_lines_are_fifteen_lines() -> None:
    assert len(LOOP.strip().splitlines()) == 15


def test_the_first_example_keeps_the_contract(tmp_path: Path) -> None:
    ask(tmp_path, resume={"path": "step-50", "step": 50})
    made = []

    def remembered() -> EvalStopClient:
        made.append(client())
        return made[0]

    namespace: dict[str, Any] = {"trainer": UsersTrainer(tmp_path)}
    code = LOOP.replace("EvalStopClient()", "make()")
    try:
        with pytest.raises(SystemExit) as left:
            exec(code, namespace | {"make": remembered})
        assert left.value.code == 143
        view = parse(made[0].exposition(), "win_rate")
        assert [(p.step, p.score, p.stderr, p.samples) for p in view.points] == [
            (step, 0.5, 0.01, 64) for step in (100, 120, 150)
        ]
        assert (view.resumed_step, view.step, view.checkpoint_step) == (50, 160, 160)
        assert (view.proxy, view.kl, view.total_steps, view.request_served) == (1.5, 0.25, 200, 2)
    finally:
        made[0].close()
    # row 17: the next process of this attempt does not go back to where the attempt began
    assert client().resume_path(tmp_path / "ckpt") == str(tmp_path / "ckpt" / "step-160")


def test_the_paired_example_keeps_the_contract(tmp_path: Path) -> None:
    namespace: dict[str, Any] = {"Differences": evalstop_client.Differences}
    exec(PAIRED, namespace)
    loaded: list[int] = []

    def load(step: int) -> str | None:
        loaded.append(step)
        return "old" if step == 50 else None  # that of 60 was rotated away

    drawn = iter([[1, 2], [3, 4], [5, 6], [7, 8]])
    quality = {"old": 0.5, "new": 0.25}
    with client() as c:
        for step, reference in ((50, 50), (100, 50), (150, 60), (200, None)):
            content = {"uid": "u", "attempt": 1, "request": {"id": 0}, "reference": reference}
            (tmp_path / names.RUN_KEY).write_text(json.dumps(content))
            namespace["evaluate"](
                c,
                "win_rate",
                step,
                "new",
                load,
                lambda: next(drawn),
                lambda policy, prompts: [p * quality[policy] for p in prompts],
            )
        points = parse(c.exposition(), "win_rate").points
    assert loaded == [50, 60]
    assert [p.score for p in points] == [0.375, 0.875, 1.375, 1.875]
    assert [p.paired for p in points] == [None, Paired(50, 2, -0.875, 0.03125), None, None]


def test_the_table_names_every_sample() -> None:
    rows = [line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `rlhf_")]
    named = {name for row in rows for name in re.findall(r"`(rlhf_\w+)`", row)}
    assert named == {v for k, v in vars(names).items() if k.startswith("METRIC_") and k != "METRIC_PREFIX"}


def test_the_documented_manifest_is_the_one_written(tmp_path: Path) -> None:
    (shown,) = (json.loads(b) for b in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL) if '"sha256"' in b)
    path = CheckpointFolder(tmp_path).save(400, {})
    written = json.loads((path / "manifest.json").read_text())
    assert shown.keys() == written.keys()
    assert shown["files"]["params.npz"].keys() == written["files"]["params.npz"].keys()


def test_the_documented_save_record_is_the_one_written(tmp_path: Path) -> None:
    (shown,) = (
        json.loads(b)
        for b in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
        if '"sequence"' in b and '"uid"' in b
    )
    path = CheckpointFolder(tmp_path / "c").save(400, {})
    client(life="9f2c41d0").checkpoint_saved(400, path)
    written = json.loads((tmp_path / "c" / ".evalstop" / "saves" / "1-9f2c41d0-400.json").read_text())
    assert shown.keys() == written.keys()
    assert {type(v) for v in shown["files"].values()} == {int} == {type(v) for v in written["files"].values()}
