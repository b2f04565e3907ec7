"""Checkpoints of verl."""

from __future__ import annotations

import re
from collections.abc import Iterable

from controller.checkpoints.layouts.base import Candidate, Numbered, folders, truncated
from controller.checkpoints.store import Store
from controller.checkpoints.weights import Content


class Verl(Numbered):
    """``global_step_<N>/{actor,critic,data.pt}`` of verl.

    ``latest_checkpointed_iteration.txt`` is not asked: asynchronous saves never write it. A rotated
    checkpoint keeps its folder and ``data.pt``, only the roles' folders go.
    """

    name, form = "Verl", "global_step_{}"
    pattern = re.compile(r"global_step_(?P<step>\d{1,12})")
    _rank = re.compile(r"(?P<what>model|optim|extra_state)_world_size_(?P<size>\d+)_rank_(?P<rank>\d+)\.pt")

    def candidates(self, store: Store) -> list[Candidate]:
        found = super().candidates(store)
        roles = {c.name: folders(store, c.name) for c in found}
        critics = any("critic" in present for present in roles.values())
        return [self._by_roles(c, roles[c.name], critics) for c in found]

    @staticmethod
    def _by_roles(candidate: Candidate, roles: Iterable[str], critics: bool) -> Candidate:
        problem = None
        if "actor" not in roles:
            problem = "no actor folder: rotated away (only data.pt is left), or not written yet"
        elif critics and "critic" not in roles:
            problem = "no critic folder, though other steps have one: rotated away, or not written yet"
        return Candidate(candidate.step, candidate.name, candidate.parts, problem)

    def problem(self, content: Content, step: int) -> str | None:
        names = content.files()
        if "data.pt" not in names:
            return "no data.pt: verl writes it after the roles' folders, so the save is not finished"
        for role in ("actor", "critic"):
            of_role = [n.removeprefix(f"{role}/") for n in names if n.startswith(f"{role}/")]
            if of_role:
                problem = self._role(role, of_role)
                if problem:
                    return problem
            elif role == "actor":
                return "no actor folder: rotated away (only data.pt is left), or not written yet"
        return truncated(content)

    def _role(self, role: str, names: list[str]) -> str | None:
        if any(re.fullmatch(r"dist_ckpt/(.*/)?(\.metadata|metadata\.json)", name) for name in names):
            return None  # Megatron: its metadata is written when every rank has finished
        ranks: dict[tuple[str, int], set[int]] = {}
        for name in names:
            match = self._rank.fullmatch(name)
            if match:
                ranks.setdefault((match["what"], int(match["size"])), set()).add(int(match["rank"]))
        if not any(what == "model" for what, _ in ranks):
            if any(
                name.startswith("huggingface/") and name.endswith((".safetensors", ".bin")) for name in names
            ):
                return None  # only the merged model was asked for
            return f"{role} has no model: neither model_world_size_*_rank_*.pt nor dist_ckpt/.metadata"
        for (what, size), present in sorted(ranks.items()):
            missing = sorted(set(range(size)) - present)
            if missing:
                return (
                    f"{role} has {what} of {size - len(missing)} of {size} ranks; first missing: {missing[0]}"
                )
        return None
