"""The report of a parity run: one HTML page that needs nothing else, and the same as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path

from controller.parity.compare import Compared, Difference
from controller.parity.report import Report
from controller.parity.run_pair import KINDS
from controller.parity.timeline import How, Timeline
from controller.policy.wording import counted
from sim.report.style import BASE, HEALTHY, ORACLE, OURS, WARN, drawing

_CSS = """
body{font:15px/1.5 system-ui,sans-serif;color:#1d2830;background:#fff;max-width:70rem;margin:2rem auto;
padding:0 1.25rem}
h1{font-size:1.6rem;margin:0 0 .3rem} h2{font-size:1.2rem;margin:2.4rem 0 .5rem} p{color:#4a565e}
table{border-collapse:collapse;font-size:.83rem;font-variant-numeric:tabular-nums;margin:.6rem 0}
th{text-align:left;border-bottom:2px solid #cfd7dc;padding:.3rem .8rem .3rem 0}
td{border-bottom:1px solid #edf0f2;padding:.26rem .8rem .26rem 0;vertical-align:top}
svg{max-width:100%;height:auto} summary{cursor:pointer;color:#5b6770}
"""
_BEGIN, _END = "<!-- parity -->", "<!-- /parity -->"
_COLUMNS = (
    "policy",
    "mean JCT, simulator",
    "mean JCT, cluster",
    "error",
    "simulated with drawn delays: mean, nine of ten",
    "error of that mean",
    "stops (sim.)",
    "preemptions (sim.)",
    "differences in order",
)


def write_page(file: Path, report: Report) -> None:
    """Write the HTML page."""
    compared = report.compared
    parts = [
        f"<h1>{escape(_title(report))}</h1>",
        *(f"<p>{escape(line)}</p>" for line in _lead(report)),
        _html(_COLUMNS, _rows(compared)),
    ]
    for one in compared:
        parts.append(f"<h2>{escape(one.policy)}</h2>{timelines(one)}")
        parts.append(f"<p>{escape(_kinds(one))}</p>")
        table = _html(("event", "simulator", "cluster", "why"), map(_difference, one.differences))
        parts.append(f"<details><summary>Every difference in order</summary>{table}</details>")
    parts.append("<h2>Overheads, from the calibration run</h2>")
    parts.append(_html(_OVERHEADS, _overheads(report)))
    file.write_text(
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(_title(report))}</title>'
        f"<style>{_CSS}</style></head><body>{''.join(parts)}</body></html>\n",
        encoding="utf-8",
    )


def markdown(report: Report, pictures: Sequence[str]) -> str:
    """Return the same as Markdown; ``pictures``: where each policy's timelines lie, as links have it."""
    compared = report.compared
    lines = [*_lead(report), "", *_md(_COLUMNS, _rows(compared)), ""]
    for one, picture in zip(compared, pictures, strict=True):
        lines += [f"### {one.policy}", "", f"![{one.policy}, simulator above, cluster below]({picture})", ""]
        lines += [_kinds(one), ""]
        if one.differences:
            lines += ["<details><summary>Every difference in order</summary>", ""]
            lines += _md(("event", "simulator", "cluster", "why"), map(_difference, one.differences))
            lines += ["", "</details>", ""]
    lines += ["### Overheads, from the calibration run", "", *_md(_OVERHEADS, _overheads(report)), ""]
    return "\n".join(lines)


def write_markdown(file: Path, report: Report) -> None:
    """Put the report between the marks of a page, and its pictures, which bear the page's name, into
    ``images`` beside it.

    Raises:
        ValueError: the page exists and has no such marks.
    """
    images = file.parent / "images"
    images.mkdir(parents=True, exist_ok=True)
    links = []
    for one, base in zip(report.compared, _names(report.compared), strict=True):
        name = f"{file.stem}-{base}.svg"
        (images / name).write_text(timelines(one), encoding="utf-8")
        links.append(f"images/{name}")
    text = file.read_text(encoding="utf-8") if file.exists() else f"{_BEGIN}\n{_END}\n"
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise ValueError(f"{file}: has no lines {_BEGIN} and {_END}, between which the report goes")
    file.write_text(f"{before}{_BEGIN}\n{markdown(report, links)}{_END}{after}", encoding="utf-8")


def _names(compared: Sequence[Compared]) -> Iterator[str]:
    """Yield a name for each policy's picture: ``las``, and ``las-2`` for another las."""
    seen: Counter[str] = Counter()
    for one in compared:
        base = one.policy.partition(":")[0]
        seen[base] += 1
        yield base if seen[base] == 1 else f"{base}-{seen[base]}"


def plain(report: Report) -> str:
    """Return the figures as text for a terminal."""
    rows = [_COLUMNS, *_rows(report.compared)]
    widths = [max(len(row[n]) for row in rows) for n in range(len(_COLUMNS))]
    table = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*_lead(report), "", *table])


def timelines(one: Compared) -> str:
    """Return the two runs above each other: a line for each job, in the order of submission."""
    longest = max(one.sim.makespan, one.cluster.makespan)
    rows = len(one.sim.jobs)
    with drawing(2, width=10.4, height=2.0 + rows * 0.13) as made:
        figure = made.figure
        for axes in made.axes:
            axes.remove()
        upper, lower = figure.subplots(2, 1, sharex=True, sharey=True)
        for axes, timeline, where in ((upper, one.sim, "simulator"), (lower, one.cluster, "cluster")):
            _draw(axes, timeline)
            axes.set_title(f"{where}: mean JCT {timeline.mean_jct:.1f} s", fontsize=10.5)
            axes.set(ylabel="job", xlim=(0, longest * 1.01), ylim=(rows - 0.4, -0.6))
            axes.grid(axis="y", visible=False)
        lower.set_xlabel("seconds since the first submission")
        for label, style in (
            ("waits", {"color": HEALTHY, "lw": 0.8}),
            ("has its GPUs", {"color": OURS, "lw": 3.2}),
            ("stopped", {"color": WARN, "marker": "X", "ls": "", "ms": 6}),
            ("preempted", {"color": BASE, "marker": "|", "ls": "", "ms": 8, "mew": 2}),
            ("done", {"color": ORACLE, "marker": "o", "ls": "", "ms": 4}),
        ):
            lower.plot([], [], label=label, **style)
        figure.legend(loc="outside lower center", ncols=5)
    return made.svg


def _draw(axes: object, timeline: Timeline) -> None:
    from matplotlib.axes import Axes

    assert isinstance(axes, Axes)
    for row, job in enumerate(timeline.jobs):
        if not job.stays:
            continue
        axes.plot([job.submitted, job.stays[-1].freed], [row, row], color=HEALTHY, lw=0.8, zorder=1)
        for stay in job.stays:
            axes.plot(
                [stay.admitted, stay.freed], [row, row], color=OURS, lw=3.2, solid_capstyle="butt", zorder=2
            )
            marker = {How.STOP: ("X", WARN, 6), How.END: ("o", ORACLE, 4), How.PREEMPT: ("|", BASE, 8)}
            shape, colour, size = marker[stay.how]
            axes.plot(stay.freed, row, shape, color=colour, ms=size, mew=2 if shape == "|" else 0.5, zorder=3)


def _title(report: Report) -> str:
    return f"{report.about['trace']}: simulator and cluster"


def _lead(report: Report) -> list[str]:
    a = report.about
    load = "-" if a["load"] is None else f"{a['load']:.2f}"
    lines = [
        f"{counted(a['jobs'], 'job')} of `{a['trace']}` on {counted(a['gpus'], 'GPU')} ({a['nodes']}), load "
        f"{load}, {a['speed']:.0f} times as fast; stop rule `{a['rule']}`. Printed by `{a['command']}`.",
        *a.get("notes", ()),
    ]
    if (replayed := report.replayed) is not None:
        same = "all the same" if not replayed.different else f"{replayed.different} of them different"
        lines.append(
            f"The operator's decision log, {counted(replayed.decisions, 'decision')}, was decided anew: "
            f"{same}, byte for "
            f"byte.{' It could not be read further: ' + replayed.problem if replayed.problem else ''}"
        )
    return lines


def _rows(compared: Sequence[Compared]) -> list[tuple[str, ...]]:
    return [
        (
            one.policy,
            f"{one.sim.mean_jct:.1f} s",
            f"{one.cluster.mean_jct:.1f} s",
            f"{100 * one.relative_error:+.1f} %",
            *_scattered(one),
            f"{one.cluster.stops} ({one.sim.stops})",
            f"{one.cluster.preemptions} ({one.sim.preemptions})",
            f"{len(one.differences)} of {counted(len(one.cluster.events()), 'event')}",
        )
        for one in compared
    ]


def _scattered(one: Compared) -> tuple[str, str]:
    if (s := one.scatter) is None or (error := one.scattered_error) is None:
        return "none", "none"
    return f"{s.mean:.1f} s, {s.low:.1f} to {s.high:.1f}", f"{100 * error:+.1f} %"


def _kinds(one: Compared) -> str:
    """Return how many differences of each kind."""
    counted = {kind: sum(d.kind == kind for d in one.differences) for kind in KINDS}
    counts = ", ".join(f"{count} {KINDS[kind]}" for kind, count in counted.items() if count)
    return f"Differences in order: {len(one.differences)}" + (f" ({counts})." if counts else ".")


def _difference(d: Difference) -> tuple[str, ...]:
    times = ("none" if t is None else f"{t:.1f} s" for t in (d.sim, d.cluster))
    return (str(d.event), *times, f"{d.kind}: {d.cause}")


_OVERHEADS = (
    "delay",
    "from, to",
    "mean",
    "standard deviation",
    "measurements",
    "mean in the trial itself, not used",
)


def _overheads(report: Report) -> list[tuple[str, ...]]:
    return [
        (
            m.name,
            m.between,
            f"{m.mean:.2f} s",
            f"{m.deviation:.2f} s",
            str(m.count),
            f"{t.mean:.2f} s" if t.count else "none",
        )
        for m, t in zip(report.calibration.measured, report.in_trial, strict=True)
    ]


def _html(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(text)}</th>" for text in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>" for row in rows)
    return f"<table><tr>{top}</tr>{body}</table>"


def _md(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
        *("| " + " | ".join(map(_cell, row)) + " |" for row in rows),
    ]


def _cell(text: str) -> str:
    """Return the text for a cell of a Markdown table, without what would end the cell or the row."""
    return " ".join(text.replace("|", "\\|").splitlines())
