"""Checkpoints of NeMo-RL."""

from __future__ import annotations

import re
from collections.abc import Collection

from controller.checkpoints.completeness import dcp
from controller.checkpoints.layouts.base import (
    Candidate,
    Evidence,
    Numbered,
    Times,
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
    and ``config.yaml`` first, ``finalize_checkpoint`` renames (also when an asynchronous save is through),
    then rotation is ``shutil.rmtree``. The policy's weights are a torch distributed checkpoint
    (``policy/weights``, ``policy/optimizer``), or Megatron's (``policy/weights/iter_0000000``).
    """

    name, form = "NeMoRL", "step_{}"
    pattern = re.compile(r"step_(?P<step>\d{1,15})")
    info = "training_info.json"
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
        info = json_object(content, self.info)
        if isinstance(info, str):
            return info
        return dcp.any_problem(content) or truncated(content)

    def fits(self, names: Collection[str]) -> str | None:
        return self.info if self.info in names else None

    def loads(self, content: Content) -> str:
        """NeMo-RL's examples/converters/convert_dcp_to_hf.py and convert_megatron_to_hf.py."""
        names = content.files()
        if any(dcp.megatron(content, folder) for folder in dcp.folders(content)):
            return "from_pretrained, after NeMo-RL's examples/converters/convert_megatron_to_hf.py"
        if "policy/weights/config.json" in names:
            return "from_pretrained of policy/weights"
        return "from_pretrained, after NeMo-RL's examples/converters/convert_dcp_to_hf.py"

    def evidence(self, content: Content, step: int, times: Times | None) -> Evidence:
        if not any(name.startswith("policy/") for name in content.files()):
            return Evidence("no policy folder: it holds the weights")
        return Evidence(unproven=by_times(times))
