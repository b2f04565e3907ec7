"""Differences to a reference step: what the client publishes, what the example trainer measures."""

from __future__ import annotations

import json
import math
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller import names
from controller.metrics.parse import parse
from controller.policy.types import Paired
from evalstop_client.client import Differences, EvalStopClient
from examples.trainer.__main__ import main
from examples.trainer.task import HELD_OUT
from examples.trainer.training import Recipe, Training, _Stream

TINY = ["--preferences=40", "--batch=8", "--eval-samples=16", "--eval-every=5", "--port=0", "--seed=3"]
SCORES = st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3)), min_size=2, max_size=50)


def client(run_dir: Path | None = None) -> EvalStopClient:
    return EvalStopClient(run_dir, port=0, host="127.0.0.1", life="7")


def write_run(folder: Path, reference: object, **fields: object) -> None:
    folder.mkdir(exist_ok=True)
    text = json.dumps(
        {"uid": "u", "attempt": 1, "resume": None, "request": {"id": 0}, "reference": reference, **fields}
    )
    (folder / names.RUN_KEY).write_text(text)


# the client


def test_the_operator_reads_proxy_and_differences_beside_their_score() -> None:
    c = client()
    c.report_eval("gold", 400, 1.5, proxy=2.25)
    c.report_eval("gold", 410, 1.25, stderr=0.03, samples=512, differences=Differences(400, 512, -0.25, 0.5))
    c.report_eval("safety", 410, 0.5)
    view = parse(c.exposition(), "gold", others=("safety",))
    assert [(p.step, p.proxy, p.paired) for p in view.points] == [
        (400, 2.25, None),
        (410, None, Paired(400, 512, -0.25, 0.5)),
    ]
    assert [(o.metric, [p.paired for p in o.points]) for o in view.others] == [("safety", [None])]


