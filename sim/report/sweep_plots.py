"""Plots of findings: figures over a swept setting, savings against the oracle's, the grid as heat maps."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from sim.experiments.estimate import Estimate
from sim.experiments.findings import Findings
from sim.experiments.paper import NOISE_LIMIT, PRECISION_OVER_SHARES, PRECISION_UNDER_NOISE
from sim.report.style import ORACLE, OURS, SERIES, WARN, drawing, legend_below

_DETECTION = {
    "precision": "precision",
    "recall": "recall",
    "recall_before_end": "recall before the end",
    "fpr": "false alarms",
}
_SAVINGS = {
    "jct_gain": "completion time",
    "jct_gain_kept": "… of never stopped jobs",
    "waste_gain": "GPU-time past the peak",
    "oracle_jct_gain": "oracle's completion time",
}


def sweep(findings: Findings) -> str:
    """Return an SVG of detection and savings over the swept setting, with 95 % bands."""
    column = findings.columns[0]
    values = [row[column.key] for row in findings.rows]
    numeric = all(isinstance(value, (int, float)) for value in values)
    x: Any = np.asarray(values, dtype=float) if numeric else np.arange(len(values))
    with drawing(2, height=4.1) as made:
        for axes, keys, title in (
            (made.axes[0], _DETECTION, "Detection"),
            (made.axes[1], _SAVINGS, "Saved"),
        ):
            for (key, label), colour in zip(keys.items(), SERIES, strict=False):
                _band(axes, x, findings.rows, key, label, colour)
            axes.set(title=title, xlabel=column.title)
            axes.yaxis.set_major_formatter(lambda y, _: f"{100 * y:.0f} %")
            if not numeric:
                axes.set_xticks(x, [str(value) for value in values], rotation=20, ha="right")
            if column.form == "share":
                axes.set_xticks(x, [f"{100 * value:g} %" for value in x])
            legend_below(axes, 2)
        _bounds(findings.name, made.axes[0])
    return made.svg


def savings(findings: Findings) -> str:
    """Return what each stop rule saves, beside the oracle, and how precise it is."""
    names = [str(row["rule"]) for row in findings.rows]
    place = np.arange(len(names))
    with drawing(1, height=0.42 * len(names) + 1.2) as made:
        axes = made.axes[0]
        for offset, (key, label, colour) in enumerate(
            (
                ("waste_gain", "GPU-time past the peak, saved", OURS),
                ("jct_gain_kept", "completion time of never stopped jobs, saved", ORACLE),
                ("fpr", "healthy jobs accused", WARN),
            )
        ):
            values, below, above = _columns(findings.rows, key)
            axes.barh(
                place + 0.27 * (offset - 1), values, 0.25, xerr=(below, above), color=colour, label=label,
                error_kw={"elinewidth": 0.8, "ecolor": "#38424a"},
            )  # fmt: skip
        axes.set_yticks(place, names)
        axes.invert_yaxis()
        axes.xaxis.set_major_formatter(lambda x, _: f"{100 * x:.0f} %")
        axes.grid(axis="y", visible=False)
        axes.set_title("Savings against an oracle")
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return made.svg


def bases(findings: Findings) -> str:
    """Completion time saved on each base policy: mechanical part, the rest, and the oracle's."""
    names = [str(row["base"]) for row in findings.rows]
    place = np.arange(len(names))
    gain, below, above = _columns(findings.rows, "jct_gain")
    mechanical, _, _ = _columns(findings.rows, "jct_gain_mechanical")
    oracle, _, _ = _columns(findings.rows, "oracle_jct_gain")
    with drawing(1, height=2.9) as made:
        axes = made.axes[0]
        axes.bar(place, gain, 0.55, color=OURS, label="less waiting")
        axes.bar(place, mechanical, 0.55, color="#56b4e9", label="stopped jobs train less")
        axes.errorbar(place, gain, yerr=(below, above), fmt="none", ecolor="#38424a", elinewidth=0.9)
        axes.plot(place, oracle, "D", color=ORACLE, ms=5, label="oracle")
        axes.set_xticks(place, names)
        axes.yaxis.set_major_formatter(lambda y, _: f"{100 * y:.0f} %")
        axes.grid(axis="x", visible=False)
        axes.set_title("Mean completion time saved")
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return made.svg


