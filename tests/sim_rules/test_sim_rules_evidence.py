"""Histories, truth, evaluation and tuning, and the commands that print them."""

from __future__ import annotations

import gzip
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from controller.cli.main import app
from controller.policy.stopping import MODIFIERS, RULES
from controller.policy.types import EvalPoint, Paired, PolicySpec
from sim import specs
from sim.foresight import RuleSpec
from sim.rules import evaluate, families, flat, tables, tune, vector
from sim.rules.history import HistoryError, Series, grouped, read, write
from sim.rules.truth import truth


def series(scores: list[float], label: str | None = None, run: str = "s", **more) -> Series:
    steps = tuple(float(10 * i) for i in range(len(scores)))
    return Series(
        "s", run, "f", label, steps, tuple(scores), (more.pop("stderr", None),) * len(scores), **more
    )


# --- histories ---------------------------------------------------------------------------------------

EVALUATE = ("rules", "evaluate", "--no-plot", "--rule", "scan")
LOSS = "{0},1,2,\n{0},2,2.5,\n{0},3,1.5,\n{0},4,1.2,\n{0},5,1,\n{0},6,0.9,"

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


def test_a_loss_falls_and_is_no_decline(tmp_path: Path) -> None:
    """A spreadsheet's file, with its byte order mark."""
    path = tmp_path / "loss.csv"
    rows = [f"r{run},{step},{2.0 * 0.9**step + 0.001 * (step % 3)}" for run in range(3) for step in range(20)]
    path.write_text("\n".join(["series_id,step,eval", *rows]), encoding="utf-8-sig")
    for more, declining in ((), 3), (("--lower-is-better",), 0):
        command = ["rules", "evaluate", str(path), "--rule", "scan", "--no-plot", "--json", *more]
        done = CliRunner().invoke(app, command)
        assert json.loads(done.stdout)["rows"][0]["declining"] == declining
        assert ("higher counts as better" in done.stderr) is (declining == 3)


def test_every_column_reaches_the_rules(tmp_path: Path) -> None:
    pairs = "reference_step,paired_prompts,paired_mean,paired_variance"
    path = tmp_path / "h.csv"
    path.write_text(
        f"series_id,step,eval,proxy,kl,stderr,n,label,{pairs}\n"
        "a,1,0.5,1.5,0.25,0.1,80,healthy,,,,\n"
        "a,2,0.4,,,,,healthy,1,80,-0.1,0.2\n"
    )
    (found,) = read(path)
    assert found.kls == (0.25, None)
    assert list(found.points()) == [
        EvalPoint(1, 0.5, stderr=0.1, samples=80, proxy=1.5),
        EvalPoint(2, 0.4, paired=Paired(1, 80, -0.1, 0.2)),
    ]
    again = tmp_path / "again.csv"
    write(again, [found])
    assert read(again) == [found]


def test_parquet_reads_alike_or_says_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "h.parquet"
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError:
        path.write_bytes(b"")
        with pytest.raises(HistoryError, match=r"h\.parquet: reading Parquet needs the package pyarrow"):
            read(path)
        return
    columns = {"series_id": ["a", "a"], "step": [1, 2], "eval": [0.5, None], "stderr": [0.1, 0.1]}
    parquet.write_table(arrow.table(columns), path)
    (found,) = read(path)
    assert (found.steps, found.scores, found.stderrs) == ((1.0,), (0.5,), (0.1,))


