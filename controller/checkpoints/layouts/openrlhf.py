"""Checkpoints of OpenRLHF."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from controller.checkpoints.completeness import deepspeed
from controller.checkpoints.digest import Manifest
from controller.checkpoints.errors import Damaged, Vanished
from controller.checkpoints.layouts.base import (
    Candidate,
    Evidence,
    Times,
    by_times,
    folders,
    json_object,
    truncated,
)
from controller.checkpoints.store import Store
from controller.checkpoints.weights import Content


class OpenRLHF:
    """``_actor/global_step<N>/`` (and ``_critic/…``, ``global_step<N>_hf/``): one folder per role and tag.

    0.11.2 (openrlhf/utils/deepspeed/deepspeed.py:685, trainer/ppo_trainer.py:337) saves actor and critic at
    the same time, each with DeepSpeed, which writes ``latest`` beside the tags, then ``metric.json`` into its
    tag. A new best eval is saved as ``best_global_step<N>``. ``--ckpt.save_hf`` adds ``<tag>_hf/``, or has it
    alone.

    Inside a checkpoint the tag is always ``global_step<N>``, also that of a best one, so that it can be
    resumed.
    """

    name = "OpenRLHF"
    roles = ("_actor", "_critic")
    _tag = re.compile(r"(?P<tag>(?:best_)?global_step(?P<step>\d{1,15}))")
    _hf = re.compile(r"(?P<tag>(?:best_)?global_step(?P<step>\d{1,15}))_hf")

    def candidates(self, store: Store) -> list[Candidate]:
        top = store.folders()
        tags = {role: self._tags(store, role) for role in self.roles if role in top}
        exported = {found["tag"]: int(found["step"]) for found in map(self._hf.fullmatch, top) if found}
        steps = {tag: step for of_role in tags.values() for tag, step in of_role.items()} | exported
        newest = max(steps.values(), default=-1)
        latest = {role: self._latest(store, role) for role in tags}
        found = [
            self._candidate(store, tag, step, tags, tag in exported, latest, newest)
            for tag, step in steps.items()
        ]
        return sorted(found, key=lambda c: (-c.step, c.name.startswith("best_")))

    def _candidate(
        self,
        store: Store,
        tag: str,
        step: int,
        tags: Mapping[str, Mapping[str, int]],
        exported: bool,
        latest: Mapping[str, int],
        newest: int,
    ) -> Candidate:
        inside = self.own_name(step)
        parts = [(f"{role}/{inside}", f"{role}/{tag}") for role in tags if tag in tags[role]]
        problem = unproven = None
        for role in tags if parts else ():
            if tag not in tags[role]:
                problem = f"{role}/{tag} is missing: rotated away, or not written yet"
            elif latest[role] < step and not self._has(store, f"{role}/{tag}", "metric.json"):
                problem = f"{role}/latest does not name {tag} yet: the save is not finished"
        if exported:
            parts.append((f"{inside}_hf", f"{tag}_hf"))
        if step >= newest:
            # Actor and critic are saved at once, and the export after them: what is still to come is told by
            # the checkpoints before it, or by one after it.
            others = {t for role in tags for t, s in tags[role].items() if s < step}
            if not others:
                unproven = (
                    "it is the first one here: nothing tells whether a role or an export is still to come"
                )
        return Candidate(step, tag, tuple(parts), problem, unproven)

    def problem(self, content: Content, step: int) -> str | None:
        for folder in deepspeed.folders(content):
            if broken := deepspeed.ranks(content, folder).problem:
                return broken
        return truncated(content)

    def evidence(self, content: Content, step: int, times: Times | None) -> Evidence:
        tag = self.own_name(step)
        names = content.files()
        states = deepspeed.folders(content)
        exported = [n for n in names if n.startswith(f"{tag}_hf/")]
        if not states and not exported:
            return Evidence(f"no _actor/{tag}: it holds the policy")
        for role in self.roles:
            if any(n.startswith(f"{role}/") for n in names) and f"{role}/{tag}" not in states:
                return Evidence(f"{role}/{tag} has no *model_states.pt")
        if states and f"_actor/{tag}" not in states:
            return Evidence(f"no _actor/{tag}: it holds the policy")
        if exported and not any(n.endswith((".safetensors", ".bin")) for n in exported):
            return Evidence(f"{tag}_hf has no weights")
        # `save_model` writes config.json and the tokenizer after the weights.
        if exported and not any(n.rpartition("/")[2].startswith(("tokenizer", "vocab")) for n in exported):
            return Evidence(f"{tag}_hf has no tokenizer: it is written after the weights")
        for folder in states:
            if not deepspeed.ranks(content, folder).complete:
                return Evidence(unproven=f"nothing in {folder} says how many ranks there were")
        for folder in states:
            # 0.11.2 writes it last, in place; earlier versions never do.
            metric = f"{folder}/metric.json"
            if metric not in names:
                return Evidence(unproven=f"no {metric}: OpenRLHF writes it when the save is through")
            if isinstance(broken := json_object(content, metric), str):
                return Evidence(broken)
        return Evidence(unproven=by_times(times))

    def fits(self, names: Collection[str]) -> str | None:
        marks = (*(f"{role}/" for role in self.roles[:1]), "global_step")
        return min((name for name in names if name.startswith(marks)), default=None)

    def loads(self, content: Content) -> str:
        exported = sorted(
            {n.partition("/")[0] for n in content.files() if n.partition("/")[0].endswith("_hf")}
        )
        if exported:
            adapter = any(n.rpartition("/")[2].startswith("adapter_model.") for n in content.files())
            call = "PeftModel.from_pretrained(base," if adapter else "from_pretrained("
            return f"{call} {exported[0]})" if adapter else f"{call}{exported[0]})"
        return "from_pretrained, after python _actor/zero_to_fp32.py _actor OUT"

    def mismatch(self, content: Content, manifest: Manifest) -> str | None:
        return None

    def own_name(self, step: int) -> str:
        return f"global_step{step}"

    def resume_files(self, step: int) -> Mapping[str, bytes]:
        return {f"{role}/latest": self.own_name(step).encode() for role in self.roles}

    def _tags(self, store: Store, role: str) -> dict[str, int]:
        matches = (self._tag.fullmatch(folder) for folder in folders(store, role))
        return {match["tag"]: int(match["step"]) for match in matches if match}

    def _latest(self, store: Store, role: str) -> int:
        try:
            match = self._tag.fullmatch(store.read(f"{role}/latest", 4096).decode("utf-8", "replace").strip())
        except (Vanished, Damaged):
            return -1
        return int(match["step"]) if match else -1

    @staticmethod
    def _has(store: Store, folder: str, name: str) -> bool:
        try:
            return name in store.files(folder)
        except Vanished:
            return False