def grid(findings: Findings, key: str, title: str) -> str:
    """Return a heat map for each depth: eval interval across, k down."""
    depths = sorted({_number(row["depth"]) for row in findings.rows})
    intervals = sorted({_number(row["eval_interval"]) for row in findings.rows})
    ks = sorted({_number(row["k"]) for row in findings.rows})
    with drawing(len(depths), height=2.6) as made:
        for axes, depth in zip(made.axes, depths, strict=True):
            cells = np.full((len(ks), len(intervals)), np.nan)
            for row in findings.rows:
                if row["depth"] == depth:
                    at = ks.index(_number(row["k"])), intervals.index(_number(row["eval_interval"]))
                    cells[at] = _value(row[key])
            axes.imshow(cells, cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto")
            for (i, j), cell in np.ndenumerate(cells):
                if np.isfinite(cell):
                    colour = "white" if cell > 0.6 else "#1d2830"
                    axes.text(j, i, f"{100 * cell:.0f}", ha="center", va="center", color=colour, fontsize=8.5)
            axes.set_xticks(range(len(intervals)), [f"{100 * i:.0f} %" for i in intervals])
            axes.set_yticks(range(len(ks)), [f"{k:.0f}" for k in ks])
            axes.set(title=f"{title}: depth {depth:g}", xlabel="eval interval", ylabel="k")
            axes.grid(visible=False)
    return made.svg


def _band(axes: Axes, x: Any, rows: list[dict[str, Any]], key: str, label: str, colour: str) -> None:
    if key not in rows[0]:
        return
    values, below, above = _columns(rows, key)
    dashed = "--" if key.startswith("oracle") else "-"
    axes.plot(x, values, marker="o", ms=3.5, color=colour, label=label, ls=dashed)
    axes.fill_between(x, values - below, values + above, color=colour, alpha=0.15, lw=0)


def _bounds(name: str, axes: Axes) -> None:
    """Draw the paper's promise, where there is one."""
    if name == "noise":
        axes.plot([0.0, NOISE_LIMIT], [PRECISION_UNDER_NOISE] * 2, color=WARN, lw=1.0, ls="--")
        axes.annotate("paper: precision ≥ 91 %", (0.0, PRECISION_UNDER_NOISE - 0.06), color=WARN, fontsize=8)
    if name == "base-rate":
        axes.plot([0.2, 0.8], [PRECISION_OVER_SHARES] * 2, color=WARN, lw=1.0, ls="--")
        axes.annotate("paper: precision ≥ 89 %", (0.2, PRECISION_OVER_SHARES - 0.06), color=WARN, fontsize=8)


def _columns(rows: list[dict[str, Any]], key: str) -> tuple[Any, Any, Any]:
    """Values, and how far the interval reaches below and above; 0 where it is not known."""
    values = np.asarray([_value(row.get(key)) for row in rows], dtype=float)
    low = np.asarray([_bound(row.get(key), "low") for row in rows], dtype=float)
    high = np.asarray([_bound(row.get(key), "high") for row in rows], dtype=float)
    below = np.nan_to_num(np.maximum(0.0, values - low))
    above = np.nan_to_num(np.maximum(0.0, high - values))
    return values, below, above


def _value(cell: Any) -> float:
    if isinstance(cell, Estimate):
        return cell.value
    return float(cell) if isinstance(cell, (int, float)) else float("nan")


def _bound(cell: Any, which: str) -> float:
    return getattr(cell, which) if isinstance(cell, Estimate) else _value(cell)


def _number(value: Any) -> float:
    return float(value)
