"""Checkpoints of verl."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from controller.checkpoints.completeness import dcp
from controller.checkpoints.completeness.ranks import DIGITS, first_missing
from controller.checkpoints.errors import Damaged, Vanished
from controller.checkpoints.layouts.base import (
    Candidate,
    Evidence,
    Numbered,
    Times,
    by_times,
    folders,
    json_object,
    truncated,
)
from controller.checkpoints.store import Store
from controller.checkpoints.weights import Content

ROLES = ("actor", "critic")


class Verl(Numbered):
    """``global_step_<N>/{actor,critic,data.pt}`` of verl (0.9.1 and before).

    ``_save_checkpoint`` (trainer/ppo/v1/trainer_base.py:948) writes the roles, then ``data.pt``, in modes
    other than ``sync`` then ``transfer_queue/``, by a rename from ``transfer_queue.tmp``, then, unless saves
    are asynchronous, ``latest_checkpointed_iteration.txt``. Megatron's layout v2 has ``ckpt_contents.json``
    in each role, written last of all, asynchronous saves included
    (utils/checkpoint/megatron_checkpoint_manager.py:615).
    Layout v1 (verl 0.7 and before, the same file) has one ``dist_ckpt`` in each role, which Megatron ends
    with ``metadata.json``, and no list of the rest: HF's files and ``transformer_config.json``, written after
    it and before ``data.pt``. A rotated checkpoint keeps its folder and ``data.pt``, only the roles' folders
    go.
    """

    name, form = "Verl", "global_step_{}"
    pattern = re.compile(r"global_step_(?P<step>\d{1,15})")
    tracker = "latest_checkpointed_iteration.txt"
    contents = "ckpt_contents.json"
    distributed = "dist_ckpt/"
    _rank = re.compile(
        rf"(?P<what>model|optim|extra_state)_world_size_(?P<size>{DIGITS})_rank_(?P<rank>{DIGITS})\.pt"
    )
    queue = "transfer_queue/"
    queues_moved = ("transfer_queue.tmp/", "transfer_queue.old/")
    _megatron2 = ("model/", "optimizer/", "extra/")

    def candidates(self, store: Store) -> list[Candidate]:
        found = super().candidates(store)
        roles = {c.name: folders(store, c.name) for c in found}
        critics = any("critic" in present for present in roles.values())
        newest = max((c.step for c in found), default=-1)
        through = self._through(store)
        return [self._by_roles(c, roles[c.name], critics, max(newest - 1, through)) for c in found]

    @staticmethod
    def _by_roles(candidate: Candidate, roles: Iterable[str], critics: bool, through: int) -> Candidate:
        problem = unproven = None
        if "actor" not in roles:
            problem = "no actor folder: rotated away (only data.pt is left), or not written yet"
        elif critics and "critic" not in roles:
            problem = "no critic folder, though other steps have one: rotated away, or not written yet"
        elif candidate.step > through:
            unproven = f"{Verl.tracker} does not name it yet, and no later one is there"
        return Candidate(candidate.step, candidate.name, candidate.parts, problem, unproven)

    def _through(self, store: Store) -> int:
        """Return the step that verl says it has saved; -1: it does not say."""
        try:
            return int(store.read(self.tracker, 4096).decode("ascii", "replace").strip())
        except (Vanished, Damaged, ValueError):
            return -1

    def problem(self, content: Content, step: int) -> str | None:
        names = content.files()
        for role in ROLES:
            of_role = [n.removeprefix(f"{role}/") for n in names if n.startswith(f"{role}/")]
            problem = self._role(content, role, of_role)
            if problem:
                return problem
        return dcp.any_problem(content) or truncated(content)

    def evidence(self, content: Content, step: int, times: Times | None) -> Evidence:
        names = content.files()
        if "data.pt" not in names:
            return Evidence(
                "no data.pt: verl writes it after the roles' folders, so the save is not finished"
            )
        moved = [n for n in names if n.startswith(self.queues_moved)]
        if moved and not any(n.startswith(self.queue) for n in names):
            return Evidence(
                f"{moved[0].partition('/')[0]} is there and no transfer_queue: it is still being written"
            )
        unlisted: list[str] = []
        for role in ROLES:
            of_role = [n.removeprefix(f"{role}/") for n in names if n.startswith(f"{role}/")]
            if not of_role:
                if role == "actor":
                    return Evidence(
                        "no actor folder: rotated away (only data.pt is left), or not written yet"
                    )
                continue
            if self.contents in of_role:
                if missing := self._manifest(content, role):
                    return Evidence(missing)
                if any(n.startswith("model/huggingface/") for n in of_role):
                    unlisted.append(role)  # the list names that folder, not its files
                continue
            unlisted.append(role)
            if unfinished := self._megatron(role, of_role):
                return Evidence(unfinished)
            if not self._model(of_role):
                return Evidence(
                    f"{role} has no model: neither model_world_size_*_rank_*.pt nor dist_ckpt/.metadata"
                )
        # Rotation takes the roles' folders; beside them the queue is moved in after the last file is written.
        return Evidence(unproven=by_times(times, *unlisted) if unlisted else None)

    def fits(self, names: Collection[str]) -> str | None:
        return min((n for n in names if n.startswith(f"{ROLES[0]}/")), default=None)

    def loads(self, content: Content) -> str:
        # verl 0.9.1, model_merger/__main__.py
        names = content.files()
        weights = (".safetensors", ".bin")
        for at in ("actor/huggingface/", "actor/model/huggingface/"):
            if any(n.startswith(f"{at}adapter/") for n in names):
                return f"PeftModel.from_pretrained of {at}adapter, onto its base model"
            if any(n.startswith(at) and n.endswith(weights) for n in names):
                return f"from_pretrained of {at.rstrip('/')}"
        backend = "fsdp" if any(n.startswith("actor/model_world_size_") for n in names) else "megatron"
        merge = f"python -m verl.model_merger merge --backend {backend} --local_dir actor --target_dir OUT"
        return f"from_pretrained, after {merge}"

    def _megatron(self, role: str, names: list[str]) -> str | None:
        """Return why a role without ``ckpt_contents.json`` is not one of Megatron's layout v1 that is
        through."""
        first = [n for n in names if n.startswith(self.distributed)]
        if any(n.startswith(self._megatron2) for n in names) or (
            not first and "transformer_config.json" in names
        ):
            return f"no {role}/{self.contents}: Megatron's layout v2 has it written last"
        for needed in (dcp.METADATA, "metadata.json", "common.pt") if first else ():
            if self.distributed + needed not in first:
                return f"no {role}/{self.distributed}{needed}: Megatron's layout v1 is not through without it"
        return None

    def _model(self, names: Iterable[str]) -> bool:
        return any(
            n.startswith("model_world_size_")
            or n == "dist_ckpt/.metadata"
            or (n.startswith("huggingface/") and n.endswith((".safetensors", ".bin")))
            for n in names
        )

    def _role(self, content: Content, role: str, names: list[str]) -> str | None:
        ranks: dict[tuple[str, int], set[int]] = {}
        for name in names:
            match = self._rank.fullmatch(name)
            if match:
                rank, size = int(match["rank"]), int(match["size"])
                present = ranks.setdefault((match["what"], size), set())
                if rank < size:
                    present.add(rank)
        for (what, size), present in sorted(ranks.items()):
            missing = first_missing(present, size)
            if missing is not None:
                return f"{role} has {what} of {len(present)} of {size} ranks; first missing: {missing}"
        return None

    def _manifest(self, content: Content, role: str) -> str | None:
        """Return what ``ckpt_contents.json`` lists and is not there."""
        document = json_object(content, f"{role}/{self.contents}")
        if isinstance(document, str):
            return document
        listed = document.get("contents")
        if not isinstance(listed, Mapping) or not listed:
            return f"{role}/{self.contents} lists nothing"
        names = content.files()
        for what, entry in sorted(listed.items()):
            path = entry.get("path") if isinstance(entry, Mapping) else None
            if not isinstance(path, str):
                return f"{role}/{self.contents}: {what} has no path"
            at = f"{role}/{path}"
            below = [n.removeprefix(f"{at}/") for n in names if n.startswith(f"{at}/")]
            form = entry.get("format")
            if form == "megatron_dist_checkpoint" and dcp.METADATA not in below:
                return f"no {at}/{dcp.METADATA} ({role}/{self.contents} lists {what})"
            if form == "json" and at not in names:
                return f"{at} is missing ({role}/{self.contents} lists {what})"
            if form == "huggingface" and not self._huggingface(what, below):
                return f"{at} has no {what} ({role}/{self.contents} lists it)"
        return None

    @staticmethod
    def _huggingface(what: str, names: list[str]) -> bool:
        if what in ("model", "hf_model"):
            return any(n.endswith((".safetensors", ".bin")) for n in names)
        if what == "tokenizer":
            return any(n.startswith(("tokenizer", "vocab", "special_tokens")) for n in names)
        return "config.json" in names