def test_runs_can_be_named_by_a_pattern() -> None:
    named = [replace(series([1.0]), id=f"lm/model-{i // 2}/task-{i}") for i in range(4)]
    assert [s.run for s in grouped(named, "^lm/[^/]+")] == [
        "lm/model-0",
        "lm/model-0",
        "lm/model-1",
        "lm/model-1",
    ]
    assert [s.run for s in grouped(named, "task-[01]$")] == ["task-0", "task-1", "s", "s"]
    with pytest.raises(HistoryError, match=r"--run: '\(' is no regular expression"):
        grouped(named, "(")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("h.csv", "series_id,step\na,1\n", r"h\.csv:2: eval: no such column; columns seen: series_id, step"),
        (
            "h.csv",
            'series_id,step,eval\n"a,1,2\nb,1,2\n',
            r'h\.csv:2: a quote \("\) opens in this row and is never',
        ),
        (
            "h.csv",
            'series_id,step,eval\n"a,1,2\nb",1\n',
            r"h\.csv:2: eval: is missing .*; the row goes on to line 3",
        ),
        (
            "h.csv",
            "series_id,step,eval\n\na,1\n",
            r"h\.csv:3: eval: is missing in this row, was it cut off\?",
        ),
        ("h.csv", "series_id,step,eval\na,1,2,3\n", r"h\.csv:2: 4 cells under 3 columns"),
        ("h.csv", "series_id,step,eval,step\na,1,2,3\n", r"h\.csv:1: step: is there twice"),
        (
            "h.csv",
            "series_id;step;eval\na;1;2\n",
            r"series_id: no such column; .*; columns are parted by ';', expected a",
        ),
        ("h.csv", "series_id,step,eval\n\x1b[31ma,1,2\n", r"h\.csv:2: series_id: .* has control characters"),
        ("h.csv", "series_id,step,eval\na,1,x\n", r"h\.csv:2: eval: 'x' is no number"),
        ("h.csv", "series_id,step,eval\na,,1\n", r"h\.csv:2: step: empty"),
        ("h.csv", "series_id,step,eval\na,inf,1\n", r"h\.csv:2: step: 'inf', expected a finite"),
        ("h.csv", "series_id,step,eval\n", r"no evals in it"),
        ("h.csv", "Series ID,Step,Eval\na,1,1\n", r"; 'Series ID' is there, expected 'series_id'"),
        ("h.csv", "", r"h\.csv:1: is empty, expected the names of its columns, series_id, step, eval among"),
        ("h.csv", "\na,1,2\n", r"h\.csv:1: its first line is empty, expected the names"),
        ("h.csv", '"series_id', r'h\.csv:1: a quote \("\) opens in this row and is never'),
        (
            "h.csv",
            "series_id;step;eval\na;1;0,5\n",
            r"h\.csv:2: 2 cells under 1 column; columns are parted by ';', expected a comma",
        ),
        (
            "h.csv",
            "series_id,step,eval,reference_step,paired_prompts,paired_mean,paired_variance\na,1,1,0,80,,1\n",
            r"h\.csv:2: paired_mean: empty, expected a number beside",
        ),
        (
            "h.csv",
            "series_id,step,eval,reference_step,paired_prompts,paired_mean,paired_variance\na,1,1,0,1,0,1\n",
            r"h\.csv:2: paired_prompts, paired_variance: '1', '1', expected at least 2",
        ),
        ("h.jsonl", "{}\n{\n", r"h\.jsonl:(1: series_id: no such column|2: not JSON)"),
        ("h.jsonl", '{"format": "evalstop-trace"}\n', r"columns seen: format; .* evalstop export --evals"),
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
STEADY = np.random.default_rng(8).normal(0.0, 0.05, 48).tolist()


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
        (STEADY, None, "healthy", None),
        ([*STEADY[:40], *(s - 0.5 for s in STEADY[40:])], None, "declining", None),
        # One deep dip at the end, or noise that grew: the last stretch does not show where it lies.
        ([*STEADY[:46], -1.0, *STEADY[47:]], None, "healthy", None),
        ([*STEADY[:42], *(12 * s - 0.3 for s in STEADY[42:])], None, "ambiguous", None),
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
        series(fall, "declining", "a", peak_step=10.0),
        series([1.0, 0.5, 0.2, 2.0, 0.0], "declining", "b", peak_step=30.0),  # stopped before its peak
        series([0.0, 1.0, 1.1, 1.2, 1.3], "healthy", "c"),
        series([3.0, 2.0, 1.0, 0.0, 9.0], "healthy", "d"),
        series([0.0] * 5, "plateau", "e"),
    )
    stops = evaluate.first_stops(specs.rule("kDeclines:k=2"), data)
    assert stops.tolist() == [3, 2, -1, 2, -1]
    (row,) = evaluate.rows("r", data, stops)
    assert (row.runs, row.series, row.healthy, row.plateaus, row.declining) == (5, 5, 2, 1, 2)
    assert (row.false_stops, row.plateau_stops) == (0.5, 0.0)
    assert (row.caught, row.premature, row.delay) == (0.5, 0.5, 2.0)
    assert row.saved == pytest.approx(0.5 * (40 - 30) / (40 - 10))
    low, high = row.intervals["caught"]
    assert low < 0.05
    assert high > 0.95
    assert row.false_stops_bound == pytest.approx(0.975, abs=0.001)  # of 1 in 2: 1 - p^2 <= .05


