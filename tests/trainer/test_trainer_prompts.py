"""Results of each prompt: what the client keeps of them, and what it says, read by the operator's parser."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller import names
from controller.metrics.parse import parse
from controller.policy.job import ScrapeView
from controller.policy.types import PromptPair
from evalstop_client import gathered
from evalstop_client.client import PAIRS_KEPT, EvalStopClient
from evalstop_client.prompt_set import of_datasets
from evalstop_client.prompts import BYTES_MAX, FILE, Memory, Results
from evalstop_client.run import Run

PAGE = Path(__file__).parents[2] / "docs" / "use" / "trainers.md"
LISTS = st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3)), min_size=2, max_size=40)


def told(folder: Path, **fields: Any) -> None:
    """As the operator writes run.json."""
    folder.mkdir(exist_ok=True)
    run = {"uid": "u", "attempt": 1, "request": {"id": 0}, "minimize": [], **fields}
    (folder / names.RUN_KEY).write_text(json.dumps(run))


def client(folder: Path | None = None, life: str = "7", **more: Any) -> EvalStopClient:
    return EvalStopClient(folder, port=0, host="127.0.0.1", life=life, **more)


def report(c: EvalStopClient, step: int, scores: Sequence[float], metric: str = "gold", **more: Any) -> None:
    per_prompt = {f"question {i}": float(s) for i, s in enumerate(scores)}
    assert c.report_eval(metric, step, float(np.mean(scores)), per_prompt=per_prompt, **more)


def page(c: EvalStopClient, metric: str = "gold") -> ScrapeView:
    return parse(c.exposition(), metric)


def pairs(c: EvalStopClient, metric: str = "gold") -> dict[int, list[int]]:
    """Steps that each eval is paired with."""
    return {p.step: [pair.step for pair in p.prompt_pairs] for p in page(c, metric).points}


@given(LISTS, st.randoms())
def test_the_operator_reads_what_numpy_would_say(
    scores: list[tuple[float, float]], chance: random.Random
) -> None:
    c = client()
    before, now = np.array(scores).T
    report(c, 10, before)
    shuffled = list(enumerate(now))
    chance.shuffle(shuffled)
    c.report_eval("gold", 20, float(now.mean()), per_prompt={f"question {i}": s for i, s in shuffled})
    first, second = page(c).points
    assert (first.prompts, first.prompt_pairs) == (len(scores), ())
    (pair,) = second.prompt_pairs
    d = now - before
    assert (pair.step, pair.prompts) == (10, len(scores))
    assert pair.mean == pytest.approx(d.mean(), rel=1e-4, abs=1e-9)
    assert pair.variance == pytest.approx(d.var(ddof=1), rel=1e-4, abs=1e-9)


def test_the_best_the_last_and_the_named_step_are_paired(tmp_path: Path) -> None:
    told(tmp_path)
    c = client(tmp_path)
    for step, score in ((10, 0.1), (20, 0.9), (30, 0.5), (40, 0.6)):
        report(c, step, [score, score, score + 0.05])
    assert pairs(c) == {10: [], 20: [10], 30: [20], 40: [20, 30]}
    told(tmp_path, best={"metric": "gold", "step": 40})
    c.poll()
    for step in (50, 60):
        report(c, step, [0.5, 0.5, 0.5])
    assert pairs(c)[60] == [20, 40, 50], "the named one stays, though it is neither best nor last"
    assert page(c).message == ""


def test_lower_is_better_where_run_json_says_so(tmp_path: Path) -> None:
    told(tmp_path, minimize=["loss"])
    c = client(tmp_path)
    for step, score in ((10, 0.9), (20, 0.1), (30, 0.5), (40, 0.6)):
        report(c, step, [score, score + 0.1], metric="loss")
    assert pairs(c, "loss")[40] == [20, 30]
    told(tmp_path, minimize=[])
    c.poll()
    report(c, 50, [0.5, 0.5], metric="loss")
    assert pairs(c, "loss")[50] == [40]
    assert "step 50 is not paired: the metric's direction was corrected" in page(c, "loss").message
    report(c, 60, [0.5, 0.5], metric="loss")
    assert "direction" not in page(c, "loss").message.partition("step 60")[2]


def test_a_score_that_is_no_number_is_no_best_and_no_last(tmp_path: Path) -> None:
    told(tmp_path)
    c = client(tmp_path)
    for step, score in ((10, float("nan")), (20, 0.9), (30, 0.5), (40, float("nan")), (50, 0.6)):
        c.report_eval(
            "gold", step, score, per_prompt={"a": 0.0, "b": 2.0 * (0.0 if score != score else score)}
        )
    assert pairs(c) == {10: [], 20: [], 30: [20], 40: [], 50: [20, 30]}


def test_several_answers_are_averaged_and_duplicates_dropped() -> None:
    rows = [("a", 0, 1.0), ("b", 0, 0.0), ("a", 1, 0.0), ("b", 1, 0.0), ("a", 0, 1.0)]
    assert gathered(rows) == {"a": [1.0, 0.0], "b": [0.0, 0.0]}
    c = client()
    c.report_eval("gold", 10, 0.25, per_prompt=gathered(rows))
    c.report_eval("gold", 20, 1.0, per_prompt={"b": np.array([1.0, 1.0]), "a": 1})
    (pair,) = page(c).points[1].prompt_pairs
    assert pair == PromptPair(10, 2, 0.75, 0.125)
    assert [p.prompts for p in page(c).points] == [2, 2]


def test_pairs_whose_mean_is_not_the_difference_of_the_scores_are_dropped_and_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    c = client()
    report(c, 10, [0.0, 1.0])
    c.report_eval("gold", 20, 0.9, per_prompt={"question 0": 0.0, "question 1": 1.0})
    assert pairs(c) == {10: [], 20: []}
    assert "step 20 is not paired: the mean over its prompts is not the difference" in page(c).message
    assert "eval of gold at step 20 is not paired: MeanDiffers" in caplog.text


def test_scores_that_were_rounded_are_paired_all_the_same() -> None:
    chance = np.random.default_rng(1)
    c = client()
    for step in (10, 20):
        scores = (chance.random(1319) < 0.4).astype(float)
        c.report_eval("gold", step, round(float(scores.mean()), 4), per_prompt=dict(enumerate(scores)))
    assert pairs(c)[20] == [10]


def test_other_prompts_are_not_paired_and_said(tmp_path: Path) -> None:
    c = client()
    report(c, 10, [0.0, 1.0])
    report(c, 20, [0.0, 1.0, 1.0])
    assert pairs(c)[20] == []
    assert "the prompts of step 20 are not those of step 10: not paired" in page(c).message


def test_no_key_and_no_text_leaves_the_process(tmp_path: Path) -> None:
    c = client()
    c.resume_path(tmp_path)
    for step in (10, 20):
        c.report_eval("gold", step, 0.5, per_prompt={"What is 6 x 7?": 0.0, "a secret": 1.0})
    for text in (c.exposition().decode(), (tmp_path / FILE).read_text()):
        assert "secret" not in text
        assert "6 x 7" not in text


def test_a_restarted_process_goes_on_from_the_volume(tmp_path: Path) -> None:
    told(tmp_path / "run")
    first = client(tmp_path / "run")
    first.resume_path(tmp_path)
    for step, score in ((10, 0.2), (20, 0.9), (30, 0.3), (40, 0.2)):
        report(first, step, [score, score + 0.1])
    second = client(tmp_path / "run", life="8")
    second.resume_path(tmp_path)
    second.resumed(30)
    report(second, 40, [0.25, 0.35])
    assert pairs(second) == {40: [20]}, "the last one, of step 40, is of a branch that was left"
    other = client(None, life="9")
    other.resume_path(tmp_path)
    report(other, 50, [0.25, 0.35])
    assert pairs(other) == {50: []}, "of another RLHFJob"


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"uid": "u", "metrics": {"gold": {"results": [{}]}}}', "[" * 10**5]
)
def test_a_file_that_cannot_be_read_costs_the_pairs_alone(tmp_path: Path, content: str) -> None:
    told(tmp_path / "run")
    (tmp_path / ".evalstop").mkdir()
    (tmp_path / FILE).write_text(content)
    c = client(tmp_path / "run")
    c.resume_path(tmp_path)
    c.resumed(30)
    report(c, 40, [0.25, 0.35])
    assert pairs(c) == {40: []}
    assert "step 40 is not paired: the results of the best eval are gone" in page(c).message
    report(c, 50, [0.25, 0.35])
    assert pairs(c)[50] == [40]


def test_a_folder_that_cannot_be_written_costs_the_memory_of_a_restart_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    c = client()
    c.resume_path(tmp_path / "file")
    report(c, 10, [0.0, 1.0])
    report(c, 20, [1.0, 1.0])
    assert pairs(c)[20] == [10]
    assert "results of gold at step 20 are not kept over a restart" in caplog.text


def test_at_most_a_megabyte_is_kept(tmp_path: Path) -> None:
    c = client()
    c.resume_path(tmp_path)
    report(c, 10, [0.5] * 20_000)
    report(c, 20, [0.5] * 20_000)
    assert 0 < (tmp_path / FILE).stat().st_size <= BYTES_MAX
    report(c, 30, [0.5] * 100_000)
    assert (tmp_path / FILE).stat().st_size <= BYTES_MAX
    assert page(c).points[-1].prompts == 100_000


def test_too_large_results_are_told() -> None:
    memory = Memory()
    found = memory.add(
        "gold", Results(10, 0.5, "1", "0" * 16, [0.5] * 100_000), minimize=False, named=None, began=0
    )
    assert found.dropped == ("TooLarge",)


@pytest.mark.parametrize(
    "bad", [{}, {"a": float("nan")}, {"a": []}, {"a": "x"}, [0.5], {"a": float("inf"), "b": 1}]
)
def test_what_cannot_be_used_is_logged_and_the_eval_counts(
    bad: Any, caplog: pytest.LogCaptureFixture
) -> None:
    c = client()
    assert c.report_eval("gold", 10, 0.5, per_prompt=bad)
    (point,) = page(c).points
    assert (point.score, point.prompts) == (0.5, None)
    assert "eval of gold at step 10 is not compared prompt by prompt" in caplog.text


def test_another_evaluators_results_are_not_compared() -> None:
    c = client()
    report(c, 10, [0.0, 1.0])
    c.set_evaluator("2")
    report(c, 20, [1.0, 1.0])
    report(c, 30, [1.0, 0.0])
    assert pairs(c) == {20: [], 30: [20]}


def test_an_eval_of_no_prompts_is_ignored() -> None:
    c = client()
    assert not c.report_eval("gold", 10, 0.5, prompts=0)
    with pytest.raises(ValueError, match="prompts: expected an integer >= 0, got -1"):
        c.report_eval("gold", 10, 0.5, prompts=-1)
    assert c.report_eval("gold", 10, 0.5, samples=240, prompts=30)
    assert page(c).points[0].prompts == 30


def test_only_the_newest_evals_show_pairs() -> None:
    c = client()
    for step in range(20):
        report(c, step, [step, step + 1.0])
    found = pairs(c)
    assert [step for step, of in found.items() if of] == list(range(20 - PAIRS_KEPT, 20))
    assert {p.prompts for p in page(c).points} == {2}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"minimize": "loss"}, "minimize: expected a list of names of metrics, got 'loss'"),
        ({"minimize": [1]}, "minimize: expected a list of names of metrics"),
        ({"best": 400}, "best: expected null or"),
        ({"best": {"metric": "gold", "step": -1}}, "best.step: expected an integer >= 0, got -1"),
    ],
)
def test_a_run_file_that_says_it_wrongly_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, fields: dict[str, Any], said: str
) -> None:
    told(tmp_path, **fields)
    client(tmp_path)
    assert said in caplog.text


# what adapters are made of


def test_a_run_hands_over_what_each_prompt_scored() -> None:
    run = Run("gold", client())
    run.evaluated(10, 0.5, per_prompt={"a": 1.0, "b": 0.0})
    run.flush()
    run.scored({"b": 1.0, "a": 1.0})
    run.evaluated(20, {"gold": 1.0, "other": 3.0})
    run.flush()
    run.evaluated(30, 0.5, prompts=2)
    run.flush()
    assert pairs(run.client) == {10: [], 20: [10], 30: []}
    assert [p.prompts for p in page(run.client).points] == [2, 2, 2]
    assert [p.prompts for p in page(run.client, "other").points] == [None]


def test_the_block_of_the_page_hands_over_what_each_prompt_scored() -> None:
    """Its first line is of a loop of one's own, its second of an adapter, whose eval ends in a log."""
    (block,) = re.findall(r"```python\n(run\.evaluated\(.*?)```", PAGE.read_text(), re.DOTALL)
    run = Run("gold", client())
    results = [SimpleNamespace(id=f"question {n}", score=float(n % 2)) for n in range(8)]
    exec(
        block, {"run": run, "callback": SimpleNamespace(run=run), "step": 10, "mean": 0.5, "results": results}
    )
    run.evaluated(20, {"gold": 0.5})
    run.flush()
    assert pairs(run.client) == {10: [], 20: [10]}
    assert [p.prompts for p in page(run.client).points] == [8, 8]


