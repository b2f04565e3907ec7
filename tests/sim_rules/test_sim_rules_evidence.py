"""Histories, truth, evaluation and tuning, and the commands that print them."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from controller.cli.main import app
from controller.policy.stopping import MODIFIERS, RULES
from controller.policy.types import PolicySpec
from sim import specs
from sim.foresight import RuleSpec
from sim.rules import evaluate, families, tables, tune
from sim.rules.history import HistoryError, Series, read
from sim.rules.truth import truth


def series(scores: list[float], label: str | None = None, **more) -> Series:
    steps = tuple(float(10 * i) for i in range(len(scores)))
    return Series(
        "s", "s", "f", label, steps, tuple(scores), (more.pop("stderr", None),) * len(scores), **more
    )


# --- histories ---------------------------------------------------------------------------------------

CSV = """series_id,step,eval,stderr,label
a/x,20,0.5,,hacking
a/x,10,0.25,0.1,hacking
a/x,20,9,,
b,1,nan,,auto:healthy
b,2,1,,
"""


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "jsonl"])
def test_formats_read_alike(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"h.{kind}"
    if kind == "csv":
        path.write_text(CSV)
    elif kind == "csv.gz":
        path.write_bytes(gzip.compress(CSV.encode()))
    else:
        head, *rows = [line.split(",") for line in CSV.splitlines()]
        path.write_text("\n".join(json.dumps(dict(zip(head, row, strict=True))) for row in rows) + "\n")
    a, b = read(path)
    assert (a.id, a.run, a.family, a.label) == ("a/x", "a", "a", "declining")
    assert (a.steps, a.scores, a.stderrs) == ((10.0, 20.0), (0.25, 0.5), (0.1, None))
    assert (b.run, b.label, b.scores) == ("b", None, (1.0,))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("h.csv", "series_id,step\na,1\n", r"h\.csv:2: eval: no such column; columns seen: series_id, step"),
        ("h.csv", "series_id,step,eval\na,1,x\n", r"h\.csv:2: eval: 'x' is no number"),
        ("h.csv", "series_id,step,eval\na,,1\n", r"h\.csv:2: step: empty"),
        ("h.csv", "series_id,step,eval\na,inf,1\n", r"h\.csv:2: step: 'inf', expected a finite"),
        ("h.csv", "series_id,step,eval\n", r"no evals in it"),
        ("h.jsonl", "{}\n{\n", r"h\.jsonl:(1: series_id: no such column|2: not JSON)"),
        ("h.jsonl", "[1]\n", r"h\.jsonl:1: expected an object, got list"),
        ("h.txt", "", r"expected a name that ends in \.csv"),
    ],
)
def test_bad_histories_are_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(HistoryError, match=message):
        read(path)
    done = CliRunner().invoke(app, ["rules", "evaluate", str(path)])
    assert done.exit_code == 2


# --- truth -------------------------------------------------------------------------------------------

UP = [i / 10 for i in range(16)]


@pytest.mark.parametrize(
    ("scores", "stderr", "label", "peak"),
    [
        (UP, 0.05, "healthy", 15),
        (UP + UP[::-1], 0.05, "declining", 15),
        ([*UP, *UP[::-1], *UP, 1.6, 1.7, 1.8], 0.05, "healthy", None),  # it recovered
        ([0.0] * 20, 0.05, "healthy", None),
        ([0.0] * 12 + [-0.21] * 4, 0.1, "healthy", None),  # z = 2.1 / sqrt(2 / 2)
        ([0.0] * 12 + [-0.4] * 4, 0.1, "ambiguous", None),  # z = 4
        ([0.0] * 12 + [-0.6] * 4, 0.1, "declining", 1),  # a flat top begins where it begins
        ([0.0, 1.0, -5.0], 0.05, "ambiguous", 0),
        ([0.0] * 20, None, "ambiguous", None),  # no noise seen
    ],
)
def test_truth_of_a_whole_curve(
    scores: list[float], stderr: float | None, label: str, peak: int | None
) -> None:
    found = truth(series(scores, stderr=stderr))
    assert found.label == label
    if peak is not None:
        assert abs(found.peak - peak) <= 1


def test_labels_and_known_peaks_come_first() -> None:
    found = truth(series(UP, "declining", peak_step=45.0))
    assert (found.label, found.peak) == ("declining", 4)


# --- evaluation --------------------------------------------------------------------------------------


def judged(*all_: Series) -> list[evaluate.Judged]:
    return evaluate.judge(all_)


def test_a_row_counts_what_happened() -> None:
    fall = [0.0, 1.0, 0.5, 0.25, 0.0]
    data = judged(
        series(fall, "declining", peak_step=10.0),
        series([1.0, 0.5, 0.2, 2.0, 0.0], "declining", peak_step=30.0),  # stopped before its peak
        series([0.0, 1.0, 1.1, 1.2, 1.3], "healthy"),
        series([3.0, 2.0, 1.0, 0.0, 9.0], "healthy"),
        series([0.0] * 5, "plateau"),
    )
    stops = evaluate.first_stops(specs.rule("kDeclines:k=2"), data)
    assert stops.tolist() == [3, 2, -1, 2, -1]
    (row,) = evaluate.rows("r", data, stops)
    assert (row.runs, row.healthy, row.plateaus, row.declining) == (5, 2, 1, 2)
    assert (row.false_stops, row.plateau_stops) == (0.5, 0.0)
    assert (row.caught, row.premature, row.delay) == (0.5, 0.5, 2.0)
    assert row.saved == pytest.approx(0.5 * (40 - 30) / (40 - 10))
    low, high = row.intervals["caught"]
    assert low < 0.05
    assert high > 0.95


def test_a_rule_without_a_vectorised_form_is_streamed() -> None:
    data = judged(series([3.0, 2.0, 1.0, 0.0], "healthy"))
    spec = specs.rule("medianOfPeers")
    assert evaluate.first_stops(spec, data).tolist() == [-1]


@pytest.mark.parametrize(
    ("hits", "trials", "low", "high"),
    [(0, 100, 0.0, 0.0362), (5, 100, 0.0164, 0.1128), (100, 100, 0.9638, 1.0)],
)
def test_exact_intervals_are_clopper_and_pearsons(hits: int, trials: int, low: float, high: float) -> None:
    assert evaluate.exact_interval(hits, trials) == pytest.approx((low, high), abs=1e-4)


# --- what the rules promise, on generated runs -----------------------------------------------------------


@pytest.fixture(scope="module")
def linear() -> list[evaluate.Judged]:
    return evaluate.judge(families.draw("linear", evals=50, noise=0.05, runs=500, seed=11).series)


@pytest.mark.parametrize("family", ["linear", "plateau"])
def test_glr_keeps_its_bound_where_the_mean_never_falls(family: str) -> None:
    """Known noise, 50 evals, alpha .1: on rising and on flat runs alike."""
    data = families.draw(family, evals=50, noise=0.05, runs=500, seed=4, reported=True)
    spec = RuleSpec(PolicySpec("glr", {"alpha": 0.1}))
    (row,) = evaluate.rows(
        "glr", evaluate.judge(data.series), evaluate.first_stops(spec, evaluate.judge(data.series))
    )
    stopped = [s for s in (row.false_stops, row.plateau_stops) if not math.isnan(s)]
    assert max(stopped) <= 0.1
    assert row.caught > 0.9


def test_tuned_rules_keep_to_the_rate_on_the_other_half(linear: list[evaluate.Judged]) -> None:
    chosen_on, judged_on = tune.halves(linear)
    assert not {j.series.run for j in chosen_on} & {j.series.run for j in judged_on}
    rows = {}
    for name in ("scan", "drawdown", "kDeclines"):
        tuned = tune.tune(name, chosen_on, 0.025)
        assert tuned.false_stops <= 0.025
        rows[name] = evaluate.rows(name, judged_on, evaluate.first_stops(tuned.spec, judged_on))[0]
    assert rows["scan"].intervals["false_stops"][0] <= 0.025
    assert rows["scan"].caught >= 0.95
    assert rows["scan"].saved >= 0.55
    assert rows["scan"].saved > rows["drawdown"].saved - 0.02
    assert rows["kDeclines"].caught < 0.3


def test_with_too_few_healthy_runs_the_observed_rate_is_kept() -> None:
    data = evaluate.judge(families.draw("linear", evals=30, noise=0.05, runs=20, seed=2).series)
    tuned = tune.tune("scan", data, 0.05)
    assert tuned.few
    assert tuned.false_stops <= 0.05


def test_the_oracle_knows_more_than_any_rule() -> None:
    drawn = families.draw("gao_rl", evals=50, noise=0.05, runs=800, seed=0)
    assert families.oracle(drawn, 0.05) == pytest.approx(0.55, abs=0.05)
    assert len({s.id for s in drawn.series}) == 2400


# --- commands ------------------------------------------------------------------------------------------


def test_commands_end_to_end(tmp_path: Path) -> None:
    history, picture = tmp_path / "h.csv", tmp_path / "p.svg"
    run = CliRunner().invoke
    made = run(app, ["rules", "generate", str(history), "--runs", "20", "--evals", "30", "--stderr"])
    assert made.exit_code == 0
    assert "oracle" in made.stdout
    done = run(
        app, ["rules", "evaluate", str(history), "--rule", "scan:window=5", "--plot", str(picture), "--json"]
    )
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    (row,) = document["rows"]
    names = {"rule", "family", "runs", "healthy", "declining", "false_stops", "caught", "premature", "saved"}
    assert names | {"delay", "intervals"} <= set(row)
    assert (row["runs"], row["healthy"], row["declining"]) == (60, 20, 20)
    assert "<svg" in picture.read_text()
    shown = run(app, ["rules", "evaluate", str(history), "--no-plot"])
    assert all(name in shown.stdout for name in ("kDeclines", "scan", "glr", "linear"))
    tuned = run(
        app, ["rules", "tune", str(history), "--false-alarm", "0.1", "--rule", "scan", "--no-plot", "--json"]
    )
    assert tuned.exit_code == 0, tuned.output
    document = json.loads(tuned.stdout)
    assert document["tuned"][0]["parameters"]["threshold"] > 0
    assert specs.rule(document["rows"][0]["rule"])
    for wrong in (["evaluate", str(history), "--rule", "nope"], ["tune", str(history), "--rule", "warmUp"]):
        assert run(app, ["rules", *wrong]).exit_code == 2


def test_the_parameters_read_back_as_they_were_chosen() -> None:
    spec = PolicySpec("scan", {"threshold": 2.167, "window": 12, "usual_noise": 0.0496})
    assert specs.rule(tune.text(spec)).rule == spec


def test_lengths_are_mixed_without_loss() -> None:
    random = np.random.default_rng(1)
    data = judged(
        *(series(random.normal(0, 1, n).tolist(), "healthy") for n in (3, 50, 7, 51, 200, 49, 5)),
    )
    spec = specs.rule("kDeclines:k=2")
    together = evaluate.first_stops(spec, data)
    assert together.tolist() == [evaluate.first_stops(spec, [one])[0] for one in data]


def test_the_tables_have_a_row_for_every_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "RULES", ("scan", "glr"))
    monkeypatch.setattr(tables, "FALLING", ("linear",))
    monkeypatch.setattr(tables, "CELLS", ((20, 0.05),))
    head, line, *rows = tables.tuned(30, 0)
    assert len(rows) == 2
    assert all(row.count("|") == head.count("|") == line.count("|") for row in rows)


def test_the_page_on_stop_rules_names_every_rule_and_modifier() -> None:
    text = (Path(__file__).parents[2] / "docs" / "stop-rules.md").read_text()
    assert all(f"`{name}`" in text for name in (*RULES, *MODIFIERS))