def test_series_of_one_run_are_no_new_evidence() -> None:
    """Forty healthy series, none stopped: of forty runs, or of four."""
    rise = [i / 10 for i in range(9)]
    rows = {}
    for runs in (40, 4):
        data = judged(*(series(rise, "healthy", f"r{i % runs}") for i in range(40)))
        (rows[runs],) = evaluate.rows("r", data, np.full(40, -1))
    assert (rows[40].runs, rows[4].runs, rows[4].series) == (40, 4, 40)
    assert rows[40].false_stops_bound == pytest.approx(1 - 0.05 ** (1 / 40))
    assert rows[4].false_stops_bound == pytest.approx(1 - 0.05 ** (1 / 4))
    assert rows[4].intervals["false_stops"][1] == pytest.approx(1 - 0.025 ** (1 / 4))


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
    for name in ("scan", "cusum", "drawdown", "kDeclines"):
        tuned = tune.tune(name, chosen_on, 0.025)
        assert tuned is not None
        assert tuned.false_stops <= 0.025
        rows[name] = evaluate.rows(name, judged_on, evaluate.first_stops(tuned.spec, judged_on))[0]
    assert rows["scan"].intervals["false_stops"][0] <= 0.025
    assert rows["scan"].caught >= 0.95
    assert rows["scan"].saved >= 0.55
    assert rows["scan"].saved > rows["cusum"].saved
    assert rows["scan"].saved > rows["drawdown"].saved - 0.02
    assert rows["kDeclines"].caught < 0.3


@pytest.mark.parametrize("family", ["gao_rl", "gao_bon"])
def test_the_tuned_scan_finds_most_of_what_the_oracle_finds(family: str) -> None:
    """On Gao's laws, chosen and judged on different runs, by bounds at 2.5 % false stops of rising runs."""
    drawn = families.draw(family, evals=50, noise=0.05, runs=1000, seed=0)
    chosen_on, judged_on = tune.halves(evaluate.judge(drawn.series))
    found = tune.tune("scan", chosen_on, 0.025)
    assert found is not None
    assert not found.few
    (row,) = evaluate.rows("scan", judged_on, evaluate.first_stops(found.spec, judged_on))
    assert row.false_stops <= 0.025
    assert row.caught >= 0.85 * families.oracle(drawn, 0.05)


def test_with_too_few_healthy_runs_the_observed_rate_is_kept() -> None:
    data = evaluate.judge(families.draw("linear", evals=30, noise=0.05, runs=20, seed=2).series)
    tuned = tune.tune("scan", data, 0.05)
    assert tuned is not None
    assert tuned.few
    assert tuned.false_stops <= 0.05


def test_a_rule_that_cannot_keep_to_the_rate_is_not_tuned() -> None:
    """Healthy by their labels, in free fall by any test: no alpha is small enough for them."""
    fall = np.concatenate([np.zeros(20), -np.arange(20.0)])
    noise = np.random.default_rng(2).normal(0.0, 1e-3, (30, 40))
    data = judged(*(series((fall + row).tolist(), "healthy", f"r{i}") for i, row in enumerate(noise)))
    assert tune.tune("glr", data, 0.05) is None
    found = tune.tune("cusum", data, 0.05)
    assert found is not None
    assert found.false_stops <= 0.05


def test_the_oracle_knows_more_than_any_rule() -> None:
    drawn = families.draw("gao_rl", evals=50, noise=0.05, runs=800, seed=0)
    assert families.oracle(drawn, 0.05) == pytest.approx(0.55, abs=0.05)
    assert len({s.id for s in drawn.series}) == 2400


@pytest.mark.parametrize("shape", ["rise", "steps", "late"])
def test_no_run_that_does_not_fall_is_stopped_oftener_than_the_flat_one(shape: str) -> None:
    """The same noise, known to the rule: what rises is stopped later than what stays, or not at all."""
    random = np.random.default_rng(3)
    noise = random.standard_normal((400, 90))
    at = np.arange(90)
    mean = {"rise": 0.05 * at, "steps": np.floor(at / 30) * 1.0, "late": np.maximum(0, at - 60) * 0.3}[shape]
    stderrs = np.ones(noise.shape)
    for name in ("scan", "glr", "drawdown:max_drop=0,sigmas=2,window=4", "cusum"):
        spec = specs.rule(name)
        flat_stops = vector.first_stops(spec, vector.Evals(noise, stderrs))
        stops = vector.first_stops(spec, vector.Evals(noise + mean, stderrs))
        assert not ((stops >= 0) & ((flat_stops < 0) | (stops < flat_stops))).any(), name