@given(SCORES)
def test_differences_are_summed_up_as_numpy_would(scores: list[tuple[float, float]]) -> None:
    now, before = zip(*scores, strict=True)
    found = Differences.of(5, now, before)
    d = np.asarray(now) - np.asarray(before)
    assert (found.reference, found.prompts) == (5, len(scores))
    assert found.mean == pytest.approx(float(d.mean()), rel=1e-9, abs=1e-9)
    assert found.variance == pytest.approx(float(d.var(ddof=1)), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(("now", "before"), [([1.0], [1.0]), ([1.0, 2.0], [1.0]), ([], [])])
def test_scores_that_cannot_be_paired_are_refused(now: list[float], before: list[float]) -> None:
    with pytest.raises(ValueError, match="expected as many of each, at least 2"):
        Differences.of(5, now, before)


@pytest.mark.parametrize("reference", [410, 420, -1])
def test_a_reference_must_lie_before_the_eval(reference: int) -> None:
    with pytest.raises(ValueError, match=f"reference: expected a step before 410, got {reference}"):
        client().report_eval("gold", 410, 1.0, differences=Differences(reference, 16, 0.0, 1.0))


def test_the_reference_follows_the_run_file(tmp_path: Path) -> None:
    assert client().reference is None
    write_run(tmp_path, 400)
    c = client(tmp_path)
    assert c.reference == 400
    for now, wanted in ((440, 440), ("x", 440), (None, None), (0, 0)):
        write_run(tmp_path, now)
        c.poll()
        assert c.reference == wanted
    (tmp_path / names.RUN_KEY).write_text('{"uid": "u", "attempt": 1}')  # of an operator that names none
    c.poll()
    assert c.reference is None


# the training


def test_a_policy_does_not_differ_from_itself() -> None:
    training = Training(Recipe(preferences=40, eval_samples=64), [3])
    assert training.evaluate().difference is None
    found = training.evaluate(training.parameters).difference
    assert found is not None
    assert found.shape == (1, 64)
    assert not found.any()


def test_the_difference_is_to_what_the_reference_answers_to_the_same_prompts() -> None:
    then, now = (Training(Recipe(preferences=40, eval_samples=512), [3, 4]) for _ in range(2))
    reference = then.parameters
    for _ in range(6):
        now.advance()
    then.step = now.step  # evaluations of this step, by the earlier policy
    plain, paired = now.evaluate(), now.evaluate(reference)
    assert paired.difference is not None
    assert np.array_equal(paired.gold, plain.gold)
    assert paired.difference.mean(axis=1) == pytest.approx(paired.gold - then.evaluate().gold)
    alone = now.evaluate().stderr ** 2 + then.evaluate().stderr ** 2
    assert np.all(paired.difference.var(axis=1, ddof=1) / 512 < 0.7 * alone)  # what pairing is for


def test_every_eval_draws_its_own_prompts() -> None:
    """Else the reference, the best by luck on its prompts, would be lucky again."""
    training = Training(Recipe(eval_samples=256), [3])
    first, _, _ = training._draw(_Stream.EVALUATION, 5, 256, HELD_OUT)
    second, _, _ = training._draw(_Stream.EVALUATION, 10, 256, HELD_OUT)
    assert not np.array_equal(first, second)


# the process


def run_here(monkeypatch: pytest.MonkeyPatch, folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """A run in this process; its recorded evals."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    record = folder / "evals.jsonl"
    record.unlink(missing_ok=True)
    monkeypatch.delenv("JOB_COMPLETION_INDEX", raising=False)
    monkeypatch.setenv(names.RUN_DIR_ENV, str(folder / "run"))
    monkeypatch.setattr(
        sys, "argv", ["trainer", *TINY, f"--checkpoints={folder}/c", f"--record={record}", *arguments]
    )
    try:
        assert main() == 0
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return [json.loads(line) for line in record.read_text().splitlines()]


def test_the_trainer_scores_the_reference_at_each_later_eval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "run", 5)
    lines = run_here(monkeypatch, tmp_path, "--steps=20", "--keep=2")  # step 5 is rotated away at step 15
    assert [(line["step"], line.get("differences", {}).get("reference")) for line in lines] == [
        (0, None),
        (5, None),
        (10, 5),
        (15, 5),
        (20, 5),
    ]
    training = Training(Recipe(preferences=40, batch=8, eval_samples=16), [3])
    for _ in range(5):
        training.advance()
    reference = training.parameters
    for _ in range(15):
        training.advance()
    wanted = training.evaluate(reference).difference
    assert wanted is not None
    found = lines[-1]["differences"]
    assert found["prompts"] == 16
    assert found["mean"] == pytest.approx(float(wanted.mean()))
    assert found["variance"] == pytest.approx(float(wanted.var(ddof=1)))


@pytest.mark.parametrize(("seed", "reference"), [(3, 5), (7, None)])
def test_a_rotated_reference_is_read_from_the_operators_pin_of_this_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, reference: int | None
) -> None:
    """A pin that another run (seed 7) left in the same folder is not taken for this one's."""
    write_run(tmp_path / "run", None)
    run_here(monkeypatch, tmp_path, "--steps=10", f"--seed={seed}")
    folder = tmp_path / "c"
    (folder / names.PINS_FOLDER / "uid").mkdir(parents=True)
    (folder / "step-5").rename(folder / names.PINS_FOLDER / "uid" / "1-9f2c41d0-5")
    if seed != 3:
        shutil.rmtree(folder / "step-10")
        shutil.rmtree(folder / "step-0")
    write_run(tmp_path / "run", 5)
    lines = run_here(monkeypatch, tmp_path, "--steps=15", "--checkpoint-every=100")
    assert lines[-1]["step"] == 15
    assert lines[-1].get("differences", {}).get("reference") == reference


def test_without_the_references_checkpoint_nothing_is_made_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING")
    write_run(tmp_path / "run", 7)  # no checkpoint of this step
    lines = run_here(monkeypatch, tmp_path, "--steps=20")
    assert all("differences" not in line for line in lines)
    assert math.isfinite(lines[-1]["gold"])
    assert caplog.text.count("no usable checkpoint of reference step 7") == 1
