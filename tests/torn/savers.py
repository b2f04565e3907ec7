"""Save code of the trainers' libraries, followed act by act, with small files in place of the weights.

Each says which code it follows: package, version, file, function. Order of acts, who does them, where the
ranks wait for each other, names, temporary names and rotation are those of that code; the content is that of
`tests.torn.content`. Every file is written in pieces, so that a kill finds it half written.
"""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.torn import content
from tests.torn.crash import Rank, Saver

PAUSE = 0.0004  # s between the pieces of a file, and between the files that rotation removes
PIECES = 3
FIRST = (
    1000  # step of the first save: with as many digits as the last, a file that names its step has one size
)


def write(path: Path, data: bytes) -> None:
    """In place, in pieces."""
    with path.open("wb", buffering=0) as file:
        size = -(-len(data) // PIECES)
        for start in range(0, len(data), size or 1):
            file.write(data[start : start + size])
            time.sleep(PAUSE)


def replace(path: Path, data: bytes, suffix: str = ".tmp") -> None:
    """By way of a temporary name beside it."""
    draft = path.with_name(path.name + suffix)
    write(draft, data)
    draft.replace(path)


def remove(folder: Path, rank: Rank) -> None:
    """shutil.rmtree: in the order in which the file system lists the entries, which is any."""
    entries = list(folder.iterdir()) if folder.exists() else []
    rank.random.shuffle(entries)
    for entry in entries:
        if entry.is_dir():
            remove(entry, rank)
        else:
            entry.unlink(missing_ok=True)
            time.sleep(PAUSE)
    shutil.rmtree(folder, ignore_errors=True)


def _distributed(folder: Path, rank: Rank, step: int, first: str = "layer") -> None:
    """torch.distributed.checkpoint.save: all ranks write, then the first one writes the metadata.

    torch 2.15.0, distributed/checkpoint/state_dict_saver.py `_save_state_dict`: `all_reduce("write",
    write_data, finish_checkpoint)`: the metadata is written when every rank has reported.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files, metadata = content.distributed(rank.world, step, first=first)
    for name, data in files[rank.rank].items():
        write(folder / name, data)
    rank.wait()
    if rank.leads:
        replace(folder / ".metadata", metadata)
    rank.wait()


# -- Hugging Face Trainer


def hugging_face(
    weights: Callable[[Path, Rank, int], None],
    optimizer: bool = True,
    only_model: bool = False,
    last: Callable[[Path, Rank], None] = lambda folder, rank: None,
) -> Saver:
    """transformers 5.23.0, trainer.py `Trainer._save_checkpoint` (lines 3355-3422) and trainer_utils.py
    `rotate_checkpoints` (342-387), which comes before the callbacks hear of the save.

    Model, config, tokenizer and training_args.bin, optimizer, scheduler, every rank's random state with no
    barrier behind it, trainer_state.json; then rotation by age (save_total_limit=3). ``only_model``:
    save_only_model. ``last``: what a trainer derived from it writes afterwards.
    """

    def save(rank: Rank) -> None:
        rank.begin()
        for step in itertools.count(FIRST, 10):
            folder = rank.folder / f"checkpoint-{step}"
            folder.mkdir(exist_ok=True)
            rank.wait()
            weights(folder, rank, step)
            if rank.leads and optimizer and not only_model:
                write(folder / "optimizer.pt", content.archive(6000))
            if rank.leads and not only_model:
                write(folder / "scheduler.pt", content.archive(800))
            name = f"rng_state_{rank.rank}.pth" if rank.world > 1 else "rng_state.pth"
            if not only_model:
                write(folder / name, content.archive(1200))
            if rank.leads:
                log = [{"loss": 0.5, "step": s} for s in range(FIRST, step + 1, 10)]
                write(folder / "trainer_state.json", content.text({"global_step": step, "log_history": log}))
                kept = sorted(rank.folder.glob("checkpoint-*"), key=lambda p: p.stat().st_mtime)
                for old in kept[:-3]:
                    remove(old, rank)
            last(folder, rank)
            rank.saved(step, folder)

    return save


def _entropy(folder: Path, rank: Rank) -> None:
    """trl 1.16.0, trainer/grpo_trainer.py `_save_checkpoint` (3385-3395), use_adaptive_entropy."""
    if rank.leads:
        state = {"entropy_coef": 0.1, "last_world_entropy": 0.5}
        write(folder / "entropy_ctrl_state.json", content.text(state))


def _with_entropy(folder: Path, rank: Rank, step: int) -> None:
    """The arguments say that the entropy's state will follow (grpo_config.py:886)."""
    _plain_weights(folder, rank, step)
    if rank.leads:
        arguments = content.states(5000, num_processes=rank.world, use_adaptive_entropy=True)
        write(folder / "training_args.bin", arguments)


def _beside(folder: Path, rank: Rank) -> None:
    """transformers 5.23.0, trainer.py `Trainer._save`: what follows the weights. The arguments carry
    accelerate's state, with the number of processes in it (recorded/fsdp-full.tar.xz has such a file)."""
    write(folder / "tokenizer.json", content.text({"version": "1.0", "model": {"vocab": {}}}))
    write(folder / "tokenizer_config.json", content.text({"tokenizer_class": "PreTrainedTokenizerFast"}))
    write(folder / "training_args.bin", content.states(5000, num_processes=rank.world))


def _plain_weights(folder: Path, rank: Rank, step: int) -> None:
    """`PreTrainedModel.save_pretrained`: config first; safetensors 0.8.0 writes by a temporary name."""
    if rank.leads:
        write(folder / "config.json", content.text({"model_type": "llama"}))
        write(folder / "generation_config.json", content.text({"eos_token_id": 2}))
        replace(folder / "model.safetensors", content.safetensors(seed=step), ".abc123")
        _beside(folder, rank)


def _sharded_weights(folder: Path, rank: Rank, step: int) -> None:
    """`save_pretrained` with several shards: the index comes after them."""
    if rank.leads:
        write(folder / "config.json", content.text({"model_type": "llama"}))
        names = [f"model-{n:05}-of-00004.safetensors" for n in range(1, 5)]
        for name in names:
            replace(folder / name, content.safetensors(2000, seed=step), ".abc123")
        index = {"metadata": {}, "weight_map": {f"layer.{n}": name for n, name in enumerate(names)}}
        write(folder / "model.safetensors.index.json", content.text(index))
        _beside(folder, rank)


def _adapter_weights(folder: Path, rank: Rank, step: int) -> None:
    """peft 0.21.2, peft_model.py `PeftModel.save_pretrained`: model card, adapter, its config last."""
    if rank.leads:
        write(folder / "README.md", b"# Model card\n" * 20)
        replace(folder / "adapter_model.safetensors", content.safetensors(1600, seed=step), ".abc123")
        write(folder / "adapter_config.json", content.text({"peft_type": "LORA", "r": 8}))
        _beside(folder, rank)


def _fsdp_weights(folder: Path, rank: Rank, step: int) -> None:
    """accelerate 1.15.0, utils/fsdp_utils.py `save_fsdp_model` and `save_fsdp_optimizer`,
    SHARDED_STATE_DICT: torch.distributed.checkpoint into folders of their own."""
    if rank.leads:
        _beside(folder, rank)
    _distributed(folder / "pytorch_model_fsdp_0", rank, step)
    _distributed(folder / "optimizer_0", rank, step)


def _fsdp_full_weights(folder: Path, rank: Rank, step: int) -> None:
    """The same, FULL_STATE_DICT: transformers' `save_model` as for any model, then one file each of the model
    and the optimizer by the first rank (fsdp_utils.py:154-160, 330-338)."""
    _plain_weights(folder, rank, step)
    rank.wait()  # the optimizer's state is gathered
    if rank.leads:
        write(folder / "pytorch_model_fsdp.bin", content.archive(4000))
        write(folder / "optimizer.bin", content.archive(6000))


def _fsdp_local_weights(folder: Path, rank: Rank, step: int) -> None:
    """The same, LOCAL_STATE_DICT: a file of the model by each rank (fsdp_utils.py:162-171), the optimizer by
    torch.distributed.checkpoint (339-352)."""
    write(folder / f"pytorch_model_fsdp_rank{rank.rank}.bin", content.archive(4000))
    _distributed(folder / "optimizer_0", rank, step)


def _fsdp_rank_weights(folder: Path, rank: Rank, step: int) -> None:
    """The same, SHARDED_STATE_DICT with use_dcp=False: a file of each rank, of model and optimizer, with no
    barrier (fsdp_utils.py:186-191, 353-358). The states are sharded tensors, which carry the number of ranks
    (torch 2.15.0, distributed/_shard/sharded_tensor/api.py `ShardedTensor.__getstate__`, 1289-1303)."""
    world = {"global_world_size": rank.world}
    write(folder / f"pytorch_model_fsdp_0_rank{rank.rank}.bin", content.states(4000, **world))
    write(folder / f"optimizer_0_rank{rank.rank}.bin", content.states(6000, **world))


def _zero_weights(stage: int) -> Callable[[Path, Rank, int], None]:
    """deepspeed 0.19.8, runtime/engine.py `DeepSpeedEngine.save_checkpoint` (4869-4964): model states by the
    first rank (ZeRO-3: by every rank), optimizer states by every rank, the recovery script and ``latest`` by
    the first, with no barrier before ``latest``."""

    def weights(folder: Path, rank: Rank, step: int) -> None:
        if rank.leads:
            write(folder / "config.json", content.text({"model_type": "llama"}))
            if stage < 3:
                replace(folder / "model.safetensors", content.safetensors(seed=step), ".abc123")
            _beside(folder, rank)
        _deepspeed(folder, rank, f"global_step{step}", stage)

    return weights


def _deepspeed(folder: Path, rank: Rank, tag: str, stage: int) -> None:
    if rank.leads:
        folder.mkdir(parents=True, exist_ok=True)
    rank.wait()
    inside = folder / tag
    inside.mkdir(exist_ok=True)
    rank.wait()
    # engine.py `_save_checkpoint`: both numbers are in the model's states
    model = content.states(3000, dp_world_size=rank.world, mp_world_size=1)
    if stage == 3:
        write(inside / f"zero_pp_rank_{rank.rank}_mp_rank_00_model_states.pt", model)
    elif rank.leads:
        write(inside / "mp_rank_00_model_states.pt", model)
    optimizer = inside / f"bf16_zero_pp_rank_{rank.rank}_mp_rank_00_optim_states.pt"
    write(optimizer, content.archive(4000))
    if rank.leads:
        write(folder / "zero_to_fp32.py", b"#!/usr/bin/env python\n" * 40)
        write(folder / "latest", tag.encode())
    rank.wait()


# -- verl


def verl(role: Callable[[Path, Rank, int], None], queue: bool = False) -> Saver:
    """verl 0.9.1, trainer/ppo/v1/trainer_base.py `_save_checkpoint` (948-1030): actor, then critic, data.pt,
    the transfer queue (``queue``: modes other than sync), the tracker file; rotation of
    utils/checkpoint/checkpoint_manager.py takes roles' folders: `ensure_checkpoint_capacity` before,
    `register_checkpoint` after each role's save, three are kept.
    """

    def save(rank: Rank) -> None:
        rank.begin()
        saved: dict[str, list[Path]] = {"actor": [], "critic": []}
        for step in itertools.count(FIRST):
            folder = rank.folder / f"global_step_{step}"
            for name, paths in saved.items():
                if rank.leads and len(paths) >= 3:
                    for old in paths[:-2]:
                        remove(old, rank)
                    del paths[:-2]
                (folder / name).mkdir(parents=True, exist_ok=True)
                rank.wait()
                role(folder / name, rank, step)
                rank.wait()
                paths.append(folder / name)
                if rank.leads:
                    for old in paths[:-3]:
                        remove(old, rank)
                del paths[:-3]
            if rank.leads:
                write(folder / "data.pt", content.archive(900))
                if queue:
                    _transfer_queue(folder)
                write(rank.folder / "latest_checkpointed_iteration.txt", str(step).encode())
            rank.saved(step, folder)

    return save


def _transfer_queue(folder: Path) -> None:
    """TransferQueue 0.1.11, interface.py `save_checkpoint` (1004-1083): all into a folder of another name,
    metadata.json last, then a rename."""
    draft = folder / "transfer_queue.tmp"
    (draft / "storage_units").mkdir(parents=True)
    write(draft / "controller_state.pkl", b"\x80\x05}q\x00." * 80)
    write(draft / "storage_units" / "su_0_a1.pkl", b"\x80\x05}q\x00." * 200)
    write(draft / "storage_units" / "storage_unit_info.json", content.text({"units": 1}))
    write(draft / "metadata.json", content.text({"storage_saved": True}))
    draft.rename(folder / "transfer_queue")


def _verl_lora(folder: Path, rank: Rank, step: int) -> None:
    """The same manager with LoRA: lora_train_meta.json after fsdp_config.json (417), then a barrier."""
    _verl_fsdp(folder, rank, step)
    if rank.leads:
        write(folder / "lora_train_meta.json", content.text({"r": 8, "lora_alpha": 16}))


def _verl_fsdp(folder: Path, rank: Rank, step: int) -> None:
    """utils/checkpoint/fsdp_checkpoint_manager.py `FSDPCheckpointManager.save_checkpoint` (272-475)."""
    for what, size in (("model", 4000), ("optim", 6000), ("extra_state", 1000)):
        write(folder / f"{what}_world_size_{rank.world}_rank_{rank.rank}.pt", content.archive(size))
    if rank.leads:
        _hugging_face_config(folder / "huggingface")
        write(folder / "fsdp_config.json", content.text({"FSDP_version": 2, "world_size": rank.world}))


def _hugging_face_config(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "config.json", content.text({"model_type": "qwen2"}))
    write(folder / "tokenizer_config.json", content.text({"tokenizer_class": "Qwen2Tokenizer"}))
    write(folder / "tokenizer.json", content.text({"version": "1.0"}))


def _megatron(folder: Path, rank: Rank, step: int, common: bool = True) -> None:
    """megatron-core 0.14, dist_checkpointing/serialization.py `save` with the torch_dist strategy: common.pt
    (in versions of 2026 an object in the shards instead), shards, .metadata, and metadata.json last, by the
    first rank."""
    folder.mkdir(parents=True, exist_ok=True)
    rank.wait()
    if rank.leads and common:
        write(folder / "common.pt", content.archive(900))
    _distributed(folder, rank, step, "layer" if common else "common_state/shard_0_1")
    if rank.leads:
        backend = {"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch"}
        write(folder / "metadata.json", content.text(backend))
    rank.wait()


def _verl_megatron_1(folder: Path, rank: Rank, step: int) -> None:
    """verl 0.6, utils/checkpoint/megatron_checkpoint_manager.py `save_checkpoint`, one ``dist_ckpt`` (schema
    v1, as `MANIFEST_SCHEMA_VERSION` of 0.9.1 describes it)."""
    _megatron(folder / "dist_ckpt", rank, step)
    if rank.leads:
        _hugging_face_config(folder / "huggingface")
        write(folder / "transformer_config.json", content.text({"num_layers": 2}))


def _verl_megatron_2(bridge: bool) -> Callable[[Path, Rank, int], None]:
    """verl 0.9.1, utils/checkpoint/megatron_checkpoint_manager.py `save_checkpoint` (1173-1303), schema v2:
    dist_ckpt of model, optimizer and extra; with a bridge HF's config, tokenizer and weights in place of the
    model's; transformer_config.json; ckpt_contents.json by rename, last (`_build_checkpoint_manifest`,
    `_write_checkpoint_manifest`, 609-635)."""

    def save(folder: Path, rank: Rank, step: int) -> None:
        for what in ("optimizer", "extra") if bridge else ("model", "optimizer", "extra"):
            _megatron(folder / what / "dist_ckpt", rank, step)
        if bridge:
            if rank.leads:
                _hugging_face_config(folder / "model" / "huggingface")
            rank.wait()
            if rank.leads:
                weights = folder / "model" / "huggingface" / "model.safetensors"
                replace(weights, content.safetensors(seed=step), ".abc123")
        if rank.leads:
            write(folder / "transformer_config.json", content.text({"num_layers": 2}))
            manifest = {
                "schema_version": 2,
                "global_step": step,
                "contents": _listed(bridge),
                "directories": {},
            }
            replace(folder / "ckpt_contents.json", content.text(manifest))
        rank.wait()

    return save


def _listed(bridge: bool) -> dict[str, dict[str, str]]:
    hugging_face = {"path": "model/huggingface", "format": "huggingface"}
    found = {
        what: {"path": f"{where}/dist_ckpt", "format": "megatron_dist_checkpoint"}
        for what, where in (
            ("model", "model"),
            ("optimizer", "optimizer"),
            ("lr_scheduler", "optimizer"),
            ("rng_state", "extra"),
        )
    }
    found["transformer_config"] = {"path": "transformer_config.json", "format": "json"}
    if bridge:
        found |= dict.fromkeys(("model", "hf_config", "tokenizer"), hugging_face)
    return found


# -- OpenRLHF


def open_rlhf(critic: bool) -> Saver:
    """openrlhf 0.11.2, utils/deepspeed/deepspeed.py `DeepspeedStrategy.save_ckpt` (685-764): rotation by the
    first rank (max_num 3, oldest first without a metric), a barrier, deepspeed's save, metric.json; actor,
    then critic (trainer/ray/ppo_actor.py, ppo_critic.py `save_checkpoint`)."""

    return _open_rlhf(critic, lambda step: f"global_step{step}", lambda step, kept: kept[:-2])


def open_rlhf_best(critic: bool) -> Saver:
    """openrlhf 0.11.2, trainer/ppo_trainer.py `save_best_checkpoint` (337-372) and `save_ckpt` as above: the
    former best is taken away, the new one saved under ``best_global_step<N>``; every other save is a regular
    one."""

    def outdated(step: int, kept: list[Path]) -> list[Path]:
        best = [p for p in kept if p.name.startswith("best")]
        return best if step % 2 else [p for p in kept if p not in best][:-2]

    return _open_rlhf(
        critic, lambda step: f"best_global_step{step}" if step % 2 else f"global_step{step}", outdated
    )


def _open_rlhf(
    critic: bool, named: Callable[[int], str], outdated: Callable[[int, list[Path]], list[Path]]
) -> Saver:
    """Save actor, then critic: ``named`` for a step, after those of a role, oldest first, that are
    ``outdated`` in it were taken away."""

    def save(rank: Rank) -> None:
        rank.begin()
        for step in itertools.count(FIRST):
            tag = named(step)
            roles = [rank.folder / "_actor", *([rank.folder / "_critic"] if critic else [])]
            for role in roles:
                if rank.leads:
                    role.mkdir(exist_ok=True)
                    kept = sorted((p for p in role.iterdir() if p.is_dir()), key=lambda p: p.stat().st_mtime)
                    for old in outdated(step, kept):
                        remove(old, rank)
                rank.wait()
                _deepspeed_of_openrlhf(role, rank, tag)
                if rank.leads:
                    write(role / tag / "metric.json", content.text({"metric_value": 0.5, "metric_key": "x"}))
                rank.wait()
            rank.saved(step, *(role / tag for role in roles))

    return save


def open_rlhf_exported(rank: Rank) -> None:
    """openrlhf 0.11.2, trainer/ray/ppo_actor.py `save_checkpoint` (661-683) with save_hf and disable_ds:
    utils/deepspeed/deepspeed.py `save_model` (533-597): config, weights, the config again, tokenizer. Nothing
    rotates them."""
    rank.begin()
    for step in itertools.count(FIRST):
        folder = rank.folder / f"global_step{step}_hf"
        if rank.leads:
            folder.mkdir()
            write(folder / "config.json", content.text({"model_type": "llama"}))
            write(folder / "generation_config.json", content.text({"eos_token_id": 2}))
            replace(folder / "model.safetensors", content.safetensors(seed=step), ".abc123")
            write(folder / "config.json", content.text({"model_type": "llama"}))
            write(folder / "tokenizer_config.json", content.text({"tokenizer_class": "LlamaTokenizer"}))
            write(folder / "tokenizer.json", content.text({"version": "1.0"}))
        rank.saved(step, folder)


def _deepspeed_of_openrlhf(role: Path, rank: Rank, tag: str) -> None:
    """deepspeed 0.19.8 as above, ZeRO-2; the script and ``latest`` lie beside the tags."""
    _deepspeed(role, rank, tag, stage=2)


# -- NeMo-RL


def nemo_rl(policy: Callable[[Path, Rank, int], None]) -> Saver:
    """NeMo-RL (snapshot of 22 Aug 2026), utils/checkpoint.py `CheckpointManager`: `init_tmp_checkpoint`, the
    policy's distributed checkpoint, `finalize_checkpoint`: rename (an old one of the step is moved aside),
    then `remove_old_checkpoints` (keep_top_k=2)."""
    return lambda rank: _nemo_rl(rank, policy)


def _nemo_dcp(folder: Path, rank: Rank, step: int) -> None:
    _distributed(folder / "weights", rank, step)
    _distributed(folder / "optimizer", rank, step)


def _nemo_megatron(folder: Path, rank: Rank, step: int) -> None:
    """megatron-bridge: one iteration, 0, with its own settings beside the shards."""
    _megatron(folder / "weights" / "iter_0000000", rank, step, common=False)
    if rank.leads:
        write(folder / "weights" / "iter_0000000" / "run_config.yaml", b"model: {}\n" * 20)
        write(folder / "weights" / "latest_checkpointed_iteration.txt", b"0")


def _nemo_rl(rank: Rank, policy: Callable[[Path, Rank, int], None]) -> None:
    rank.begin()
    for step in itertools.count(FIRST):
        draft = rank.folder / f"tmp_step_{step}"
        if rank.leads:
            draft.mkdir()
            write(draft / "training_info.json", content.text({"step": step, "val_reward": 0.5}))
            write(draft / "config.yaml", b"policy: {}\n" * 30)
        rank.wait()
        policy(draft / "policy", rank, step)
        if rank.leads:
            write(draft / "train_dataloader.pt", content.archive(900))
            draft.rename(rank.folder / f"step_{step}")
            kept = sorted(rank.folder.glob("step_*"), key=lambda p: int(p.name.rpartition("_")[2]))
            for old in kept[:-2]:
                remove(old, rank)
        rank.saved(step, rank.folder / f"step_{step}")


# -- slime


def slime(write_actor: Callable[[Path, Rank, int], None], ahead: int = 0) -> Saver:
    """THUDM/slime, train.py: the actor's `save_model`, then the data's state, named after the rollout
    (slime/rollout/data_source.py `save`); of the actor's save the tracker comes last. Then
    `cleanup_old_checkpoints` (slime/backends/megatron_utils/checkpoint.py), three kept.

    ``ahead``: by how much the actor's number is that of the rollout's."""

    def save(rank: Rank) -> None:
        rank.begin()
        for step in itertools.count(FIRST, 2):
            folder = rank.folder / f"iter_{step:07}"
            state = rank.folder / "rollout" / f"global_dataset_state_dict_{step - ahead}.pt"
            write_actor(folder, rank, step)
            if rank.leads:
                write(rank.folder / "latest_checkpointed_iteration.txt", str(step).encode())
                for old in sorted(rank.folder.glob("iter_*"))[:-3]:
                    remove(old, rank)
                state.parent.mkdir(exist_ok=True)
                write(state, content.archive(700))
            rank.saved(step, folder, beside=[state])

    return save


def _slime_megatron(folder: Path, rank: Rank, step: int) -> None:
    _megatron(folder, rank, step, common=False)


def _slime_fsdp(*within: str) -> Callable[[Path, Rank, int], None]:
    """slime/backends/fsdp_utils/checkpoint.py `save`: shards, rng.pt, meta.json by a rename. At commit
    05254ea7b1f78955abbcf253cd46f7c027fa7366 the shards lie in the folder itself, at
    2ecc935aaa8c1c272d3d7770825a8d9debf58ebf in folders of it, all of which are made first."""

    def write_actor(folder: Path, rank: Rank, step: int) -> None:
        if rank.leads:
            for part in within:
                (folder / part).mkdir(parents=True, exist_ok=True)
        rank.wait()
        for part in within or (".",):
            _distributed(folder / part, rank, step)
        if rank.leads:
            write(folder / "rng.pt", content.archive(900))
            replace(folder / "meta.json", content.text({"iteration": step}))

    return write_actor


# -- torch.distributed.checkpoint alone


def torch_dcp(more: bool) -> Saver:
    """torchtitan 0.3.0, components/checkpointer: `dcp.save` into step-<N>, then the oldest are purged
    (keep_latest_k=3). ``more``: a plain loop, that writes a file of its own beside the shards, afterwards."""

    def save(rank: Rank) -> None:
        rank.begin()
        for step in itertools.count(FIRST):
            folder = rank.folder / f"step-{step}"
            _distributed(folder, rank, step)
            if rank.leads:
                if more:
                    write(folder / "train_state.json", content.text({"step": step}))
                kept = sorted(rank.folder.glob("step-*"), key=lambda p: int(p.name.rpartition("-")[2]))
                for old in kept[:-3]:
                    remove(old, rank)
            rank.saved(step, folder)

    return save


# -- Plain


def plain(rank: Rank) -> None:
    """examples/trainer/checkpoints.py itself."""
    from examples.trainer.checkpoints import CheckpointFolder
    from examples.trainer.task import np

    folder = CheckpointFolder(rank.folder, keep=3)
    state = {"weights": np.zeros(400), "bias": np.ones(30)}
    rank.begin()
    for step in itertools.count(FIRST, 10):
        rank.saved(step, folder.save(step, state, attempt=1))


@dataclass(frozen=True)
class Variant:
    """A way a layout is written. ``bare``: it is judged without save records too."""

    layout: str
    name: str
    saver: Saver
    world: int = 1
    horizon: float = 0.25  # s from the first save within which it is killed


def _variants() -> Mapping[str, Variant]:
    hf, verls = "HuggingFace", "Verl"
    found = [
        Variant(hf, "plain", hugging_face(_plain_weights)),
        Variant(hf, "sharded", hugging_face(_sharded_weights)),
        Variant(hf, "peft", hugging_face(_adapter_weights)),
        Variant(hf, "fsdp", hugging_face(_fsdp_weights, optimizer=False), world=3),
        Variant(hf, "zero2", hugging_face(_zero_weights(2), optimizer=False), world=3),
        Variant(hf, "zero3", hugging_face(_zero_weights(3), optimizer=False), world=3),
        Variant(hf, "model-only", hugging_face(_plain_weights, only_model=True)),
        Variant(hf, "fsdp-full", hugging_face(_fsdp_full_weights, optimizer=False), world=3),
        Variant(hf, "fsdp-local", hugging_face(_fsdp_local_weights, optimizer=False), world=3),
        Variant(hf, "fsdp-no-dcp", hugging_face(_fsdp_rank_weights, optimizer=False), world=3),
        Variant(hf, "entropy", hugging_face(_with_entropy, last=_entropy)),
        Variant(verls, "fsdp", verl(_verl_fsdp), world=3, horizon=0.7),
        Variant(verls, "megatron-v1", verl(_verl_megatron_1), world=2, horizon=0.7),
        Variant(verls, "megatron-v2", verl(_verl_megatron_2(bridge=False)), world=2, horizon=0.7),
        Variant(verls, "megatron-v2-bridge", verl(_verl_megatron_2(bridge=True)), world=2, horizon=0.7),
        Variant(verls, "lora", verl(_verl_lora), world=3, horizon=0.7),
        Variant(verls, "queue", verl(_verl_fsdp, queue=True), world=3, horizon=0.7),
        Variant(
            verls, "megatron-v2-queue", verl(_verl_megatron_2(bridge=False), queue=True), world=2, horizon=0.7
        ),
        Variant("OpenRLHF", "actor-critic", open_rlhf(critic=True), world=3),
        Variant("OpenRLHF", "actor", open_rlhf(critic=False), world=3),
        Variant("OpenRLHF", "best", open_rlhf_best(critic=True), world=3, horizon=0.4),
        Variant("OpenRLHF", "exported", open_rlhf_exported),
        Variant("NeMoRL", "dcp", nemo_rl(_nemo_dcp), world=3),
        Variant("NeMoRL", "megatron", nemo_rl(_nemo_megatron), world=3),
        Variant("Slime", "megatron", slime(_slime_megatron), world=3),
        Variant("Slime", "fsdp", slime(_slime_fsdp(), ahead=1), world=3),
        Variant(
            "Slime",
            "fsdp-parts",
            slime(_slime_fsdp("model", "optimizer", "lr_scheduler"), ahead=1),
            world=3,
        ),
        Variant("TorchDCP", "shards", torch_dcp(more=False), world=3),
        Variant("TorchDCP", "more", torch_dcp(more=True), world=3),
        Variant("Plain", "example", plain),
    ]
    return {f"{one.layout}/{one.name}": one for one in found}


VARIANTS = _variants()
