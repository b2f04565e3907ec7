"""Checkpoints of OpenRLHF."""

from __future__ import annotations

import re
from collections.abc import Mapping

from controller.checkpoints.digest import Manifest
from controller.checkpoints.errors import Damaged, Vanished
from controller.checkpoints.layouts.base import Candidate, folders, truncated
from controller.checkpoints.store import Store
from controller.checkpoints.weights import Content


class OpenRLHF:
    """``_actor/global_step<N>/`` (and ``_critic/…``): DeepSpeed tags, one folder per role.

    DeepSpeed writes ``latest`` beside the tags when a save is through; newer OpenRLHF puts ``metric.json``
    into the tag after that.
    """

    name = "OpenRLHF"
    roles = ("_actor", "_critic")
    _tag = re.compile(r"global_step(?P<step>\d{1,12})")
    _optimizer = re.compile(r"(?:\w+_)?zero_pp_rank_(?P<rank>\d+)_mp_rank_(?P<mp>\d+)_optim_states\.pt")

    def candidates(self, store: Store) -> list[Candidate]:
        tags = {role: self._tags(store, role) for role in self.roles if role in store.folders()}
        latest = {role: self._latest(store, role) for role in tags}
        found: list[Candidate] = []
        for step in sorted(set().union(*tags.values()) if tags else set(), reverse=True):
            tag = self.own_name(step)
            parts = tuple((f"{role}/{tag}", f"{role}/{tag}") for role in tags if step in tags[role])
            problem = None
            for role, steps in tags.items():
                if step not in steps:
                    problem = f"{role}/{tag} is missing: rotated away, or not written yet"
                elif latest[role] < step and not self._has(store, f"{role}/{tag}", "metric.json"):
                    problem = f"{role}/latest does not name {tag} yet: the save is not finished"
            found.append(Candidate(step, tag, parts, problem))
        return found

    def problem(self, content: Content, step: int) -> str | None:
        tag = self.own_name(step)
        for role in self.roles:
            names = [n.rpartition("/")[2] for n in content.files() if n.startswith(f"{role}/{tag}/")]
            if not names and role == "_actor":
                return f"no _actor/{tag}: it holds the policy"
            if names and not any(name.endswith("model_states.pt") for name in names):
                return f"{role}/{tag} has no *model_states.pt"
            ranks: dict[str, set[int]] = {}
            for name in names:
                match = self._optimizer.fullmatch(name)
                if match:
                    ranks.setdefault(match["mp"], set()).add(int(match["rank"]))
            world = max((len(have) for have in ranks.values()), default=0)
            for mp, have in sorted(ranks.items()):
                missing = sorted(set(range(max(world, max(have) + 1))) - have)
                if missing:
                    return (
                        f"{role}/{tag} lacks optimizer states of rank {missing[0]} (model-parallel rank {mp})"
                    )
        return truncated(content)

    def mismatch(self, content: Content, manifest: Manifest) -> str | None:
        return None

    def own_name(self, step: int) -> str:
        return f"global_step{step}"

    def resume_files(self, step: int) -> Mapping[str, bytes]:
        return {f"{role}/latest": self.own_name(step).encode() for role in self.roles}

    def _tags(self, store: Store, role: str) -> set[int]:
        matches = (self._tag.fullmatch(folder) for folder in folders(store, role))
        return {int(match["step"]) for match in matches if match}

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
