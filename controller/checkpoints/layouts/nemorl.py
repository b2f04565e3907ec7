"""Checkpoints of NeMo-RL."""

from __future__ import annotations

import re

from controller.checkpoints.layouts.base import Candidate, Numbered, json_object, newest_first, truncated
from controller.checkpoints.store import Store
from controller.checkpoints.weights import Content


class NeMoRL(Numbered):
    """``step_<N>/`` of NeMo-RL, written as ``tmp_step_<N>`` and renamed when complete."""

    name, form = "NeMoRL", "step_{}"
    pattern = re.compile(r"step_(?P<step>\d{1,12})")
    _writing = re.compile(r"tmp_step_(?P<step>\d{1,12})")

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
        if not any(name.startswith("policy/") for name in content.files()):
            return "no policy folder: it holds the weights"
        return truncated(content)
