"""`evalstop rules`: how stop rules do on a history of evals, and at which parameters they do best.

Exit codes: 0 done, 2 the history or a rule cannot be used.
"""

from __future__ import annotations

import json as json_module
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from controller.cli import rules_text
from controller.cli.terminal import terminal
from controller.policy.wording import counted

if TYPE_CHECKING:
    from sim.rules.evaluate import Judged, Row

UNUSABLE = 2
DEFAULT = "scan:alpha=0.04+gate"  # what an RLHFJob gets that names neither rule nor modifiers
TWIN = "twin"  # of `generate --family`
DEFAULTS = ("kDeclines", "drawdown", "cusum", "scan", "glr", DEFAULT)
WITH_OUTLIERS = (
    "scan",
    "glr",
    "scan+patience:evals=3",
    "scan+confirm",
    "scan:alpha=0.04+gate:evals=1",
    DEFAULT,
    "scan:alpha=0.04+patience+gate",
    "scan:alpha=0.04+gate:count_dropped=true",
)
WITH_PROMPTS = ("scan", "scan:alpha=0.04", "glr", DEFAULT, "scan:alpha=0.04+gate:evals=1")
CANDIDATES = (  # for the default
    *("kDeclines", "drawdown", "cusum", "scan", "glr", "scan+patience", "scan+gate", "scan+patience+gate"),
    *(
        f"scan:alpha={a}{after}"
        for a in ("0.025", "0.03", "0.035", "0.04", "0.045", "0.05", "0.1")
        for after in ("+gate", "", "+gate:evals=1", "+patience")
    ),
)
MOST_EVALS, MOST_PROMPTS = 10_000, 100_000  # of `flat`
WITH_PAIRS = "eProcess"  # shown too where a history has what it needs
WITH_PROXIES = "scan+divergence"

app = typer.Typer(name="rules", help="Stop rules on histories of evals.", no_args_is_help=True)

History = Annotated[
    Path,
    typer.Argument(
        help="CSV (also .gz), JSONL or Parquet: series_id, step, eval (higher is better); optional proxy, "
        "kl, stderr, n, label, family, run, peak_step, prompts, lowest, highest, total_steps, "
        "reference_step, paired_prompts, paired_mean, paired_variance.",
        exists=True,
        dir_okay=False,
        readable=True,
    ),
]
Rules = Annotated[
    list[str] | None,
    typer.Option("--rule", help="NAME or NAME:param=value,…; modifiers follow after a +. May be repeated."),
]
RunPattern = Annotated[
    str | None,
    typer.Option("--run", help="Regular expression; what it matches of a series_id names the run it is of."),
]
Lower = Annotated[bool, typer.Option("--lower-is-better", help="Of the evals, as of a loss.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout; nothing else goes there.")]
Plot = Annotated[
    Path | None,
    typer.Option("--plot", help="Where to draw the curves (.svg, .png, .pdf); default: beside build/."),
]
NoPlot = Annotated[bool, typer.Option("--no-plot", help="Draw nothing.")]


@app.command()
def evaluate(
    history: History,
    rule: Rules = None,
    run: RunPattern = None,
    lower: Lower = False,
    json: Json = False,
    plot: Plot = None,
    no_plot: NoPlot = False,
) -> None:
    """False stops, declines caught, time saved by each rule on a HISTORY."""  # noqa: D401 -- help text
    from sim import specs
    from sim.rules import evaluate as evaluation

    try:
        judged = _read(history, run, lower)
        named = {text: specs.rule(text) for text in rule or _shown(judged)}
    except (ValueError, OSError) as error:
        raise _unusable(error) from None
    stops = {text: evaluation.first_stops(spec, judged) for text, spec in named.items()}
    found = [row for text in named for row in evaluation.rows(text, judged, stops[text])]
    drawn = None if no_plot else _draw(plot, history, "evaluate", judged, stops)
    _put_out(found, {"command": "evaluate", "history": str(history)}, json, drawn)


