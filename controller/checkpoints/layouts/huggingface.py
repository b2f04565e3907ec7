"""Checkpoints of the Hugging Face Trainer."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from controller.checkpoints.completeness import dcp, deepspeed, shards, streams
from controller.checkpoints.completeness.ranks import DIGITS, first_missing
from controller.checkpoints.layouts.base import Evidence, Numbered, Times, by_times, json_object, truncated
from controller.checkpoints.weights import Content

INDEX_READ_WHOLE = 4 << 20  # bytes
_SHARD_NAME = re.compile(rb':\s*"([^"\\]{1,512}\.(?:safetensors|bin))"')


class HuggingFace(Numbered):
    """``checkpoint-<N>/`` of the Hugging Face Trainer (TRL, Axolotl).

    ``Trainer._save_checkpoint`` (transformers 5.23, trainer.py:3355) writes, in this order: the model with
    ``training_args.bin`` (`_save`; not with FSDP's sharded states), optimizer, scheduler, scaler and
    ``rng_state*.pth`` unless ``save_only_model``, then rank 0 ``trainer_state.json``. After it may come
    ``rng_state_<r>.pth`` of the other ranks, and FSDP's states of single ranks (LOCAL_STATE_DICT, or
    accelerate's ``use_dcp=False``), for which no rank waits. Rotation is ``shutil.rmtree``, in the folder's
    own order.
    """

    name, form = "HuggingFace", "checkpoint-{}"
    pattern = re.compile(r"checkpoint-(?P<step>\d{1,15})")
    state = "trainer_state.json"
    arguments = "training_args.bin"
    # transformers' trainer_jit_checkpoint.py: there from the begin of such a save to its end
    sentinel = "checkpoint-is-incomplete.txt"
    weights = (
        "model.safetensors",
        "pytorch_model.bin",
        "adapter_model.safetensors",
        "adapter_model.bin",
    )
    indexes = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
    # accelerate 1.15, utils/fsdp_utils.py: FULL_STATE_DICT, and a file for each rank without DCP
    fsdp = re.compile(r"pytorch_model_fsdp(?:_\d+)?(?P<rank>_rank(?P<number>\d+))?\.bin")
    fsdp_ranks = re.compile(rf"(?P<what>pytorch_model_fsdp|optimizer)(?:_\d+)?_rank(?P<rank>{DIGITS})\.bin")
    rng = re.compile(rf"rng_state_(?P<rank>{DIGITS})\.pth")
    late = re.compile(r"(rng_state_\d+\.pth|.*rank_?\d+.*|.*\.distcp|.*\.metadata|entropy_ctrl_state\.json)")

    def problem(self, content: Content, step: int) -> str | None:
        names = content.files()
        if self.state in names:
            recorded = streams.top_number(content, self.state, "global_step")
            if isinstance(recorded, str):
                return recorded
            if recorded != step:
                return f"{self.state} says global_step {recorded}, the folder says {step}"
        for index in self.indexes:
            if index in names and (missing := self._sharded(content, index)):
                return missing
        if broken := dcp.any_problem(content):
            return broken
        for folder in deepspeed.folders(content):
            if broken := deepspeed.ranks(content, folder).problem:
                return broken
        return truncated(content)

    def evidence(self, content: Content, step: int, times: Times | None) -> Evidence:
        names = content.files()
        if self.state not in names:
            return Evidence(f"no {self.state}: the save is not finished, or this is no such checkpoint")
        if self.sentinel in names:
            return Evidence(f"{self.sentinel} is there: the save is not finished")
        top = [name for name in (*self.weights, *self.indexes) if name in names]
        states = [name for name in names if self.fsdp.fullmatch(name)]
        sharded = [*dcp.folders(content), *deepspeed.folders(content)]
        if not top and not states and not sharded:
            return Evidence(
                f"no weights: none of {', '.join(self.weights + self.indexes)}, and no sharded state"
            )
        for adapter in self.weights[2:]:
            if adapter in names and "adapter_config.json" not in names:
                return Evidence(f"adapter_config.json is missing: PEFT writes it with {adapter}")
        # `_save` writes both, beside weights of every kind but FSDP's own states.
        if (top or deepspeed.folders(content)) and self.arguments not in names:
            return Evidence(f"{self.arguments} is missing: it is written with every model")
        # TRL 1.16, trainer/grpo_trainer.py:3391 `_save_checkpoint`: written after all the rest
        entropy = "entropy_ctrl_state.json"
        if self.arguments in names and entropy not in names and self._adaptive_entropy(content):
            return Evidence(f"{entropy} is missing: TRL writes it last with use_adaptive_entropy")
        if overwritten := self._later(times):
            return Evidence(f"{overwritten} was written after {self.state}: another save is on its way")
        unproven = self._ranks(content, step) or by_times(times)
        return Evidence(unproven=unproven)

    def _adaptive_entropy(self, content: Content) -> bool:
        return bool(deepspeed.flag_in(content, self.arguments, "use_adaptive_entropy"))

    def fits(self, names: Collection[str]) -> str | None:
        return self.state if self.state in names else None

    def loads(self, content: Content) -> str:
        names = content.files()
        if any(adapter in names for adapter in self.weights[2:]):
            return "PeftModel.from_pretrained, onto its base model"
        if any(name in names for name in (*self.weights[:2], *self.indexes)):
            return "from_pretrained"
        merged = "from_pretrained beside the base model's config.json and tokenizer, after"
        states = [folder for folder in dcp.folders(content) if folder.startswith("pytorch_model_fsdp")]
        if states:
            return f"{merged} accelerate merge-weights {states[0]} OUT"
        if deepspeed.folders(content):
            return "from_pretrained, after python zero_to_fp32.py . OUT"
        if any(self.fsdp_ranks.fullmatch(name) for name in names):
            return (
                "FSDP on as many ranks, by accelerate's load_fsdp_model: nothing merges files of single ranks"
            )
        return "torch.load of pytorch_model_fsdp.bin"

    def _later(self, times: Times | None) -> str | None:
        """Return a file of rank 0 that is newer than the one rank 0 writes last."""
        if times is None:
            return None
        end = times.files[self.state]
        later = [n for n, at in times.files.items() if at > end and self._ordered(n)]
        return min(later, default=None)

    def _ordered(self, name: str) -> bool:
        return "/" not in name and name != self.state and not self.late.fullmatch(name)

    def _ranks(self, content: Content, step: int) -> str | None:
        """Return why the files of the single ranks are not known to be all there."""
        names = content.files()
        groups: dict[str, set[int]] = {}
        for name in names:
            if found := self.rng.fullmatch(name):
                groups.setdefault("rng_state_<rank>.pth", set()).add(int(found["rank"]))
            elif found := self.fsdp_ranks.fullmatch(name):
                groups.setdefault(f"{found['what']} of the ranks", set()).add(int(found["rank"]))
        folders = deepspeed.folders(content)
        states = [deepspeed.ranks(content, folder) for folder in folders]
        if folders and not all(state.complete for state in states):
            return f"nothing in {folders[0]} says how many ranks there were"
        if not groups:
            return None
        world = [dcp.world_size(content, folder) for folder in dcp.folders(content)]
        world += [state.data_parallel for state in states]
        of_ranks = sorted(name for name in names if self.fsdp_ranks.fullmatch(name))
        if of_ranks:
            world.append(shards.world_size(content, of_ranks[0]))
        if self.arguments in names:
            world.append(deepspeed.number_in(content, self.arguments, "num_processes"))
        known = max((size for size in world if size), default=None)
        if known is None:
            return f"nothing says of how many ranks {min(groups)} are"
        for what, have in sorted(groups.items()):
            if max(have) >= known:
                return f"{what} are there of rank {max(have)}, where there were {known} ranks"
            if (missing := first_missing(have, known)) is not None:
                return f"{what} of rank {missing} is missing ({known} ranks)"
        return None

    @staticmethod
    def _sharded(content: Content, index: str) -> str | None:
        if content.files()[index] > INDEX_READ_WHOLE:
            shards = {
                found.decode("utf-8", "replace") for found in streams.matches(content, index, _SHARD_NAME)
            }
        else:
            document = json_object(content, index, limit=INDEX_READ_WHOLE)
            if isinstance(document, str):
                return document
            named = document.get("weight_map")
            if not isinstance(named, Mapping):
                return f"{index} has no weight_map"
            shards = {str(shard) for shard in named.values()}
        if not shards:
            return f"{index} has no weight_map"
        missing = sorted(shards - content.files().keys())
        return f"{missing[0]} is missing ({index} lists it; {len(missing)} missing)" if missing else None
