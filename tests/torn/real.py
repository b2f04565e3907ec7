"""Savers of the real libraries, run in the environment of requirements.txt: ``python -m tests.torn.real``.

The libraries are imported once, with all that a first life of the saver was seen to import; each saver is a
fork of this process, and is killed. For every crash one line of JSON is printed (folder, truth), and a line
is awaited before the next one.
"""

from __future__ import annotations

import argparse
import functools
import gc
import importlib
import itertools
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.torn.crash import Rank, Saver, crashes, recording

WARM_SAVES = 5  # of the life that shows what a saver imports: rotation is among them
SAVES = 8  # that a saver has time for at the pace of that life, if it is killed as late as may be


def _environment(rank: Rank) -> None:
    """What torchrun would set. The address is agreed on by way of a file."""
    where = rank.truth.with_suffix(".port")
    if rank.leads:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            where.write_text(str(probe.getsockname()[1]))
    rank.wait()
    os.environ |= {
        "RANK": str(rank.rank),
        "LOCAL_RANK": str(rank.rank),
        "WORLD_SIZE": str(rank.world),
        "LOCAL_WORLD_SIZE": str(rank.world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": where.read_text(),
    }


def _model() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=32,
        )
    )


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {f"w{n}": n for n in range(63)} | {"[UNK]": 63}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, "[UNK]")), unk_token="[UNK]", pad_token="w0"
    )


ZERO = {
    "train_micro_batch_size_per_gpu": 1,
    "zero_force_ds_cpu_optimizer": False,
    "zero_allow_untested_optimizer": True,
}
SHARDED: dict[str, dict[str, Any]] = {
    **{
        name: {
            "fsdp": True,
            "fsdp_config": {
                "version": 2,
                "state_dict_type": state,
                "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"],
            },
        }
        for name, state in (
            ("fsdp", "SHARDED_STATE_DICT"),
            ("fsdp-full", "FULL_STATE_DICT"),
            ("fsdp-ranks", "SHARDED_STATE_DICT"),  # in files of single ranks: `without_dcp`
        )
    },
    **{f"zero{stage}": {"deepspeed": {**ZERO, "zero_optimization": {"stage": stage}}} for stage in (2, 3)},
}


def as_on_gpus() -> None:
    """Let accelerate take a process group on CPUs for one on GPUs: else the Trainer falls back to DDP.

    accelerate 1.15.0, state.py `PartialState._prepare_backend` (755) and `AcceleratorState` (974-1016): FSDP
    and DeepSpeed are kept for types of devices among which the CPU is not. What is saved is the same.
    """
    from accelerate.state import DistributedType, PartialState

    os.environ.pop("ACCELERATE_USE_CPU", None)
    os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
    PartialState._prepare_backend = lambda *_, **__: ("gloo", DistributedType.MULTI_GPU)


def without_dcp() -> None:
    """Have the Trainer save by accelerate's ``use_dcp=False``, which it has no setting for itself
    (accelerate 1.15.0, utils/fsdp_utils.py 186-191, 353-358)."""
    import transformers.trainer

    for name in ("save_fsdp_model", "save_fsdp_optimizer"):
        made = functools.partial(getattr(transformers.trainer, name), use_dcp=False)
        setattr(transformers.trainer, name, made)


