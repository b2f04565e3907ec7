"""Checkpoints of slime."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from controller.checkpoints.completeness import dcp
from controller.checkpoints.digest import Manifest
from controller.checkpoints.errors import Damaged, Vanished
from controller.checkpoints.layouts.base import (
    Candidate,
    Evidence,
    Times,
    by_times,
    folders,
    newest_first,
    truncated,
)
from controller.checkpoints.store import Store
from controller.checkpoints.weights import Content


class Slime:
    """``iter_<NNNNNNN>/`` of slime, with ``rollout/global_dataset_state_dict_<R>.pt`` beside it.

    THUDM/slime, `train.py` saves the actor, then the state of the data (`slime/rollout/data_source.py`
    `save`), which is named after the rollout R. The actor's save is one of two:

    - Megatron (`slime/backends/megatron_utils/actor.py` `save_model`): N is R. Shards, ``.metadata``,
      ``metadata.json``, then ``latest_checkpointed_iteration.txt``.
    - FSDP (`slime/backends/fsdp_utils/checkpoint.py` `save`): N is R + 1. At commit
      05254ea7b1f78955abbcf253cd46f7c027fa7366 the shards lie in the folder; at
      2ecc935aaa8c1c272d3d7770825a8d9debf58ebf in ``model`` (with LoRA ``adapter``, and ``model`` is empty),
      ``optimizer`` and ``lr_scheduler``. Then ``rng.pt``, ``meta.json`` by a rename, the same file.

    Rotation (`cleanup_old_checkpoints`) is ``shutil.rmtree`` of the ``iter_`` folder. The critic has a
    location of its own (``--critic-save``), which is not looked at.

    Inside a checkpoint both keep their places, so that it can be given to ``--load``.
    """

    name = "Slime"
    tracker = "latest_checkpointed_iteration.txt"
    _folder = re.compile(r"iter_(?P<step>\d{7,15})")
    _data = re.compile(r"global_dataset_state_dict_(?P<step>\d{1,15})\.pt")
    _weights = ("model", "adapter")  # of FSDP
    _of_fsdp = frozenset({"rng.pt", "meta.json", "optimizer", "lr_scheduler", *_weights})

    def candidates(self, store: Store) -> list[Candidate]:
        top = store.folders()
        matches = [match for match in map(self._folder.fullmatch, top) if match]
        data = self._states(store) if matches and "rollout" in top else {}
        newest = max((int(match["step"]) for match in matches), default=-1)
        return newest_first([self._candidate(store, int(m["step"]), m.string, data, newest) for m in matches])

    def _candidate(
        self, store: Store, step: int, folder: str, data: Mapping[int, str], newest: int
    ) -> Candidate:
        parts = ((folder, folder),)
        rollout = step - 1 if data and self._fsdp(store, folder) else step
        if rollout in data:  # which is written last of all
            name = f"rollout/{data[rollout]}"
            return Candidate(step, folder, parts, files=((name, name),))
        problem = unproven = None
        if data:
            problem = (
                f"no rollout/ state of rollout {rollout}, though others have one: removed, or not written yet"
            )
        elif step == newest:
            unproven = "it is the newest one: nothing tells whether the state of the data is still to come"
        return Candidate(step, folder, parts, problem, unproven)

    def _fsdp(self, store: Store, folder: str) -> bool:
        """Return whether a folder is FSDP's: by the names in it, none of which Megatron has."""
        try:
            names = {*store.names(folder), *folders(store, folder)}
        except (Vanished, Damaged):
            return False
        return not self._of_fsdp.isdisjoint(names)

    def _states(self, store: Store) -> dict[int, str]:
        """Return the data's states by step."""
        try:
            names = store.names("rollout")
        except (Vanished, Damaged):
            return {}
        return {int(match["step"]): match.string for match in map(self._data.fullmatch, names) if match}

    def problem(self, content: Content, step: int) -> str | None:
        return dcp.any_problem(content) or truncated(content)

    def evidence(self, content: Content, step: int, times: Times | None) -> Evidence:
        folder, names, shards = self.own_name(step), content.files(), dcp.folders(content)
        if dcp.megatron(content, folder):
            return Evidence()  # common.pt, every shard and metadata.json: Megatron writes nothing else
        if folder not in shards and not any(f"{folder}/{at}" in shards for at in self._weights):
            return Evidence(
                f"no {folder}/{dcp.METADATA}, nor one in its {' or '.join(self._weights)}: the weights"
            )
        for name in ("rng.pt", "meta.json"):
            if f"{folder}/{name}" not in names:
                return Evidence(f"no {folder}/{name}: neither Megatron's save nor that of FSDP is through")
        return Evidence(unproven=by_times(times))

    def mismatch(self, content: Content, manifest: Manifest) -> str | None:
        return None

    def own_name(self, step: int) -> str:
        return f"iter_{step:07}"

    def resume_files(self, step: int) -> Mapping[str, bytes]:
        return {self.tracker: str(step).encode()}

    def fits(self, names: Collection[str]) -> str | None:
        return min((n for n in names if self._folder.fullmatch(n.partition("/")[0])), default=None)

    def loads(self, content: Content) -> str:
        shards = dcp.folders(content)
        kind = "torch_dist" if any(dcp.megatron(content, f) for f in shards) else "fsdp"
        top = min((f.partition("/")[0] for f in shards), default="")
        return f"from_pretrained, after slime's tools/convert_{kind}_to_hf.py --input-dir {top}"