@app.command()
def tune(
    history: History,
    false_alarm: Annotated[
        float, typer.Option(help="Share of healthy runs that may be stopped.", min=0.0001, max=0.5)
    ] = 0.025,
    rule: Annotated[
        list[str] | None, typer.Option("--rule", help="Name of a rule to tune; default: all that can be.")
    ] = None,
    plateaus: Annotated[
        bool, typer.Option("--plateaus", help="Runs labelled plateau count as healthy while choosing.")
    ] = False,
    run: RunPattern = None,
    lower: Lower = False,
    json: Json = False,
    plot: Plot = None,
    no_plot: NoPlot = False,
) -> None:
    """Each rule at its best at a rate of false stops: chosen on half of a HISTORY, judged on the other."""
    from sim.rules import evaluate as evaluation
    from sim.rules import tune as tuning
    from sim.rules import vector

    try:
        unknown = [name for name in rule or () if name not in vector.FORMS]
        if unknown:
            raise ValueError(
                f"--rule: {unknown[0]!r} cannot be tuned, expected one of {', '.join(vector.FORMS)}"
            )
        judged = _read(history, run, lower)
        if not any(j.truth.label == "healthy" for j in judged):
            raise ValueError(f"{history}: no healthy run in it, so no rate of false stops can be chosen")
    except (ValueError, OSError) as error:
        raise _unusable(error) from None
    chosen_on, judged_on = tuning.halves(judged)
    found: list[Row] = []
    notes: list[dict[str, Any]] = []
    stops = {}
    for name in rule or [name for name in _shown(judged) if name in vector.FORMS]:
        tuned = tuning.tune(name, chosen_on, false_alarm, plateaus=plateaus)
        if tuned is None:
            typer.echo(f"{name}: no parameters keep to {false_alarm:g} false stops on this history", err=True)
            notes.append({"rule": name, "parameters": None, "bounded": False})
            continue
        text = tuning.named(tuned)
        stops[text] = evaluation.first_stops(tuned.spec, judged_on)
        found += evaluation.rows(text, judged_on, stops[text])
        notes.append({"rule": name, "parameters": dict(tuned.spec.rule.params), "bounded": not tuned.few})
    if any(n["parameters"] is not None and not n["bounded"] for n in notes):
        typer.echo(
            f"too few healthy runs to bound the rate of false stops at {false_alarm:g}: "
            "only the observed rate keeps to it",
            err=True,
        )
    drawn = None if no_plot else _draw(plot, history, "tune", judged_on, stops)
    head = {"command": "tune", "history": str(history), "false_alarm": false_alarm, "tuned": notes}
    _put_out(found, head, json, drawn)


@app.command()
def generate(
    out: Annotated[Path, typer.Argument(help="File to write (.csv).", dir_okay=False)],
    family: Annotated[
        str,
        typer.Option(
            help="Curve family of the simulator; twin: runs like public ones, whose evals, noise and prompts "
            "are drawn with them."
        ),
    ] = "linear",
    evals: Annotated[int, typer.Option(help="Evals of each run.", min=2, max=10_000)] = 50,
    noise: Annotated[float, typer.Option(help="Standard deviation of one eval.", min=0.0, max=10.0)] = 0.05,
    runs: Annotated[int, typer.Option(help="Runs of each kind.", min=1, max=100_000)] = 1000,
    seed: Annotated[int, typer.Option(help="Seed.", min=0)] = 0,
    stderr: Annotated[bool, typer.Option("--stderr", help="With the true noise as standard errors.")] = False,
    proxy: Annotated[bool, typer.Option("--proxy", help="With the proxy reward.")] = False,
    prompts: Annotated[
        int,
        typer.Option(help="Prompts on which each eval is compared with the best before it; 0: none.", min=0),
    ] = 0,
) -> None:
    """Write a history of generated runs: declining, healthy and flat ones; print the oracle's power."""
    from sim.rules import families
    from sim.rules.history import write
    from sim.workloads.curves import FAMILIES

    if family == TWIN:
        _write_twin(out, runs, seed)
        return
    if family not in FAMILIES:
        raise _unusable(
            ValueError(f"--family: {family!r} is not known, expected one of {', '.join((*FAMILIES, TWIN))}")
        )
    if prompts == 1:
        raise _unusable(ValueError("--prompts: 1 has no variance, expected 0 or at least 2"))
    drawn = families.draw(
        family, evals=evals, noise=noise, runs=runs, seed=seed, reported=stderr, proxy=proxy, prompts=prompts
    )
    write(out, drawn.series)
    typer.echo(f"{out}: {counted(len(drawn.series), 'run')} of {counted(evals, 'eval')}", err=True)
    if noise > 0:
        typer.echo(
            f"oracle (peak, level, curve and noise known, .025): {families.oracle(drawn, noise):.3f} caught"
        )