def trainer(kind: str) -> Saver:
    """transformers' own Trainer, saving at every step, three checkpoints kept."""

    def save(rank: Rank) -> None:
        import torch
        import transformers

        transformers.logging.set_verbosity_error()
        torch.set_num_threads(1)
        if rank.world > 1:
            _environment(rank)
        if kind in SHARDED:
            as_on_gpus()
            if "deepspeed" in SHARDED[kind]:
                start_deepspeed()
        model = _model()
        if kind == "sharded":
            whole = model.save_pretrained
            model.save_pretrained = lambda *a, **k: whole(*a, **{**k, "max_shard_size": "6KB"})
        elif kind == "peft":
            from peft import LoraConfig, get_peft_model

            model = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))

        class Truth(transformers.TrainerCallback):
            def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                if state.global_step == 0:
                    rank.begin()

            def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                rank.saved(state.global_step, rank.folder / f"checkpoint-{state.global_step}")

        arguments = transformers.TrainingArguments(
            output_dir=str(rank.folder),
            max_steps=100_000,
            save_strategy="steps",
            save_steps=1,
            save_total_limit=3,
            logging_steps=1,
            per_device_train_batch_size=1,
            use_cpu=kind not in SHARDED,
            disable_tqdm=True,
            report_to=[],
            **SHARDED.get(kind, {}),
        )
        data = [{"input_ids": [1, 2, 3, 4], "labels": [1, 2, 3, 4]}] * 64
        run = transformers.Trainer(
            model, arguments, train_dataset=data, processing_class=_tokenizer(), callbacks=[Truth()]
        )
        run.log = lambda *_, **__: None  # type: ignore[method-assign]
        run.train()

    return save


def _stepped(model: Any, optimizer: Any) -> None:
    import torch

    model(input_ids=torch.tensor([[1, 2, 3]]), labels=torch.tensor([[1, 2, 3]])).loss.backward()
    optimizer.step()


def _sharded_model(rank: Rank, *names: str) -> tuple[Any, Callable[[Path, int], None]]:
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    model = _model()
    fully_shard(model, mesh=init_device_mesh("cpu", (rank.world,)))
    optimizer = torch.optim.AdamW(model.parameters())
    _stepped(model, optimizer)

    def write(folder: Path, step: int) -> None:
        weights, state = get_state_dict(model, optimizer)
        dcp.save(weights, checkpoint_id=str(folder / names[0]))
        dcp.save(state, checkpoint_id=str(folder / names[1]))

    return model, write


def start_deepspeed() -> Any:
    """deepspeed with its process group, without its C++ operator for shared memory, which saves nothing."""
    import deepspeed

    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]
    deepspeed.init_distributed("gloo")
    return deepspeed


def nemo_rl(rank: Rank) -> None:
    """torch.distributed.checkpoint of a sharded model in the order of NeMo-RL's `CheckpointManager`.

    NeMo-RL (snapshot of 22 Aug 2026), utils/checkpoint.py: tmp_step_<N>, the policy's weights and optimizer,
    rename, `remove_old_checkpoints` (keep_top_k=2).
    """
    import shutil

    import torch

    torch.set_num_threads(1)
    _environment(rank)
    _, write = _sharded_model(rank, "weights", "optimizer")
    rank.begin()
    for step in itertools.count(1):
        draft = rank.folder / f"tmp_step_{step}"
        if rank.leads:
            draft.mkdir()
            (draft / "training_info.json").write_text(json.dumps({"step": step, "val_reward": 0.5}))
            (draft / "config.yaml").write_text("policy: {}\n")
        rank.wait()
        write(draft / "policy", step)
        if rank.leads:
            torch.save({"step": step}, draft / "train_dataloader.pt")
            draft.rename(rank.folder / f"step_{step}")
            kept = sorted(rank.folder.glob("step_*"), key=lambda p: int(p.name.rpartition("_")[2]))
            for old in kept[:-2]:
                shutil.rmtree(old)
        rank.saved(step, rank.folder / f"step_{step}")


