"""What the product's own access program makes of what a kill left, against the test's truth."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from controller.checkpoints.access import carry_out
from controller.checkpoints.errors import AccessError
from controller.checkpoints.request import Request
from tests.torn.crash import OWNER, Crash, files_below

_STEP = re.compile(r"(?:checkpoint-|global_step_?|step[_-]|iter_)(\d+)(?:_hf)?$")


Files = dict[str, tuple[int, bool]]  # name without its step -> bytes, and whether it is whole JSON


@dataclass
class Tally:
    """Sums over the crashes of one layout and way of writing it."""

    kills: int = 0
    whole: int = 0  # checkpoints that were whole by the truth
    found: int = 0  # of these: judged whole
    torn: int = 0  # sets that were not whole by the truth
    blessed: list[str] = field(default_factory=list)  # of these: judged whole, which must never be
    refused: Counter[str] = field(default_factory=Counter)  # whole ones judged not whole, and why
    unreturned: int = 0  # every file there with its size, but the save had not returned: either is right
    evidence: Counter[str] = field(default_factory=Counter)
    open: list[tuple[str, Files]] = field(default_factory=list)  # judged whole, with nothing to compare

    def row(self) -> dict[str, object]:
        return {
            "kills": self.kills,
            "whole": self.whole,
            "found": self.found,
            "torn": self.torn,
            "judged whole though torn": len(self.blessed),
            "finished, not returned": self.unreturned,
            "evidence": dict(self.evidence),
            "refused": dict(self.refused.most_common(4)),
        }


def tally(
    layout: str,
    found: Iterable[Crash],
    only: int | None = None,
    whole: Callable[[], Mapping[int, Mapping[str, int]]] | None = None,
) -> Tally:
    """Judge every checkpoint of every crash, or only that of one step.

    ``whole``: gives finished saves of the same saver, asked for where the crashes have none to compare with.
    """
    sums = Tally()
    models: list[dict[str, int]] = []  # what finished saves wrote, in any of the crashes
    for crash in found:
        sums.kills += 1
        models += ({_bare(name): size for name, size in files.items()} for files in crash.truth.values())
        models = list({tuple(sorted(model.items())): model for model in models}.values())[-20:]
        for step in sorted(_steps(crash.folder) | set(crash.truth)) if only is None else (only,):
            _judge(layout, crash, step, sums, models)
    if sums.open and not models and whole is not None:
        models = [{_bare(name): size for name, size in files.items()} for files in whole().values()]
    for line, there in sums.open:  # killed in the first save of all: nothing to hold it against, until now
        if _finished(there, models):
            sums.unreturned += 1
        else:
            sums.torn += 1
            sums.blessed.append(line)
    return sums


def _judge(layout: str, crash: Crash, step: int, sums: Tally, models: list[dict[str, int]]) -> None:
    before = files_of(crash.folder, step)
    if not before:
        return  # rotated away, all of it
    truth = crash.truth.get(step)
    whole = truth is not None and all(before.get(name) == size for name, size in truth.items())
    there = {_bare(name): (size, _is_json(crash.folder / name)) for name, size in before.items()}
    finished = truth is None and _finished(there, models)
    try:
        answer = carry_out(request(layout, crash.folder, step))
    except AccessError as error:
        sums.whole += whole
        sums.torn += not whole and not finished
        sums.unreturned += finished
        if whole:
            sums.refused[_why(str(error.message))] += 1
        return
    sums.evidence[getattr(answer, "evidence", "")] += 1
    pinned = files_below(Path(answer.path))
    expected = {_inside(layout, name): size for name, size in (truth or before).items()}
    complete = all(pinned.get(name) == size for name, size in expected.items())
    if whole and complete:
        sums.whole += 1
        sums.found += 1
    elif finished and complete:
        sums.unreturned += 1
    elif truth is None and complete:
        sums.open.append((f"{crash.folder.name} step {step}: the save had not ended", there))
    else:
        sums.torn += 1
        lacks = sorted(name for name, size in expected.items() if pinned.get(name) != size)
        sums.blessed.append(f"{crash.folder.name} step {step}: {lacks or 'the save had not ended'}")


def request(layout: str, location: Path, step: int) -> Request:
    """Secure the checkpoint of exactly this step, whoever wrote it."""
    asked = {
        "operation": "secure",
        "id": f"secure-{step}-1",
        "layout": layout,
        "owner": OWNER,
        "job": "torn/run",
        "location": str(location),
        "step": step,
        "maxStepLag": 0,
        "branch": [],
        "release": [],
    }
    return Request.parse(json.dumps(asked))


def _steps(folder: Path) -> set[int]:
    return {int(m[1]) for p in _folders(folder) if (m := _STEP.search(p.name)) and "tmp" not in p.name}


def _folders(folder: Path) -> list[Path]:
    """Folders named after a step: in the location, or in a role's folder."""
    tops = [p for p in folder.iterdir() if p.is_dir() and p.name != ".evalstop"]
    inside = [q for p in tops if p.name.startswith("_") for q in p.iterdir() if q.is_dir()]
    return [p for p in (*tops, *inside) if _STEP.search(p.name)]


def files_of(folder: Path, step: int) -> dict[str, int]:
    """Names (from the location on) and bytes of what lies there of a step now."""
    found: dict[str, int] = {}
    for one in _folders(folder):
        match = _STEP.search(one.name)
        if match and int(match[1]) == step and "tmp" not in one.name:
            top = one.relative_to(folder).as_posix()
            found |= {f"{top}/{name}": size for name, size in files_below(one).items()}
    for rollout in (step, step - 1):  # of slime: its savers write every other step
        for one in folder.glob(f"rollout/*_{rollout}.pt"):
            found[one.relative_to(folder).as_posix()] = one.stat().st_size
    return found


def _inside(layout: str, name: str) -> str:
    if layout in ("OpenRLHF", "Slime"):
        return name.replace("best_global_step", "global_step")
    return name.partition("/")[2]


def _finished(there: Files, models: Iterable[Mapping[str, int]]) -> bool:
    """Whether a save that had not returned lacks nothing: the names of a finished one, with its sizes.

    The size of a JSON file may differ (a log grows): it must be whole JSON instead.
    """
    return any(
        model.keys() <= there.keys()
        and all(there[name][0] == size or there[name][1] for name, size in model.items())
        for model in models
    )


def _bare(name: str) -> str:
    return re.sub(r"(checkpoint-|global_step_?|step[_-]|iter_|state_dict_)\d+", r"\1N", name)


def _is_json(path: Path) -> bool:
    if path.suffix != ".json":
        return False
    try:
        json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return True


def _why(message: str) -> str:
    """The reason alone, without this folder's names and numbers."""
    tail = message.rpartition("complete ones there:")[2]
    return re.sub(r"\d+", "N", tail.partition(";")[2].strip() or tail)[:140]
