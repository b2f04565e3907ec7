"""Print the sizes of checkpoints, and how long securing and copying them take.

`python -m tests.bench.checkpoint_times`: the table of docs/use/checkpoints.md, "Sizes and rates". Computed,
not measured: bytes over bandwidth, which is what large checkpoints come down to.
"""

from __future__ import annotations

import sys

# Bytes per parameter: weights in bf16; the optimizer's fp32 weights and Adam's two moments, fp32.
WEIGHTS, OPTIMIZER = 2, 4 + 4 + 4
MODELS = {"7B": (7e9, 8), "70B": (70e9, 64), "405B": (405e9, 512)}  # parameters, GPUs of the run
BANDWIDTHS = (0.5, 1.0, 2.0)  # GB/s of the volume, reading and writing alike; beyond, hashing is the limit
READS_TO_SECURE = 1  # for the digest; the link or clone itself moves no bytes
PASSES_TO_COPY = 3  # read, write, read back


def size(parameters: float) -> float:
    """Return the bytes of a checkpoint: parameters x 14."""
    return parameters * (WEIGHTS + OPTIMIZER)


def table() -> str:
    """Return the table as Markdown: each time in s is passes x bytes / bandwidth."""
    lines = [
        "| model | checkpoint | bandwidth | secure | retain, detach | GPUs | `AfterSuspend` saves |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, (parameters, gpus) in MODELS.items():
        for bandwidth in BANDWIDTHS:
            read = size(parameters) / (bandwidth * 1e9)
            copied = PASSES_TO_COPY * read
            lines.append(
                f"| {name} | {size(parameters) / 1e9:,.0f} GB | {bandwidth:g} GB/s | "
                f"{_duration(READS_TO_SECURE * read)} | {_duration(copied)} | {gpus} | "
                f"{_whole(copied * gpus / 3600)} GPU-h |"
            )
    return "\n".join(lines)


def _whole(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 10 else f"{hours:.1f}"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


if __name__ == "__main__":
    print(table())
    sys.exit(0)
