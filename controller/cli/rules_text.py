"""Rows of `evalstop rules` as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.rules.choose import Choice, Rival
    from sim.rules.evaluate import Row
    from sim.rules.flat import FlatRow
    from sim.rules.outliers import OutlierRow
    from sim.rules.short_runs import Figure
    from sim.rules.twin_series import TwinRow

HEAD = (
    "rule",
    "family",
    "runs",
    "healthy",
    "false stops %",
    "at most %",
    "plateau %",
    "declining",
    "caught %",
    "premature %",
    "saved",
    "delay",
)


def evaluated(found: Sequence[Row], width: int | None) -> list[str]:
    """Return shares in per cent with 95 % intervals; *at most*: the one-sided 95 % bound on false stops.

    ``width``: of the screen, in characters; None: of any.
    """
    from sim.report.formatting import fitted

    lines = [HEAD]
    for r in found:
        lines.append(
            (
                r.rule,
                r.family,
                str(r.runs),
                str(r.healthy),
                _percent(r.false_stops, r.intervals["false_stops"]),
                f"{100 * r.false_stops_bound:.1f}" if r.healthy else "-",
                _percent(r.plateau_stops, r.intervals["plateau_stops"]),
                str(r.declining),
                _percent(r.caught, r.intervals["caught"]),
                _percent(r.premature, r.intervals["premature"]),
                _number(r.saved, r.intervals["saved"], 3),
                _number(r.delay, r.intervals["delay"], 1),
            )
        )
    return fitted(lines, lined_up(lines), width)


def flat(found: Sequence[FlatRow]) -> list[str]:
    lines = [("rule", "noise", "total", "evals", "flat runs", "stopped %", "at most %")]
    for r in found:
        lines.append(
            (
                r.rule,
                r.noise,
                r.total,
                str(r.evals),
                str(r.runs),
                _percent(r.stopped, r.interval),
                f"{100 * r.bound:.2f}",
            )
        )
    return lined_up(lines)


def outliers(found: Sequence[OutlierRow]) -> list[str]:
    """As Markdown: one line for each rule, noise and kind of bad evals."""
    lines = [
        "| noise | bad evals | rule | rising stopped | flat stopped | saved | of that without "
        "| collapse: evals |",
        "|---|---|---|---|---|---|---|---|",
    ]
    whole = {(r.noise, r.rule): r.saved for r in found if not r.share}
    for r in found:
        bad = f"{100 * r.share:g} % at {r.score:g}" if r.share else "none"
        base = whole.get((r.noise, r.rule), 0.0)
        kept = f"{r.saved / base:.2f}" if r.share and base > 0 else ""
        falls = "" if r.share else "-" if r.missed == 1.0 else f"{r.collapse:.1f}"
        falls += f" ({100 * r.missed:.0f} % never)" if not r.share and 0.005 <= r.missed < 1.0 else ""
        lines.append(
            f"| {r.noise} | {bad} | `{r.rule}` | {100 * r.rising:.1f} % | {100 * r.flat:.1f} % "
            f"| {r.saved:.3f} | {kept} | {falls} |"
        )
    return lines


def chosen(found: Choice) -> list[str]:
    """As Markdown: the table, then the rule of the choice and those that cannot be told from it."""
    weights = list(found.rows[0].value)
    lines = [
        f"| rule | told | {' | '.join(f'value at {w:g}' for w in weights)} | caught | flat stopped "
        "| rising stopped | one bad eval: stopped | wrong of 100 | still to gain | right |",
        "|---|---|" + "---|" * (len(weights) + 7),
    ]
    for r in found.rows:
        values = " | ".join(
            f"{value:.2f} ± {r.error:.2f}" if weight == found.weight else f"{value:.2f}"
            for weight, value in r.value.items()
        )
        shares = " | ".join(f"{100 * share:.1f} %" for share in (r.caught, r.flat, r.rising, r.dips))
        ahead = "-" if r.ahead != r.ahead else f"{r.ahead:.3f}"
        right = "-" if r.right != r.right else f"{100 * r.right:.0f} %"
        lines.append(f"| `{r.rule}` | {r.known} | {values} | {shares} | {r.wrong:.2f} | {ahead} | {right} |")
    tied = [one.rule for one in (*found.ties, *found.doubtful)]
    undecided = ", ".join(f"`{rule}`" for rule in (found.rule, *tied))
    return [
        *lines,
        "",
        f"chosen of those that stop at most {100 * found.flat:g} % of flat runs and {100 * found.dips:g} % "
        f"of healthy ones with one bad eval: `{found.rule}`" + ("" if tied else "; no tie"),
        *(f"- a tie: {_rival(one)}: its value cannot be told from the chosen one's" for one in found.ties),
        *(
            f"- a tie: {_rival(one)}: worth more, and it cannot be told whether it keeps to both limits"
            for one in found.doubtful
        ),
        *([f"these runs do not decide between {undecided}; another seed may choose any"] if tied else []),
    ]


def _rival(one: Rival) -> str:
    low, high = one.interval
    return f"`{one.rule}` (worth {one.more:+.2f}, 95 %: {low:+.2f} to {high:+.2f})"


def twin(found: Sequence[TwinRow]) -> list[str]:
    """As Markdown: one line for each rule and what it is told; bounds are one-sided, 95 %."""
    lines = [
        "| rule | told | caught | saved | flat stopped | rising stopped | saved by shape |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in found:
        stopped = [
            f"{100 * share:.1f} % ({100 * bound:.1f})" if share == share else "-"
            for share, bound in ((r.flat, r.flat_bound), (r.rising, r.rising_bound))
        ]
        shapes = ", ".join(f"{shape} {saved:.2f}" for shape, saved in r.shapes.items())
        lines.append(
            f"| `{r.rule}` | {r.known} | {100 * r.caught:.1f} % | {r.saved:.3f} | {' | '.join(stopped)} "
            f"| {shapes} |"
        )
    return lines


def short(found: Sequence[Figure]) -> list[str]:
    """As Markdown: one line for each figure."""
    lines = ["| what | rule | told | figure | |", "|---|---|---|---|---|"]
    for r in found:
        lines.append(f"| {r.what} | `{r.rule}` | {r.evidence} | {r.measure} | {r.value:.3f} |")
    return lines


def lined_up(lines: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines]


def _percent(value: float, interval: tuple[float, float]) -> str:
    return _number(100 * value, (100 * interval[0], 100 * interval[1]), 1)


def _number(value: float, interval: tuple[float, float], digits: int) -> str:
    if value != value:
        return "-"
    return f"{value:.{digits}f} [{interval[0]:.{digits}f}, {interval[1]:.{digits}f}]"
