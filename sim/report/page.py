"""One HTML page: findings with their plots. It needs nothing from the network, nor any script."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path

from controller.policy.wording import counted
from sim.experiments.findings import Column, Findings, Value
from sim.experiments.replay import Plan
from sim.experiments.setting import Setting
from sim.report import plots, sweep_plots
from sim.report.formatting import format_cell
from sim.report.runs import Example, example, first_run

_CSS = """
:root{color-scheme:light}
body{font:15px/1.5 system-ui,sans-serif;color:#1d2830;background:#fff}
body{max-width:64rem;margin:2.5rem auto;padding:0 1.25rem}
h1{font-size:1.7rem;line-height:1.2;margin:0 0 .3rem} h2{font-size:1.2rem;margin:2.8rem 0 .6rem}
p.lead{color:#4a565e;margin:.2rem 0 1.2rem} nav a{margin-right:.9rem;white-space:nowrap;color:#0072b2}
.cards{display:flex;flex-wrap:wrap;gap:.8rem;margin:1.2rem 0}
.card{border:1px solid #dde3e7;border-radius:.5rem;padding:.7rem .9rem;min-width:8.5rem}
.card b{display:block;font-size:1.45rem;font-variant-numeric:tabular-nums}
.card small{color:#5b6770;display:block}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:.83rem;font-variant-numeric:tabular-nums;margin:.6rem 0}
th{text-align:left;border-bottom:2px solid #cfd7dc;padding:.3rem .6rem .3rem 0;vertical-align:bottom}
td{border-bottom:1px solid #edf0f2;padding:.26rem .6rem .26rem 0;vertical-align:top}
td.n{white-space:nowrap} td.n small{display:block;color:#5b6770} td.t{min-width:6rem}
ul{color:#4a565e;font-size:.88rem;padding-left:1.1rem}
figure{margin:1rem 0} svg{max-width:100%;height:auto}
pre{font-size:.78rem;background:#f5f7f8;padding:.7rem;overflow-x:auto}
summary{cursor:pointer;color:#5b6770;font-size:.88rem}
"""
_CARDS = {
    "precision": "precision",
    "recall": "recall",
    "recall_before_end": "recall before the last eval",
    "fpr": "healthy jobs accused",
    "jct_gain": "completion time saved",
    "jct_gain_kept": "… of never stopped jobs",
    "waste_gain": "GPU-time past the peak, saved",
}
_LONG = 20  # rows from which on a table is folded
_SWEEPS = ("noise", "base-rate", "k", "eval-interval", "load", "families")
_GRID = {"precision": "Precision", "recall": "Recall", "waste_gain": "Waste saved, %"}


def write_page(file: Path, found: Sequence[Findings], setting: Setting) -> None:
    """Experiments, each with its plots, and the setting's first run."""
    title = found[0].title if len(found) == 1 else "EvalStop in simulation"
    lead = (
        "The production policy on virtual GPUs. The setting is a calibration to the figures of EvalStop's"
        " paper, which leaves k, the eval interval, the noise and the depth of the decline open."
    )
    run = _one_run(first_run(setting), f"One run in full (seed {setting.first_seed})")
    first, *others = [_section(findings) for findings in found]
    parts = [first, run, *others]
    links = [(findings.name, findings.title) for findings in found] if len(found) > 1 else []
    file.write_text(_page(title, lead, _cards(found), links, parts), encoding="utf-8")


def write_replay(file: Path, findings: Findings, plan: Plan) -> None:
    """One log, without and with EvalStop."""
    parts = [_section(findings), _one_run(example(plan), "The run in full")]
    lead = "What would have happened on this cluster, by the production policy on virtual GPUs."
    file.write_text(_page(findings.title, lead, "", [], parts), encoding="utf-8")


def _page(title: str, lead: str, cards: str, links: Sequence[tuple[str, str]], parts: Sequence[str]) -> str:
    nav = "".join(f'<a href="#{escape(name)}">{escape(text)}</a> ' for name, text in links)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<style>{_CSS}</style></head><body><h1>{escape(title)}</h1>"
        f'<p class="lead">{escape(lead)}</p><nav>{nav}</nav>{cards}{"".join(parts)}</body></html>\n'
    )


def _cards(found: Sequence[Findings]) -> str:
    headline = next((findings.headline for findings in found if findings.name == "headline"), {})
    cards = []
    for key, label in _CARDS.items():
        estimate = headline.get(key)
        if not isinstance(estimate, tuple):
            continue
        value = f"{100 * estimate.value:.1f} %"
        spread = f"{100 * estimate.low:.1f} to {100 * estimate.high:.1f} %"
        cards.append(f'<div class="card"><b>{value}</b>{escape(label)}<small>{spread}</small></div>')
    return f'<div class="cards">{"".join(cards)}</div>' if cards else ""


def _section(findings: Findings) -> str:
    notes = "".join(f"<li>{escape(note)}</li>" for note in findings.notes)
    setting = escape(json.dumps(findings.setting, indent=1))
    return (
        f'<section id="{escape(findings.name)}"><h2>{escape(findings.title)}</h2>{_plots(findings)}'
        f"{_table(findings)}<ul>{notes}</ul><details><summary>Setting</summary><pre>{setting}</pre></details>"
        "</section>"
    )


def _plots(findings: Findings) -> str:
    if findings.name in _SWEEPS:
        drawn = [sweep_plots.sweep(findings)]
    elif findings.name == "competitors":
        drawn = [sweep_plots.savings(findings)]
    elif findings.name == "bases":
        drawn = [sweep_plots.bases(findings)]
    elif findings.name == "grid":
        drawn = [sweep_plots.grid(findings, key, title) for key, title in _GRID.items()]
    else:
        drawn = []
    return "".join(f"<figure>{svg}</figure>" for svg in drawn)


def _table(findings: Findings) -> str:
    head = "".join(f"<th>{escape(column.title)}</th>" for column in findings.columns)
    body = []
    for row in findings.rows:
        cells = "".join(_cell(row.get(column.key), column) for column in findings.columns)
        body.append(f"<tr>{cells}</tr>")
    table = f'<div class="scroll"><table><tr>{head}</tr>{"".join(body)}</table></div>'
    if len(body) <= _LONG:
        return table
    return f"<details><summary>{counted(len(body), 'row')}</summary>{table}</details>"


def _cell(value: Value, column: Column) -> str:
    """Return the table cell; the interval of an estimate stands below it, so that wide tables fit."""
    text, _, interval = format_cell(value, column.form).partition(" [")
    if column.form == "text":
        return f"<td class=t>{escape(format_cell(value, column.form))}</td>"
    if not interval:
        return f"<td class=n>{escape(text)}</td>"
    interval, _, unit = interval.partition("]")
    return f"<td class=n>{escape(text + unit)}<small>{escape(interval.replace(', ', ' to '))}</small></td>"


def _one_run(run: Example, title: str) -> str:
    drawn = [plots.completion_times(run), plots.occupancy(run)]
    if run.workload.evals:
        drawn.insert(0, plots.curves_with_stops(run))
    figures = "".join(f"<figure>{svg}</figure>" for svg in drawn)
    return f'<section id="run"><h2>{escape(title)}</h2>{figures}</section>'
