"""Tables of experiments on a narrow terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from sim.experiments.findings import Column, Findings
from sim.report.terminal import show


def headline() -> Findings:
    columns = (
        Column("figure", "figure", "text"),
        Column("estimate", "here, 95 % interval"),
        Column("paper", "paper", "text"),
        Column("oracle", "oracle"),
        Column("p", "p (Holm)", "p"),
        Column("meaning", "meaning", "text"),
    )
    rows = [
        {"figure": name, "estimate": 0.5, "paper": "12 %", "oracle": 0.1, "p": 0.01, "meaning": "words " * 12}
        for name in ("jct_gain_mechanical", "waste_gain_wide", "recall_before_end")
    ]
    return Findings("headline", "EvalStop around srtfEst", {}, columns, rows, {}, ["a note"])


@pytest.mark.parametrize("width", [80, 120, 200])
def test_no_name_of_a_figure_is_broken_and_no_line_is_too_long(width: int) -> None:
    """On main the table of `sim headline` broke names into pieces at 80 columns."""
    out = io.StringIO()
    show(headline(), Console(file=out, width=width, highlight=False))
    text = out.getvalue()
    for name in ("jct_gain_mechanical", "waste_gain_wide", "recall_before_end"):
        assert name in text
    drawn = [line for line in text.splitlines() if "│" in line or "┃" in line]
    assert drawn
    assert max(map(len, drawn)) <= width
    assert text.count("words words") >= 3, "what has no room stands below"