class Dataset(list[str]):
    """Prompts, as a dataset of one column."""

    column_names = ("prompt",)

    def __getitem__(self, column: Any) -> Any:
        return list(self) if column == "prompt" else super().__getitem__(column)


def test_a_digest_in_the_version_is_that_of_the_results_on_the_page() -> None:
    asked = Dataset(["b", "a", "c"])
    shown = Results.of(10, 0.5, "1", dict.fromkeys(asked, 0.5)).digest
    assert of_datasets([asked]) == of_datasets([Dataset("c"), Dataset(["b", "a"])]) == shown
    assert of_datasets([Dataset(["a", "a"])]) != of_datasets([Dataset("a")])
    assert of_datasets([asked, ["d"]]) is None
    assert of_datasets([]) is None


def test_settings_of_the_evals_are_in_the_evaluators_version() -> None:
    run = Run("gold", client(evaluator="judge-3"))
    run.evaluated_by(temperature=None)
    assert run.client.evaluator == "judge-3"
    for _ in range(2):
        run.evaluated_by(temperature=0.6, k=8, tokens=None)
        assert run.client.evaluator == "judge-3;k=8;temperature=0.6"
    run.evaluated_by(prompts="a")
    assert run.client.evaluator == "judge-3;k=8;prompts=a;temperature=0.6", "earlier ones stay"
    run.evaluated_by(prompts="/data/" + "x" * 200)
    long = run.client.evaluator
    assert long.startswith("judge-3;")
    assert len(long) <= 128
    run.evaluated_by(prompts="/data/" + "y" * 200)
    assert run.client.evaluator != long
