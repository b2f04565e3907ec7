"""PEFT, FSDP and ZeRO as the libraries save them: judged whole, half-deleted ones not, loaded as is said."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.real_trainers.environment import LOCK
from tests.real_trainers.process import HERE, Start, environment, report
from tests.real_trainers.warm import Warm
from tests.torn import recorded

pytestmark = pytest.mark.timeout(3600)

SAID = ("torch", "transformers", "accelerate", "peft", "deepspeed", "safetensors")


@pytest.mark.parametrize("kind", recorded.KINDS)
def test_what_is_saved_is_whole_and_loads_as_is_said(
    kind: str, warm: Warm, warmed: Start, tmp_path: Path
) -> None:
    ranks, how = recorded.KINDS[kind]
    run = warmed("sharded.py", ranks, KIND=kind, EVERY="2")
    run.start(recorded.STEPS)
    assert run.end() == 0, run.said[-4000:]
    saved = {f"checkpoint-{step}" for step in (recorded.STEPS - 2, recorded.STEPS)}
    assert set(run.records()) == saved, "the callback has recorded each"
    (tmp_path / "scratch").mkdir()
    halves = recorded.check(run.out, kind, tmp_path / "scratch")
    if os.environ.get("RECORD"):
        recorded.record(run.out, kind)
        pins = (line.split()[0].split("==") for line in LOCK.read_text().splitlines() if "==" in line)
        versions = {name: version for name, version in pins if name in SAID}
        recorded.VERSIONS.write_text(json.dumps(versions, indent=1, sort_keys=True) + "\n")
    newest, base = run.out / f"checkpoint-{recorded.STEPS}", run.out.with_name("out-base0")
    log = tmp_path / "log"
    if kind == "fsdp-ranks":  # nothing but as many ranks loads them: they have
        assert run.said.count("LOADED") == ranks, run.said[-4000:]
        report(
            f"{kind}, {ranks} rank(s): 2 checkpoints whole, {halves} with a file less not; loaded by: {how}"
        )
        return
    load = [HERE / "load.py", kind, newest, base, tmp_path / "merged"]
    assert warm.run([str(word) for word in load], environment(), log) == 0, log.read_text()[-4000:]
    report(f"{kind}, {ranks} rank(s): 2 checkpoints whole, {halves} with a file less not; loaded by: {how}")


@pytest.mark.parametrize("best", [None, "eval_score"])
def test_what_closes_the_race_is_metric_for_best_model_alone(best: str | None, warmed: Start) -> None:
    """controller/policy/job/rotation.py says so: rotation keeps two, and the best eval was long before."""
    run = warmed("best.py", EVERY="2", **({"BEST": best} if best else {}))
    run.start(12)
    assert run.end() == 0, run.said[-4000:]
    kept = sorted(int(path.name.rpartition("-")[2]) for path in run.out.glob("checkpoint-*"))
    assert kept == ([4, 12] if best else [10, 12])
    report(f"best eval at step 4 of 12, two checkpoints kept, metric_for_best_model {best}: {kept}")


def test_deepspeed_loads_what_openrlhfs_adapter_has_chosen(warm: Warm, tmp_path: Path) -> None:
    """OpenRLHF itself needs GPUs and Ray; what it saves with and loads by is DeepSpeed."""
    log = tmp_path / "log"
    assert warm.run([str(HERE / "latest.py"), str(tmp_path / "out")], environment(), log) == 0, (
        log.read_text()[-4000:]
    )
    loaded = [line.split()[1:] for line in log.read_text().splitlines() if line.startswith("LOADED")]
    assert loaded == [
        [what, role, tag, step]
        for what, tag, step in (
            ("newest", "global_step20", "20"),
            ("whole", "global_step10", "10"),
            ("restored", "global_step5", "10"),  # the copy of that one, under another name
            ("none", "None", "None"),
        )
        for role in ("_actor", "_critic")
    ]
    report("OpenRLHF's folder, by deepspeed: the newest whole one, a restored one, none: loaded as chosen")