def _write_twin(out: Path, runs: int, seed: int) -> None:
    from sim import twin
    from sim.rules import twin_series
    from sim.rules.history import write

    drawn = list(twin.draw(runs, seed))
    write(out, twin_series.series(drawn))
    falling = [run for run in drawn if run.kind == twin.DECLINING]
    stops = [twin.ceiling(run) for run in falling]
    caught = sum(stop >= 0 for stop in stops) / runs
    saved = sum(twin.saved(run, stop) for run, stop in zip(falling, stops, strict=True)) / runs
    typer.echo(f"{out}: {counted(len(drawn), 'run')}", err=True)
    typer.echo(f"who knows the curve: {caught:.3f} caught, {saved:.3f} saved")


@app.command()
def flat(
    rule: Rules = None,
    runs: Annotated[int, typer.Option(help="Flat runs.", min=10, max=1_000_000)] = 4000,
    seed: Annotated[int, typer.Option(help="Seed.", min=0)] = 0,
    evals: Annotated[
        list[int] | None,
        typer.Option(help="Evals of a run. May be repeated. By default six lengths from 10 to 500."),
    ] = None,
    reported_times: Annotated[
        float,
        typer.Option(help="Standard errors are reported as so many times what they are.", min=0.01, max=100),
    ] = 1.0,
    total: Annotated[
        str,
        typer.Option(
            help="What is said of a run's length: unknown, known, too-small (a fifth), too-large (5 times), "
            "changing."
        ),
    ] = "unknown",
    prompts: Annotated[
        int, typer.Option(help="Prompts of each eval, answered right or wrong; 0: Gaussian noise.", min=0)
    ] = 0,
    score: Annotated[
        float, typer.Option(help="With --prompts: true share that is answered right.", min=0.0, max=1.0)
    ] = 0.5,
    how: Annotated[
        str,
        typer.Option(help="With --prompts: fresh at each eval, fixed, or wandering in how hard each is."),
    ] = "fresh",
    wander: Annotated[
        float,
        typer.Option(help="With --how wandering: of a prompt's difficulty, logits an eval.", min=0, max=10),
    ] = 0.6,
    pairs: Annotated[
        bool,
        typer.Option("--pairs", help="With --how fixed, wandering: differences by prompt are told too."),
    ] = False,
    smoothed: Annotated[
        int,
        typer.Option(help="Each score is the mean of so many newest evals; 0: it is an eval.", min=0, max=50),
    ] = 0,
    json: Json = False,
) -> None:
    """What each rule stops of flat runs, by their length: the most it stops of runs that do not fall."""  # noqa: D401 -- help text
    from sim import specs
    from sim.rules import flat as flats
    from sim.twin import Prompts

    try:
        if total not in set(flats.Total):
            raise ValueError(f"--total: {total!r}, expected one of {', '.join(flats.Total)}")
        if wrong := [n for n in evals or () if not 2 <= n <= MOST_EVALS]:
            raise ValueError(f"--evals: {wrong[0]}, expected 2 to {MOST_EVALS}")
        if prompts and reported_times != 1.0:
            raise ValueError("--reported-times: with --prompts no standard error is reported, leave one out")
        if how not in set(Prompts):
            raise ValueError(f"--how: {how!r}, expected one of {', '.join(Prompts)}")
        if how != Prompts.FRESH and not prompts:
            raise ValueError("--how: Gaussian noise is of no prompts, expected --prompts beside it")
        if smoothed and prompts:
            raise ValueError(f"--smoothed: {smoothed}, expected 0 beside --prompts")
        if prompts > MOST_PROMPTS:
            raise ValueError(f"--prompts: {prompts}, expected 0 to {MOST_PROMPTS}")
        named = {text: specs.rule(text) for text in rule or DEFAULTS}
        found = [
            row
            for text, spec in named.items()
            for row in flats.rates(
                text,
                spec,
                runs=runs,
                seed=seed,
                lengths=sorted(set(evals or flats.LENGTHS)),
                reported_times=reported_times,
                total=flats.Total(total),
                prompts=prompts or None,
                score=score,
                how=Prompts(how),
                wander=wander if how == Prompts.WANDERING else 0.0,
                pairs=pairs,
                smoothed=smoothed,
            )
        ]
    except ValueError as error:
        raise _unusable(error) from None
    if json:
        rows = [row.as_dict() for row in found]
        typer.echo(json_module.dumps({"command": "flat", "seed": seed, "rows": rows}, allow_nan=False))
        return
    for line in rules_text.flat(found):
        typer.echo(line)


