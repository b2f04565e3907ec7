"""Settings of a validation of NeMo-RL's, and the scores of each prompt in it.

NVIDIA-NeMo/RL, nemo_rl/algorithms/grpo.py at commit 002cdc27b8019eafc470f0aab22d4a7206d0de81: `setup` logs
the whole configuration (549, `MasterConfig`). `validate` takes the first ``grpo.max_val_samples`` prompts,
draws ``grpo.val_num_generations_per_prompt`` answers to each, one after the other (``repeat_interleave``),
and writes all messages and rewards into ``val_data_step<N>.jsonl``. ``accuracy`` is the mean of the rewards,
``pass_k`` the share of prompts with a reward above 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

FILES = "val_data_step"  # how their names begin
ACCURACY, PASS_K = "validation/accuracy", "validation/pass_k"


def answers_of(config: Mapping[str, Any]) -> int:
    """Return how many answers to each prompt a validation draws."""
    return int(_at(config, "grpo", "val_num_generations_per_prompt") or 1)


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the validation, for the evaluator's version; None: not known.

    A temperature of its own (``val_temperature``) is the training's too but with NeMo-Gym (`setup`).
    """
    generation = _at(config, "policy", "generation")
    temperature = _at(generation, "val_temperature")
    return {
        "temperature": _at(generation, "temperature") if temperature is None else temperature,
        "k": _at(config, "grpo", "val_num_generations_per_prompt"),
        "tokens": _at(generation, "max_new_tokens"),
        "most": _at(config, "grpo", "max_val_samples"),
        "prompts": _names(_at(config, "data")),
    }


def scores_of(metric: str, rows: Mapping[str, Any], answers: int) -> dict[Any, list[float]]:
    """Return the scores of each prompt: of `ACCURACY` one for each answer, of `PASS_K` one.

    Empty: another metric, or rows that are not ``answers`` to each prompt. A prompt that comes twice is two.

    Args:
        metric: as the validation is logged.
        rows: ``content``, of each answer its messages, and ``rewards``.
        answers: how many there are to each prompt; 0: not known.
    """
    contents, rewards = list(rows["content"]), [float(reward) for reward in rows["rewards"]]
    if metric not in (ACCURACY, PASS_K) or answers < 1 or len(contents) != len(rewards):
        return {}
    if len(rewards) % answers:
        return {}
    found: dict[Any, list[float]] = {}
    seen: Counter[str] = Counter()
    for start in range(0, len(rewards), answers):
        prompts = {_prompt(messages) for messages in contents[start : start + answers]}
        prompt = prompts.pop()
        if prompts or not prompt:
            return {}
        seen[prompt] += 1
        scores = rewards[start : start + answers]
        found[prompt, seen[prompt]] = scores if metric == ACCURACY else [float(any(s > 0 for s in scores))]
    return found


def _prompt(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return what stands before the first answer; empty: a message there has no text (NeMo-Gym)."""
    before = []
    for message in messages:
        if message.get("role") == "assistant":
            break
        before.append((message.get("role"), message.get("content")))
    return repr(before) if before and all(content for _, content in before) else ""


def _names(data: Any) -> str | None:
    """Return the names of the validation's data sets (nemo_rl/data/__init__.py, `DataConfig`); where none is
    given it is a part of the training's. None: not known."""
    sets = _at(data, "validation") or _at(data, "train")
    words = []
    for one in sets if isinstance(sets, (list, tuple)) else [sets]:
        with_default = {**(_at(data, "default") or {}), **(one if isinstance(one, Mapping) else {})}
        of = [with_default.get(key) for key in ("data_path", "dataset_name")]
        name = next((word for word in of if word), None)
        if name is None:
            return None
        more = [with_default.get(key) for key in ("subset", "split", "split_validation_size", "seed")]
        words.append(":".join(str(word) for word in (name, *more) if word is not None))
    return "+".join(words)


def _at(found: Any, *names: str) -> Any:
    """Return what a configuration has below these names; None: nothing."""
    for name in names:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found