def test_the_default_keeps_to_one_flat_run_in_ten_at_its_horizon() -> None:
    """And to one in five however long the run goes on; a longer horizon moves where that is."""
    rows = list(flat.rates("scan", specs.rule("scan"), runs=1500, seed=5, lengths=(50, 400)))
    assert [(r.noise, r.evals) for r in rows] == [
        ("reported", 50),
        ("reported", 400),
        ("uneven", 50),
        ("uneven", 400),
        ("estimated", 50),
        ("estimated", 400),
    ]
    assert all(r.bound <= (0.1 if r.evals == 50 else 0.2) for r in rows)
    assert rows[0].stopped > 0.05  # and not for saying nothing


def test_errors_reported_too_small_void_the_default_s_promise() -> None:
    """As docs/use/stop-rules.md says: at .4 of what they are, most flat runs of 50 evals are stopped."""
    default = tables.DEFAULT
    true, less = (
        list(flat.rates(default, specs.rule(default), runs=500, seed=5, lengths=(50,), reported_times=times))
        for times in (1.0, 0.4)
    )
    assert next(row.stopped for row in true if row.noise == "reported") < 0.05
    assert next(row.stopped for row in less if row.noise == "reported") > 0.8
    assert true[-1] == less[-1], "noise that is estimated does not go by what is reported"


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
    assert names | {"delay", "intervals", "false_stops_bound"} <= set(row)
    assert (row["runs"], row["healthy"], row["declining"]) == (60, 20, 20)
    assert set(row["intervals"]) >= {"false_stops", "caught", "premature", "saved", "delay"}
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
    for wrong in (
        ["evaluate", str(history), "--rule", "nope"],
        ["evaluate", str(history), "--run", "("],
        ["tune", str(history), "--rule", "warmUp"],
        ["generate", str(history), "--prompts", "1"],
        ["flat", "--rule", "medianOfPeers"],
    ):
        assert run(app, ["rules", *wrong]).exit_code == 2


def test_rules_that_need_more_are_shown_where_it_is_there(tmp_path: Path) -> None:
    history, run = tmp_path / "h.csv", CliRunner().invoke
    options = ["--runs", "12", "--evals", "30", "--noise", "0.02", "--proxy", "--prompts", "200"]
    assert run(app, ["rules", "generate", str(history), *options]).exit_code == 0
    for command in ("evaluate", "tune"):
        options = ["--no-plot", "--json", *(["--false-alarm", "0.2"] if command == "tune" else [])]
        done = run(app, ["rules", command, str(history), *options])
        assert done.exit_code == 0, done.output
        rows = {row["rule"].split(":")[0]: row for row in json.loads(done.stdout)["rows"]}
        assert rows["eProcess"]["caught"] > 0.5
        assert ("scan+divergence" in rows) == (command == "evaluate")


def test_flat_rates_as_text_and_as_json() -> None:
    run = CliRunner().invoke
    options = ["rules", "flat", "--rule", "kDeclines", "--runs", "400"]
    document = json.loads(run(app, [*options, "--json"]).stdout)
    shown = {(r["noise"], r["evals"]): r["stopped"] for r in document["rows"]}
    assert shown["reported", 50] == pytest.approx(0.83, abs=0.06)  # evalstop.md, section 2.2
    assert shown["reported", 50] == shown["estimated", 50]
    assert len(run(app, options).stdout.splitlines()) == 1 + len(document["rows"])