@app.command()
def outliers(
    rule: Rules = None,
    runs: Annotated[int, typer.Option(help="Runs of each kind.", min=10, max=100_000)] = 400,
    seed: Annotated[int, typer.Option(help="Seed.", min=0)] = 0,
    json: Json = False,
) -> None:
    """What single bad evals do to each rule: generated runs, 1 % and 5 % of the evals 0 or far above."""  # noqa: D401 -- help text
    from sim import specs
    from sim.rules import outliers as outlying

    try:
        named = {text: specs.rule(text) for text in rule or WITH_OUTLIERS}
    except ValueError as error:
        raise _unusable(error) from None
    found = [
        row
        for reported in (True, False)
        for row in outlying.rows(named, runs=runs, seed=seed, reported=reported)
    ]
    if json:
        rows = [row.as_dict() for row in found]
        typer.echo(json_module.dumps({"command": "outliers", "seed": seed, "rows": rows}, allow_nan=False))
        return
    for line in rules_text.outliers(found):
        typer.echo(line)


@app.command()
def choose(
    rule: Rules = None,
    runs: Annotated[int, typer.Option(help="Runs of each kind.", min=10, max=100_000)] = 2000,
    seed: Annotated[int, typer.Option(help="Seed of the choice; the figures are of the next.", min=0)] = 0,
    flat: Annotated[
        float,
        typer.Option(help="The most that a rule may stop of flat runs, by the 95 % bound.", min=0.0, max=1.0),
    ] = 0.05,
    dips: Annotated[
        float,
        typer.Option(
            help="The same, of healthy runs one of whose evals is that of a collapse.", min=0.0, max=1.0
        ),
    ] = 0.05,
    gaussian: Annotated[
        int,
        typer.Option(
            help="Flat Gaussian runs of each of five lengths, 5 to 200 evals, on which the chosen rule keeps "
            "--flat too; 0: none.",
            min=0,
            max=1_000_000,
        ),
    ] = 4000,
    json: Json = False,
) -> None:
    """Which rule is worth most on runs like public ones: GPU time given back, less that of wrong stops."""
    from sim import specs
    from sim.rules import choose as choices

    try:
        named = {text: specs.rule(text) for text in rule or CANDIDATES}
        found = choices.choose(named, runs, seed, flat, dips, gaussian)
    except ValueError as error:
        raise _unusable(error) from None
    if json:
        rows = [row.as_dict() for row in found.rows]
        document = {"command": "choose", "seed": seed, "rule": found.rule, "rows": rows}
        document |= {"ties": list(map(asdict, found.ties)), "doubtful": list(map(asdict, found.doubtful))}
        typer.echo(json_module.dumps(document, allow_nan=False))
        return
    for line in rules_text.chosen(found):
        typer.echo(line)


