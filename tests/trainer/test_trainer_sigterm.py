"""SIGTERM and SIGKILL in the middle of a save: what lies there then, and where the next start goes on."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
import types
from pathlib import Path

from evalstop_client.client import EvalStopClient, _records
from evalstop_client.run import EXIT_STOPPED, Run

KILLS = 50
PIECES = 4  # files of a checkpoint, some ms each
PIECE_S = 0.004


def train(out: Path, run: Path, marker: int) -> None:
    """One trainer process, from where it resumes on; it saves each second step, in place."""
    transformers = types.ModuleType("transformers")
    transformers.TrainerCallback = object  # type: ignore[attr-defined]
    sys.modules["transformers"] = transformers
    from test_trainer_hf import GOLD, Trainer

    from evalstop_client.hf import EvalStop

    class Slow(Trainer):
        def _save_checkpoint(self) -> None:
            step = self.state.global_step
            folder = Path(self.args.output_dir, f"checkpoint-{step}")
            folder.mkdir(parents=True, exist_ok=True)
            os.write(marker, b"s")  # a save has begun
            for piece in range(PIECES):
                with (folder / f"model-{piece}").open("wb") as file:
                    file.write(b"w" * 64)
                    file.flush()
                    time.sleep(PIECE_S)
                    file.write(bytes([piece]) * 64)
            (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
            self.saved.append(step)

    callback = EvalStop(GOLD, Run(GOLD, EvalStopClient(run, port=0, host="127.0.0.1"), stop_grace=0.0))
    trainer = Slow(out, steps=10_000, every=2)
    trainer.add_callback(callback)
    trainer.train(resume_from_checkpoint=callback.resume_path(out))
    callback.finish()


def start(out: Path, run: Path) -> tuple[int, int]:
    """Return its pid, and where a byte comes for each save that has begun."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            train(out, run, write)
            code = 0
        except SystemExit as left:
            code = int(left.code or 0)
        finally:
            os._exit(code)
    os.close(write)
    return pid, read


def steps_of(out: Path) -> dict[int, bool]:
    """Step of each folder, and whether it is whole as it was written: not by any record."""
    found = {}
    for folder in out.glob("checkpoint-*"):
        files = [folder / f"model-{piece}" for piece in range(PIECES)]
        whole = all(
            f.is_file() and f.read_bytes() == b"w" * 64 + bytes([n]) * 64 for n, f in enumerate(files)
        )
        state = folder / "trainer_state.json"
        found[int(folder.name.partition("-")[2])] = whole and state.is_file() and state.read_bytes() != b""
    return found


def resumes_at(out: Path, run: Path) -> int:
    path = EvalStopClient(run, port=0, host="127.0.0.1").resume_path(out)
    return 0 if path is None else int(Path(path).name.partition("-")[2])


def world(tmp_path: Path) -> tuple[Path, Path]:
    out, run = tmp_path / "out", tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text(json.dumps({"uid": "u-1", "attempt": 1}))
    return out, run


def interrupt(out: Path, run: Path, pick: random.Random, grace: float | None) -> int:
    """Send SIGTERM while it saves, and SIGKILL after ``grace`` s if it still runs; return its exit code."""
    pid, saving = start(out, run)
    try:
        for _ in range(pick.randint(1, 3)):
            assert os.read(saving, 1) == b"s"
        time.sleep(pick.uniform(0, PIECES * PIECE_S))
        os.kill(pid, signal.SIGTERM)
        if grace is not None:
            time.sleep(grace)
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    finally:
        os.close(saving)
    return os.waitstatus_to_exitcode(status)


# row 3: 5 of 6 SIGTERMs in a save left a torn newest checkpoint, and the next start failed in it
def test_after_sigterm_in_a_save_the_newest_checkpoint_is_whole_50_of_50(tmp_path: Path) -> None:
    out, run = world(tmp_path)
    pick = random.Random(20261123)
    for number in range(KILLS):
        assert interrupt(out, run, pick, grace=None) == EXIT_STOPPED, number
        lie = steps_of(out)
        assert lie[max(lie)], f"kill {number}: checkpoint-{max(lie)} is torn"
        assert resumes_at(out, run) == max(lie)
        clear(out)


def test_after_sigkill_in_the_grace_period_the_next_start_takes_the_newest_whole_one(tmp_path: Path) -> None:
    """A checkpoint that was whole without its record being written is passed over, never a torn one taken."""
    out, run = world(tmp_path)
    pick = random.Random(23)
    torn = 0
    for number in range(KILLS):
        interrupt(out, run, pick, grace=pick.uniform(0, PIECES * PIECE_S))
        lie, at = steps_of(out), resumes_at(out, run)
        torn += not lie[max(lie)]
        recorded = {record.step for record in _records(out) if record.whole(out)}
        assert at == max(recorded, default=0), number
        assert at == 0 or lie[at], f"kill {number}: it resumes from checkpoint-{at}, which is torn"
        assert at >= max((step for step, whole in lie.items() if whole), default=0) - 2, (
            "one save lost at most"
        )
        clear(out)
    assert torn >= 5, "the kills have torn something"


def clear(out: Path) -> None:
    """Keep the three newest folders, as rotation does."""
    for folder in sorted(out.glob("checkpoint-*"), key=lambda p: int(p.name.partition("-")[2]))[:-3]:
        shutil.rmtree(folder)
