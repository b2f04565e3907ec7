"""The demo's picture: each job's proxy and eval curves, its best, its stop, and who used which GPUs when."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

from controller.policy.wording import counted

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from PIL import Image

EVAL, PROXY, BEST, STOP, QUIET = "#1f5fa8", "#d9822b", "#2b8a3e", "#c92a2a", "#868e96"
_DASHES = (0, (4, 2))
_ROLE_COLOUR = {"over-optimising": "#e8590c", "healthy": "#2f9e44", "waiting": "#1971c2"}

Job = Mapping[str, Any]


def draw(summary: Mapping[str, Any], path: Path) -> None:
    """Draw summary.json's facts (deploy/local/demo/facts.py) as a PNG of about 1500 x 900 pixels."""
    jobs: Sequence[Job] = summary["jobs"]
    style: dict[Any, Any] = {
        "font.size": 9,
        "axes.spines.top": False,
        "axes.titlesize": 10,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.edgecolor": "#adb5bd",
        "xtick.color": "#495057",
        "ytick.color": "#495057",
    }
    with plt.rc_context(style):
        columns = (len(jobs) + 1) // 2
        figure = plt.figure(figsize=(5.2 * columns, 8.2), layout="constrained")
        grid = figure.add_gridspec(3, columns, height_ratios=(1, 1, 0.15 + 0.17 * len(jobs)))
        panels = [figure.add_subplot(grid[i // columns, i % columns]) for i in range(len(jobs))]
        for axes, job in zip(panels, jobs, strict=True):
            _curves(axes, job)
        _time_line(figure.add_subplot(grid[2, :]), jobs)
        figure.suptitle(_headline(summary), fontsize=12, fontweight="bold", x=0.01, ha="left")
        figure.legend(handles=_key(), loc="outside lower center", ncols=3, fontsize=8.5, frameon=False)
        raw = io.BytesIO()
        figure.savefig(raw, dpi=130)
        plt.close(figure)
    path.parent.mkdir(parents=True, exist_ok=True)
    # 256 colours are plenty for lines and text, and make the file a quarter as large.
    small = Image.open(raw).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    small.save(path, optimize=True)


def _key() -> list[Line2D]:
    return [
        Line2D(
            [], [], color=EVAL, linewidth=1.8, marker="o", markersize=3, label="eval (gold reward) ± 2 s.e."
        ),
        Line2D([], [], color=PROXY, linewidth=1.4, linestyle=_DASHES, label="proxy (reward model)"),
        Line2D(
            [], [], color=BEST, linewidth=0, marker="o", markersize=8, fillstyle="none", label="best eval"
        ),
    ]


def _headline(summary: Mapping[str, Any]) -> str:
    stopped = [j for j in summary["jobs"] if j["decision"]]
    if not stopped:
        return "EvalStop: no run was stopped"
    names = ", ".join(j["name"] for j in stopped)
    return f"EvalStop stopped {names} after its peak and saved {summary['gpuHoursSaved']:.2f} GPU-hours"


def _curves(axes: Axes, job: Job) -> None:
    """Eval score (left) and proxy reward (right) by step; the two have scales of their own."""
    steps = [e["step"] for e in job["evals"]]
    scores = [e["score"] for e in job["evals"]]
    axes.plot(steps, scores, color=EVAL, linewidth=1.8, marker="o", markersize=2.6)
    errors = [e.get("stderr") or 0.0 for e in job["evals"]]
    low = [s - 2 * e for s, e in zip(scores, errors, strict=True)]
    high = [s + 2 * e for s, e in zip(scores, errors, strict=True)]
    axes.fill_between(steps, low, high, color=EVAL, alpha=0.13, linewidth=0)
    axes.set_ylabel("eval score", color=EVAL)
    axes.set_xlabel("training step")
    axes.grid(alpha=0.25)
    axes.margins(y=0.22)
    proxies = job["proxies"]
    if proxies:
        right = axes.twinx()
        right.plot(
            [p["step"] for p in proxies],
            [p["reward"] for p in proxies],
            color=PROXY,
            linewidth=1.4,
            linestyle=_DASHES,
        )
        right.set_ylabel("proxy reward", color=PROXY)
        right.margins(y=0.18)
    _marks(axes, job)
    axes.set_title(
        f"{job['name']} · {job['role']} · {counted(job['gpus'], 'GPU')}", color=_ROLE_COLOUR.get(job["role"])
    )


def _marks(axes: Axes, job: Job) -> None:
    if job["bestStep"] is not None:
        axes.scatter(
            [job["bestStep"]],
            [job["bestScore"]],
            s=110,
            facecolors="none",
            edgecolors=BEST,
            linewidths=2,
            zorder=5,
        )
        kept = job["checkpoint"]
        text = f"best {job['bestScore']:.3f}" + ("\ncheckpoint kept" if kept else "")
        late = job["bestStep"] > 0.7 * max(job["totalSteps"], job["evals"][-1]["step"])
        axes.annotate(
            text,
            (job["bestStep"], job["bestScore"]),
            xytext=(6 if late else 0, 11),
            textcoords="offset points",
            ha="right" if late else "center",
            fontsize=8,
            color=BEST,
            annotation_clip=False,
        )
    decision = job["decision"]
    if decision is not None:
        axes.axvline(decision["step"], color=STOP, linewidth=1.5)
        end = job["totalSteps"]
        if end:
            axes.set_xlim(right=max(end, decision["step"]) * 1.02)
            axes.axvspan(decision["step"], end, color=QUIET, alpha=0.12, hatch="//", linewidth=0)
            middle = (decision["step"] + end) / 2
            axes.text(
                middle,
                0.5,
                f"not run\n{job['gpuHoursSaved']:.2f} GPU-hours saved",
                transform=axes.get_xaxis_transform(),
                ha="center",
                va="center",
                fontsize=8.5,
                color="#495057",
            )
        axes.text(
            decision["step"],
            0.03,
            f" stopped at step {decision['step']}",
            transform=axes.get_xaxis_transform(),
            fontsize=8,
            color=STOP,
            va="bottom",
        )


def _time_line(axes: Axes, jobs: Sequence[Job]) -> None:
    """Draw who held GPUs when, in seconds since the first job ran."""
    starts = [j["startedAt"] for j in jobs if j["startedAt"] is not None]
    if not starts:
        axes.set_axis_off()
        return
    zero = min(starts)
    for row, job in enumerate(jobs):
        colour = _ROLE_COLOUR.get(job["role"], QUIET)
        if job["startedAt"] is None:
            continue
        begin, end = job["startedAt"] - zero, (job["endedAt"] or job["startedAt"]) - zero
        if job["role"] == "waiting":
            axes.barh(row, begin, color=QUIET, alpha=0.15, height=0.5)
            axes.text(0, row, "  waits for GPUs", va="center", fontsize=8, color="#495057")
        axes.barh(row, end - begin, left=begin, color=colour, alpha=0.85, height=0.55)
        axes.text(
            begin,
            row,
            f"  {counted(job['gpus'], 'GPU')}",
            va="center",
            fontsize=8,
            color="white",
            fontweight="bold",
        )
        if job["decision"]:
            decided = job["decision"]["time"] - zero
            axes.plot([decided, decided], [row - 0.42, row + 0.42], color=STOP, linewidth=2)
            handover = job["handover"]
            if handover and handover["seconds"] is not None:
                axes.text(
                    end + 1,
                    row,
                    f"{handover['to']} runs on its GPUs {handover['seconds']:.1f} s after the decision",
                    va="center",
                    fontsize=8,
                    color=STOP,
                )
    axes.set_yticks(range(len(jobs)), [j["name"] for j in jobs])
    axes.invert_yaxis()
    axes.set_xlabel("seconds since the first pods ran")
    axes.grid(axis="x", alpha=0.25)
    axes.set_axisbelow(True)
    axes.set_title("who held GPUs when")
