"""A recording of the example trainer (``python -m examples.trainer --record FILE``): one run by its evals."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from controller.policy.types import Paired
from controller.policy.wording import counted
from sim.traces.errors import Skipped, TraceError
from sim.traces.json_text import parse
from sim.traces.trace import JobChecks, Trace, TraceJob
from sim.workload import Evals

NAME = "trainer"
_FIELDS = {"key": "job", "submitted": "time", "gpus": "gpus", "work": "time"}


class _Eval(NamedTuple):
    line: int
    step: int
    score: float
    time: float
    attempt: str
    proxy: float | None = None
    paired: Paired | None = None
    stderr: float | None = None


def read_trainer(file: Path, lines: Iterable[str], skipped: Skipped) -> Trace:
    """Return one job, on one GPU, that trains at the recorded pace up to its last recorded step.

    The score is ``gold``. An attempt that resumed takes back the evals from its first step on, as in the
    operator. Time before the first eval is not recorded; it is taken to have gone at the same pace.

    Raises:
        TraceError: a line is wrong and is not to be skipped, or fewer than two evals are left.
    """
    evals: list[_Eval] = []
    for line, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        try:
            found = _eval(file, line, text)
            if evals and found.attempt != evals[-1].attempt:
                evals = [e for e in evals if e.step < found.step]
            elif evals and found.step <= evals[-1].step:
                expected = f"a step above {evals[-1].step}, that of line {evals[-1].line}"
                raise TraceError.value(file, line, "step", found.step, expected)
            if evals and found.time < evals[-1].time:
                expected = f"a time not before {evals[-1].time!r}, that of line {evals[-1].line}"
                raise TraceError.value(file, line, "time", found.time, expected)
        except TraceError as error:
            skipped.add(error)
            continue
        evals.append(found)
    trained = [e for e in evals if e.step > 0]
    if len(trained) < 2:
        raise TraceError(file, 0, "", f"{counted(len(trained), 'eval')} after step 0, expected at least 2")
    pace = _pace(file, trained)
    steps = trained[-1].step
    job = TraceJob(
        f"trainer/{file.name.partition('.')[0]}",
        trained[0].time - trained[0].step * pace,
        1,
        steps * pace,
        line=trained[0].line,
        group="RLHF",
        evals=_columns(trained),
    )
    JobChecks(file, ordered=False).check(job, _FIELDS)
    notes = [
        f"{file.name}: {counted(len(trained), 'eval')} over {counted(steps, 'step')}, {pace:.3g} s a step."
    ]
    return Trace([file], NAME, [job], skipped, notes=notes)


def _columns(trained: list[_Eval]) -> Evals:
    number = {e.step: n for n, e in enumerate(trained, start=1)}
    proxies, stderrs = [e.proxy for e in trained], [e.stderr for e in trained]
    paired = [
        p._replace(reference_step=number[p.reference_step])
        if (p := e.paired) is not None and p.reference_step in number
        else None
        for e in trained
    ]
    return Evals(
        [e.step / trained[-1].step for e in trained],
        [e.score for e in trained],
        proxies=proxies if any(p is not None for p in proxies) else (),
        paired=paired if any(p is not None for p in paired) else (),
        stderrs=stderrs if any(e is not None for e in stderrs) else (),
    )


def _pace(file: Path, evals: list[_Eval]) -> float:
    """Return seconds a step: the median between evals of one attempt, which pauses do not disturb."""
    paces = sorted(
        (b.time - a.time) / (b.step - a.step) for a, b in pairwise(evals) if a.attempt == b.attempt
    )
    if not paces or not paces[len(paces) // 2] > 0.0:
        raise TraceError(file, evals[-1].line, "time", "no time passes between evals")
    return paces[len(paces) // 2]


def _eval(file: Path, line: int, text: str) -> _Eval:
    entry = parse(file, line, text, "; was it cut off?")
    if not isinstance(entry, dict):
        raise TraceError.value(file, line, "", entry, "a JSON object")
    for name in ("step", "gold", "time"):
        value: Any = entry.get(name)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not (name == "gold" or math.isfinite(value)):
            raise TraceError.value(file, line, name, value, "a number")
    step = entry["step"]
    if step != int(step) or step < 0:
        raise TraceError.value(file, line, "step", step, "a whole number of at least 0")
    return _Eval(
        line,
        int(step),
        float(entry["gold"]),
        float(entry["time"]),
        str(entry.get("attempt", "")),
        _finite(entry.get("proxy")),
        _paired(file, line, entry.get("differences")),
        _stderr(entry.get("stderr")),
    )


def _finite(value: Any) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None


def _stderr(value: Any) -> float | None:
    found = _finite(value)
    return found if found is None or found >= 0.0 else None


def _paired(file: Path, line: int, value: Any) -> Paired | None:
    if value is None:
        return None
    try:
        found = Paired(
            int(value["reference"]), int(value["prompts"]), float(value["mean"]), float(value["variance"])
        )
        if found.prompts < 2 or not math.isfinite(found.mean) or not 0.0 <= found.variance < math.inf:
            raise ValueError(value)
    except (KeyError, TypeError, ValueError, OverflowError):
        expected = "reference, prompts (2 or more), mean and variance"
        raise TraceError.value(file, line, "differences", value, expected) from None
    return found
