"""Checkpoints of the Hugging Face Trainer."""

from __future__ import annotations

import re
from collections.abc import Mapping

from controller.checkpoints.layouts.base import Numbered, json_object, truncated
from controller.checkpoints.weights import Content


class HuggingFace(Numbered):
    """``checkpoint-<N>/`` of the Hugging Face Trainer (TRL, Axolotl); ``trainer_state.json`` comes last."""

    name, form = "HuggingFace", "checkpoint-{}"
    pattern = re.compile(r"checkpoint-(?P<step>\d{1,12})")
    state = "trainer_state.json"
    # any one of these, or an index with all the shards it names
    weights = (
        "model.safetensors",
        "pytorch_model.bin",
        "adapter_model.safetensors",
        "adapter_model.bin",
    )
    indexes = ("model.safetensors.index.json", "pytorch_model.bin.index.json")

    def problem(self, content: Content, step: int) -> str | None:
        state = json_object(content, self.state, limit=64 << 20)  # it carries the whole log history
        if isinstance(state, str):
            return state
        if state.get("global_step") != step:
            return f"{self.state} says global_step {state.get('global_step')}, the folder says {step}"
        names = content.files()
        for index in self.indexes:
            if index in names:
                return self._sharded(content, index) or truncated(content)
        sharded = any(
            re.match(r"pytorch_model_fsdp_\d+/\.metadata$|global_step\d+/.*model_states\.pt$", n)
            for n in names
        )
        if not sharded and not any(name in names for name in self.weights):
            return f"no weights: none of {', '.join(self.weights + self.indexes)}, and no sharded state"
        return truncated(content)

    @staticmethod
    def _sharded(content: Content, index: str) -> str | None:
        document = json_object(content, index, limit=64 << 20)
        if isinstance(document, str):
            return document
        shards = document.get("weight_map")
        if not isinstance(shards, Mapping) or not shards:
            return f"{index} has no weight_map"
        missing = sorted({str(shard) for shard in shards.values()} - content.files().keys())
        return f"{missing[0]} is missing ({index} lists it; {len(missing)} missing)" if missing else None
