"""Checkpoints of NeMo-RL."""

from __future__ import annotations

import re

from controller.checkpoints.completeness import dcp
from controller.checkpoints.layouts.base import (
    Candidate,
    Numbered,
    Times,
    Told,
    by_times,
    json_object,
    newest_first,
    truncated,
)
from controller.checkpoints.store import Store
from controller.checkpoints.weights import Content


class NeMoRL(Numbered):
    """``step_<N>/`` of NeMo-RL, written as ``tmp_step_<N>`` and renamed when every worker has finished.

    ``CheckpointManager`` (nemo_rl/utils/checkpoint.py): ``init_tmp_checkpoint`` writes ``training_info.json``
    and
    ``config.yaml`` first, ``finalize_checkpoint`` renames, then rotation is ``shutil.rmtree``.
    """

    name, form = "NeMoRL", "step_{}"
    pattern = re.compile(r"step_(?P<step>\d{1,15})")
    _writing = re.compile(r"tmp_step_(?P<step>\d{1,15})")

    def candidates(self, store: Store) -> list[Candidate]:
        found = super().candidates(store)
        done = {candidate.step for candidate in found}
        for folder in store.folders():
            match = self._writing.fullmatch(folder)
            if match and int(match["step"]) not in done:
                problem = f"{folder} is still being written"
                found.append(Candidate(int(match["step"]), folder, (("", folder),), problem))
        return newest_first(found)

    def problem(self, content: Content, step: int) -> str | None:
        info = json_object(content, "training_info.json")
        if isinstance(info, str):
            return info
        for folder in dcp.folders(content):
            if broken := dcp.problem(content, folder):
                return broken
        return truncated(content)

    def told(self, content: Content, step: int, times: Times | None) -> Told:
        if not any(name.startswith("policy/") for name in content.files()):
            return Told("no policy folder: it holds the weights")
        return Told(unproven=by_times(times))
