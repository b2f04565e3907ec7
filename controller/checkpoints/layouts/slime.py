"""Checkpoints of slime."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from controller.checkpoints.completeness import dcp
from controller.checkpoints.digest import Manifest
from controller.checkpoints.errors import Damaged, Vanished
from controller.checkpoints.layouts.base import (
    Candidate,
    Times,
    Told,
    by_times,
    newest_first,
    truncated,
)
from controller.checkpoints.store import Store
from controller.checkpoints.weights import Content


class Slime:
    """``iter_<NNNNNNN>/`` of slime, with ``rollout/global_dataset_state_dict_<N>.pt`` beside it.

    ``train.py`` (snapshot of 2026) saves the actor, then the state of the data. The actor's save is that of
    Megatron (slime/backends/megatron_utils/actor.py `save_model`): shards, ``.metadata``, ``metadata.json``,
    then ``latest_checkpointed_iteration.txt``; that of the FSDP backend (backends/fsdp_utils/checkpoint.py
    `save`) shards, ``.metadata``, ``rng.pt``, ``meta.json`` by a rename, then the same file. Rotation
    (`cleanup_old_checkpoints`) is ``shutil.rmtree`` of the ``iter_`` folder. N is the number of the rollout,
    with FSDP one more. The critic has a location of its own (``--critic-save``), which is not looked at.

    Inside a checkpoint both keep their places, so that it can be given to ``--load``.
    """

    name = "Slime"
    tracker = "latest_checkpointed_iteration.txt"
    _folder = re.compile(r"iter_(?P<step>\d{7,15})")
    _data = re.compile(r"global_dataset_state_dict_(?P<step>\d{1,15})\.pt")

    def candidates(self, store: Store) -> list[Candidate]:
        top = store.folders()
        matches = [match for match in map(self._folder.fullmatch, top) if match]
        data = self._states(store) if matches and "rollout" in top else {}
        newest = max((int(match["step"]) for match in matches), default=-1)
        return newest_first([self._candidate(int(m["step"]), m.string, data, newest) for m in matches])

    @staticmethod
    def _candidate(step: int, folder: str, data: Mapping[int, str], newest: int) -> Candidate:
        parts = ((folder, folder),)
        if step in data:  # which is written last of all
            name = f"rollout/{data[step]}"
            return Candidate(step, folder, parts, files=((name, name),))
        problem = alone = None
        if data:
            problem = f"no rollout/ state of step {step}, though others have one: removed, or not written yet"
        elif step == newest:
            alone = "it is the newest one: nothing tells whether the state of the data is still to come"
        return Candidate(step, folder, parts, problem, alone)

    def _states(self, store: Store) -> dict[int, str]:
        """Return the data's states by step."""
        try:
            names = store.names("rollout")
        except (Vanished, Damaged):
            return {}
        return {int(match["step"]): match.string for match in map(self._data.fullmatch, names) if match}

    def problem(self, content: Content, step: int) -> str | None:
        return dcp.any_problem(content) or truncated(content)

    def told(self, content: Content, step: int, times: Times | None) -> Told:
        folder, names = self.own_name(step), content.files()
        if folder not in dcp.folders(content):
            return Told(f"no {folder}/{dcp.METADATA}: it holds the weights")
        if dcp.megatron(content, folder):
            return Told()  # common.pt, every shard and metadata.json: Megatron writes nothing else
        for name in ("rng.pt", "meta.json"):
            if f"{folder}/{name}" not in names:
                return Told(f"no {folder}/{name}: neither Megatron's save nor that of FSDP is through")
        return Told(unproven=by_times(times))

    def mismatch(self, content: Content, manifest: Manifest) -> str | None:
        return None

    def own_name(self, step: int) -> str:
        return f"iter_{step:07}"

    def resume_files(self, step: int) -> Mapping[str, bytes]:
        return {self.tracker: str(step).encode()}

    def fits(self, names: Collection[str]) -> str | None:
        return min((n for n in names if self._folder.fullmatch(n.partition("/")[0])), default=None)

    def loads(self, content: Content) -> str:
        kind = "torch_dist" if any(dcp.megatron(content, f) for f in dcp.folders(content)) else "fsdp"
        return (
            f"from_pretrained, after slime's tools/convert_{kind}_to_hf.py --input-dir {self._top(content)}"
        )

    @staticmethod
    def _top(content: Content) -> str:
        return min(dcp.folders(content), default="")