def test_flat_rates_of_running_means_are_none_that_a_rule_promises() -> None:
    spec = specs.rule("scan:alpha=0.04+gate")
    (row,) = flat.rates("default", spec, runs=200, seed=21, lengths=(50,), smoothed=5)
    assert row.noise == "smoothed 5"
    assert row.stopped > 0.8
    refused = CliRunner().invoke(app, ["rules", "flat", "--smoothed", "5", "--prompts", "64"])
    assert refused.exit_code == 2
    assert "--smoothed: 5, expected 0 beside --prompts" in refused.output


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
    monkeypatch.setattr(tables, "IN_NOISE", ("scan",))
    monkeypatch.setattr(tables, "CELLS", ((20, 0.0), (20, 0.05)))
    head, line, *rows = tables.tuned(30, 0)
    assert len(rows) == 3 * 3
    assert all(row.count("|") == head.count("|") == line.count("|") for row in rows)
    head, line, *rows = tables.defaults(20, 0)
    assert [row.split(" | ")[1] for row in rows] == [
        *("`scan`", "`glr`", f"`{tables.DEFAULT}`"),
        *("`scan`", "`glr`", f"`{tables.DEFAULT}`", "`scan` estimated", "`eProcess`"),
    ]
    assert all(row.count("|") == head.count("|") == line.count("|") for row in rows)


def test_the_page_on_stop_rules_names_every_rule_and_modifier() -> None:
    text = (Path(__file__).parents[2] / "docs" / "use" / "stop-rules.md").read_text()
    assert all(f"`{name}`" in text for name in (*RULES, *MODIFIERS))


def _evaluated(file: Path, *words: str) -> Result:
    return CliRunner().invoke(app, ["rules", "evaluate", str(file), "--rule", "scan", *words])


def _scores(file: Path, *scores: str) -> Path:
    rows = "".join(f"a,{step},{score}\n" for step, score in enumerate(scores, 1))
    file.write_text("series_id,step,eval\n" + rows)
    return file


@pytest.mark.parametrize(
    ("rows", "more", "note"),
    [
        (
            "a,10,0.5,\na,10,0.6,\na,20,0.7,",
            (),
            "1 row of a step that is there already not used: step 10 of a",
        ),
        ("a,10,0.5,\na,10,0.5,\na,20,0.7,0", (), ""),
        ("a,10,0.5,-0.1\na,20,0.7,0.1", (), "stderr: 1 cell not used, expected at least 0: step 10 of a"),
        (
            f"{LOSS.format('a')}\n{LOSS.format('b')}",
            (),
            "all series end worse than they begin; higher counts",
        ),
        (f"{LOSS.format('a')}\n{LOSS.format('b')}", ("--lower-is-better",), ""),
    ],
)
def test_what_of_a_history_is_not_used_or_looks_wrong_is_noted(
    tmp_path: Path, rows: str, more: tuple[str, ...], note: str
) -> None:
    """Of two scores one was taken, and a loss was three healthy runs, without a word."""
    path = tmp_path / "h.csv"
    path.write_text(f"series_id,step,eval,stderr\n{rows}\n")
    said = CliRunner().invoke(app, [*EVALUATE, str(path), *more])
    notes = [line for line in said.stderr.splitlines() if "counts as healthy" not in line]
    assert said.exit_code == 0
    assert (note in "\n".join(notes), bool(notes)) == (True, bool(note))


def test_a_history_of_which_nothing_can_be_judged_says_so(tmp_path: Path) -> None:
    """Beside 1e9 no noise is left, and the table was of dashes."""
    path = tmp_path / "h.csv"
    rows = "\n".join(f"a,{n},1000000000" for n in range(12))
    path.write_text(f"series_id,step,eval\n{rows}\n")
    said = CliRunner().invoke(app, [*EVALUATE, str(path)])
    assert "note: no series counts as healthy or as declining" in said.stderr


def test_a_history_in_which_no_eval_counts_is_refused(tmp_path: Path) -> None:
    done = _evaluated(_scores(tmp_path / "h.csv", "nan", "inf"))
    assert done.exit_code == 2
    assert "h.csv: no eval in it counts: each is no finite number, or of no samples" in done.stderr


def test_a_picture_that_cannot_be_drawn_is_refused_where_it_was_asked_for(tmp_path: Path) -> None:
    file = _scores(tmp_path / "h.csv", "1", "2", "3", "2", "1")
    done = _evaluated(file, "--plot", str(tmp_path / "h.doc"))
    assert done.exit_code == 2
    assert f"--plot: cannot draw {tmp_path / 'h.doc'}: Format 'doc' is not supported" in done.stderr


def test_scores_near_the_largest_number_are_judged_without_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.chdir(tmp_path)  # the picture goes to build/
    file = _scores(tmp_path / "h.csv", *(("1e308", "-1e308") * 15))
    done = _evaluated(file, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["plot"] is None
    assert "note: no curves drawn: " in done.stderr
    assert not [str(one.message) for one in recwarn if issubclass(one.category, RuntimeWarning)]