def open_rlhf(rank: Rank) -> None:
    """deepspeed's own engines in the order of OpenRLHF's `save_ckpt`: actor, critic, at most three each.

    openrlhf 0.11.2, utils/deepspeed/deepspeed.py `DeepspeedStrategy.save_ckpt` (685-764).
    """
    import shutil

    import torch

    torch.set_num_threads(1)
    _environment(rank)
    deepspeed = start_deepspeed()
    engines = {}
    for role in ("_actor", "_critic"):
        model = _model()
        optimizer = torch.optim.AdamW(model.parameters())
        config = {**ZERO, "zero_optimization": {"stage": 2}}
        engines[role], *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    rank.begin()
    for step in itertools.count(1):
        tag = f"global_step{step}"
        for role, engine in engines.items():
            top = rank.folder / role
            if rank.leads:
                top.mkdir(exist_ok=True)
                kept = sorted((p for p in top.iterdir() if p.is_dir()), key=lambda p: p.stat().st_mtime)
                for old in kept[:-2]:
                    shutil.rmtree(old)
            deepspeed.comm.barrier()
            engine.save_checkpoint(str(top), tag=tag, client_state={"step": step})
            if rank.leads:
                (top / tag / "metric.json").write_text(json.dumps({"metric_value": 0.5}))
            deepspeed.comm.barrier()
        rank.saved(step, *(rank.folder / role / tag for role in engines))


# layout/name: the saver, its ranks, and what it needs before the first fork
SAVERS: dict[str, tuple[Saver, int, tuple[str, ...]]] = {
    "HuggingFace/plain": (trainer("plain"), 1, ("transformers",)),
    "HuggingFace/sharded": (trainer("sharded"), 1, ("transformers",)),
    "HuggingFace/peft": (trainer("peft"), 1, ("transformers", "peft")),
    "HuggingFace/ddp": (trainer("ddp"), 2, ("transformers",)),
    "HuggingFace/fsdp": (trainer("fsdp"), 2, ("transformers",)),
    "HuggingFace/zero2": (trainer("zero2"), 2, ("transformers", "deepspeed")),
    "HuggingFace/zero3": (trainer("zero3"), 2, ("transformers", "deepspeed")),
    "OpenRLHF/actor-critic": (open_rlhf, 2, ("transformers", "deepspeed")),
    "NeMoRL/dcp": (nemo_rl, 2, ("transformers",)),
}


def warm(saver: Saver, world: int, root: Path) -> float:
    """Import here what a life of the saver imports, so that each fork of this process has it.

    Returns the time (s) that `SAVES` saves take here and now.

    What is in memory by then is kept from the garbage collector: a collection would touch, and so copy, all
    of it in each fork.
    """
    seen = root / "seen"

    def once(rank: Rank) -> None:
        times: list[float] = []

        def saved(*_: object) -> None:
            rank.wait()
            times.append(time.monotonic())
            if len(times) == WARM_SAVES:
                if rank.leads:
                    pace = (times[-1] - times[0]) / (WARM_SAVES - 1)
                    seen.write_text(json.dumps({"modules": list(sys.modules), "pace": pace}))
                Rank.begin(rank)

        rank.begin = lambda: None  # type: ignore[method-assign]
        rank.saved = saved  # type: ignore[method-assign]
        saver(rank)

    for _ in crashes(once, root / "warm", 1, 0, world=world, horizon=0.0):
        told = json.loads(seen.read_text())
        for name in told["modules"]:
            with suppress(ImportError):  # some put names there that are no modules
                importlib.import_module(name)
    gc.collect()
    gc.freeze()
    return SAVES * float(told["pace"])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torn.real")
    parser.add_argument("variant", choices=SAVERS)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--kills", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--recorded", action="store_true")
    given = parser.parse_args()
    saver, world, modules = SAVERS[given.variant]
    os.environ |= {
        "DS_ACCELERATOR": "cpu",
        "ACCELERATE_USE_CPU": "true",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    for module in modules:
        __import__(module)
    from transformers import LlamaForCausalLM, Trainer  # noqa: F401  (their lazy parts, before the forks)

    horizon = warm(saver, world, given.root)
    client = recording if given.recorded else None
    for crash in crashes(
        saver, given.root, given.kills, given.seed, world=world, horizon=horizon, client=client
    ):
        print(json.dumps({"folder": str(crash.folder), "truth": crash.truth}), flush=True)
        if not sys.stdin.readline():
            break
    return 0


if __name__ == "__main__":
    sys.exit(main())