@app.command()
def twin(
    rule: Rules = None,
    runs: Annotated[int, typer.Option(help="Runs of each kind.", min=10, max=100_000)] = 1000,
    seed: Annotated[int, typer.Option(help="Seed.", min=0)] = 0,
    json: Json = False,
) -> None:
    """What each rule does on runs like public ones: few evals on few prompts, sudden and slow declines."""  # noqa: D401 -- help text
    from sim import specs
    from sim import twin as twins
    from sim.rules import twin_series

    try:
        named = {text: specs.rule(text) for text in rule or WITH_PROMPTS}
        drawn = list(twins.draw(runs, seed))
        found = list(twin_series.rows(named, drawn, seed))
    except ValueError as error:
        raise _unusable(error) from None
    if json:
        rows = [row.as_dict() for row in found]
        typer.echo(json_module.dumps({"command": "twin", "seed": seed, "rows": rows}, allow_nan=False))
        return
    for line in rules_text.twin(found):
        typer.echo(line)


@app.command()
def short(
    rule: Rules = None,
    runs: Annotated[int, typer.Option(help="Runs of each kind.", min=10, max=100_000)] = 1000,
    seed: Annotated[int, typer.Option(help="Seed.", min=0)] = 0,
    history: Annotated[
        Path | None,
        typer.Option(help="Its plateaus are shuffled, and judged again.", exists=True, dir_okay=False),
    ] = None,
    times: Annotated[int, typer.Option(help="Orders of each plateau.", min=1, max=10_000)] = 100,
    json: Json = False,
) -> None:
    """What short runs ask of a rule besides: shallow falls by pairs, delay, dips, cost, shuffled plateaus."""  # noqa: D401 -- help text
    from sim import specs
    from sim.rules import short_runs

    try:
        named = {text: specs.rule(text) for text in rule or WITH_PROMPTS}
        found = list(short_runs.rows(named, runs, seed))
        if history is not None:
            found += list(short_runs.shuffled(named, _read(history, None, False), times, seed))
    except ValueError as error:
        raise _unusable(error) from None
    if json:
        rows = [row._asdict() for row in found]
        typer.echo(json_module.dumps({"command": "short", "seed": seed, "rows": rows}, allow_nan=False))
        return
    for line in rules_text.short(found):
        typer.echo(line)


@app.command()
def fleet(
    pools: Annotated[
        int,
        typer.Option(help="Virtual pools behind each number of shared falls; 0: none.", min=0, max=10_000),
    ] = 20,
    honest: Annotated[
        int, typer.Option(help="Honest runs behind each number beside liars; 0: none.", min=0, max=100_000)
    ] = 320,
    seed: Annotated[int, typer.Option(help="Seed.", min=0)] = 0,
    json: Json = False,
) -> None:
    """What runs of one pool do to each other's stops, by the pool's fleet scope: shared falls, and liars."""  # noqa: D401 -- help text
    from sim.rules import fleets

    def progress(what: str) -> None:
        typer.echo(what, err=True)

    falls = list(fleets.shared_falls(pools, seed, progress)) if pools else []
    liars = list(fleets.beside_liars(honest, seed, progress, ("scan", DEFAULT))) if honest else []
    if json:
        rows = {"falls": [row.as_dict() for row in falls], "liars": [row.as_dict() for row in liars]}
        typer.echo(json_module.dumps({"command": "fleet", "seed": seed} | rows, allow_nan=False))
        return
    for line in fleets.tables(falls, liars):
        typer.echo(line)


@app.command()
def table(
    runs: Annotated[int, typer.Option(help="Runs of each kind in each cell.", min=10, max=100_000)] = 1000,
    seed: Annotated[int, typer.Option(help="Seed.", min=0)] = 0,
) -> None:
    """The two tables of docs/reports/stop-rule-tables.md, from generated runs, as Markdown."""  # noqa: D401 -- help text
    from sim.rules import tables

    for line in tables.tuned(runs, seed):
        typer.echo(line)
    typer.echo("")
    for line in tables.defaults(runs, seed):
        typer.echo(line)


def _read(history: Path, run: str | None, lower: bool) -> list[Judged]:
    from sim.rules import evaluate as evaluation
    from sim.rules.history import grouped, read, turned

    notes: list[str] = []
    found = read(history, notes)
    found = [turned(one) for one in found] if lower else found
    better = "lower" if lower else "higher"
    if all(one.scores[:1] == (max(one.scores, default=0.0),) for one in found):
        notes.append(f"of all series the first eval is the best; {better} counts as better")
    elif len(found) > 1 and all(_ends_worse(one.scores) for one in found):
        notes.append(f"all series end worse than they begin; {better} counts as better")
    judged = evaluation.judge(found if run is None else grouped(found, run))
    if not judged:
        raise ValueError(f"{history}: no eval in it counts: each is no finite number, or of no samples")
    if all(one.truth.label == "ambiguous" for one in judged):
        notes.append(
            "no series counts as healthy or as declining: of each nothing is labelled, and it has fewer "
            "than 8 evals, or no noise that its numbers can show, or is neither clearly"
        )
    for note in notes:
        typer.echo(f"note: {note}", err=True)
    return judged


def _ends_worse(scores: Sequence[float]) -> bool:
    """Return whether the last third of evals is worse, in the mean, than the first third."""
    third = len(scores) // 3
    return third > 0 and sum(scores[-third:]) < sum(scores[:third])


def _shown(judged: Sequence[Judged]) -> list[str]:
    """Return the rules that are shown unless some are asked for."""
    more = [WITH_PAIRS] if any(j.series.paired for j in judged) else []
    more += [WITH_PROXIES] if any(j.series.proxies for j in judged) else []
    return [*DEFAULTS, *more]


def _unusable(error: Exception) -> typer.Exit:
    typer.echo(f"evalstop rules: {error}", err=True)
    return typer.Exit(UNUSABLE)


def _draw(
    plot: Path | None, history: Path, command: str, judged: Sequence[Judged], stops: Any
) -> Path | None:
    """Return where the curves were drawn; None: they cannot be, as those of scores near the largest number.

    Raises:
        typer.Exit: they cannot be drawn where ``--plot`` asks for it.
    """
    import numpy as np

    from sim.rules.plot import draw

    path = plot or Path("build") / f"rules-{command}-{history.name.split('.')[0]}.svg"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with np.errstate(over="ignore", invalid="ignore"):  # what cannot be drawn is told below
            draw(path, judged, stops)
    except (OSError, ValueError, ArithmeticError) as error:
        if plot is not None:
            raise _unusable(ValueError(f"--plot: cannot draw {path}: {error}")) from None
        typer.echo(f"note: no curves drawn: {error}", err=True)
        return None
    return path


def _put_out(found: Sequence[Row], head: dict[str, Any], json: bool, drawn: Path | None) -> None:
    if drawn is not None:
        typer.echo(f"curves drawn: {drawn}", err=True)
    if json:
        document = {**head, "plot": str(drawn) if drawn else None, "rows": [row.as_dict() for row in found]}
        typer.echo(json_module.dumps(document, allow_nan=False))
        return
    for line in rules_text.evaluated(found, terminal().width):
        typer.echo(line)
