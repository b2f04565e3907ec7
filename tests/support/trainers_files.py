"""Checkpoints as each trainer family writes them, small: folders of files by relative name."""

import hashlib
import io
import json
import os
import pickle
import struct
import sys
import types
import zipfile
from collections.abc import Mapping
from pathlib import Path
from unittest import mock

Files = Mapping[str, bytes]


def torch_file(payload: bytes = b"weights") -> bytes:
    """What torch.save writes: a zip archive."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", payload)
        archive.writestr("archive/data/0", payload * 40)
    return buffer.getvalue()


def states(**numbers: int) -> bytes:
    """What torch.save writes of a dict of numbers among other things, as DeepSpeed's model states are."""
    return torch_file(pickle.dumps({"module": {"w": [0.5]}, **numbers, "ds_version": "0.19.8"}, protocol=2))


def dcp_metadata(shards: Mapping[str, int], first: str = "model") -> bytes:
    """A ``.metadata`` as torch.distributed.checkpoint writes it: two pieces in each shard, of so many bytes.

    ``first``: how the names of what is in them begin.

    The pickle names torch's classes; ours stand in for them while it is made, so that no torch is needed.
    """
    base = "torch.distributed.checkpoint"
    parts = base.split(".")
    parents = [".".join(parts[: n + 1]) for n in range(len(parts))]
    modules = {name: types.ModuleType(name) for name in (*parents, f"{base}.metadata", f"{base}.filesystem")}
    where = {"Metadata": "metadata", "MetadataIndex": "metadata", "_StorageInfo": "filesystem"}
    classes = {name: type(name, (), {"__module__": f"{base}.{at}"}) for name, at in where.items()}
    for name, made in classes.items():
        setattr(modules[made.__module__], name, made)

    def make(name: str, **state: object) -> object:
        made = classes[name]()
        made.__dict__.update(state)
        return made

    storage = {}
    for shard, size in shards.items():
        for at, (offset, length) in enumerate(((0, size // 2), (size // 2, size - size // 2))):
            index = make("MetadataIndex", fqn=f"{first}.{shard}.{at}", offset=None, index=at)
            storage[index] = make("_StorageInfo", relative_path=shard, offset=offset, length=length)
    metadata = make("Metadata", state_dict_metadata={}, storage_data=storage, version="1.0")
    with mock.patch.dict(sys.modules, modules):
        return pickle.dumps(metadata)


def sharded(folder: str, ranks: int = 2) -> dict[str, bytes]:
    """One torch.distributed.checkpoint: a shard of each rank, then the metadata."""
    at = f"{folder}/" if folder else ""
    shards = {f"__{rank}_0.distcp": torch_file(b"%d" % rank) * 2 for rank in range(ranks)}
    metadata = dcp_metadata({name: len(data) for name, data in shards.items()})
    return {**{at + name: data for name, data in shards.items()}, f"{at}.metadata": metadata}


def safetensors_file(size: int = 64) -> bytes:
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(range(size))


def plain(step: int, salt: bytes = b"") -> Files:
    files = {"params.npz": b"params of %d " % step + salt, "optimizer/state.npz": b"state" * 50 + salt}
    listed = {
        name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in files.items()
    }
    return {**files, "manifest.json": json.dumps({"step": step, "files": listed}).encode()}


def hugging_face(step: int, weights: Files | None = None, model_only: bool = False) -> Files:
    """In the order of Trainer._save_checkpoint (transformers 5.23)."""
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    model = {
        "config.json": b'{"model_type": "llama"}',
        "generation_config.json": b"{}",
        "model-00001-of-00002.safetensors": safetensors_file(),
        "model-00002-of-00002.safetensors": safetensors_file(32),
        "model.safetensors.index.json": json.dumps(index).encode(),
    }
    rest = {"optimizer.pt": torch_file(), "scheduler.pt": torch_file(), "rng_state.pth": torch_file()}
    return {
        **(model if weights is None else weights),
        "tokenizer_config.json": b"{}",
        "tokenizer.json": b'{"model": {}}',
        "training_args.bin": torch_file(),
        **({} if model_only else rest),
        "trainer_state.json": json.dumps({"global_step": step, "log_history": []}).encode(),
    }


def verl(step: int, ranks: int = 2) -> Files:
    files = {}
    for rank in range(ranks):
        for what in ("model", "optim", "extra_state"):
            files[f"actor/{what}_world_size_{ranks}_rank_{rank}.pt"] = torch_file(b"%d" % rank)
    return {**files, "actor/huggingface/config.json": b"{}", "data.pt": torch_file()}


def openrlhf(step: int, ranks: int = 2) -> Files:
    """Below ``_actor/global_step<N>``."""
    files = {"mp_rank_00_model_states.pt": states(dp_world_size=ranks, mp_world_size=1)}
    for rank in range(ranks):
        files[f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"] = torch_file(b"%d" % rank)
    return {**files, "metric.json": b'{"metric_key": null, "metric_value": null}'}


def nemo(step: int) -> Files:
    return {
        "training_info.json": json.dumps({"step": step}).encode(),
        "config.yaml": b"policy: {}\n",
        "policy/weights/model.safetensors": safetensors_file(),
        "train_dataloader.pt": torch_file(),
    }


def megatron(folder: str = "", common: bool = True) -> dict[str, bytes]:
    """What Megatron's dist_checkpointing leaves; ``common``: with a file of what all ranks share."""
    at = f"{folder}/" if folder else ""
    shards = sharded(folder)
    if common:
        return {f"{at}common.pt": torch_file(), **shards, f"{at}metadata.json": b"{}"}
    sizes = {name.rpartition("/")[2]: len(data) for name, data in shards.items() if "distcp" in name}
    shards[f"{at}.metadata"] = dcp_metadata(sizes, "common_state/shard_0_1")
    return {**shards, f"{at}metadata.json": b"{}"}


def slime(step: int) -> Files:
    """Below ``iter_<NNNNNNN>``; the state of the data lies beside it."""
    return megatron(common=False)


def slime_fsdp(*within: str) -> Files:
    """The same by FSDP, with the shards in these folders; none: in its own."""
    shards = {name: data for folder in within or ("",) for name, data in sharded(folder).items()}
    return {**shards, "rng.pt": torch_file(), "meta.json": b"{}"}


def torch_dcp(step: int) -> Files:
    return {**sharded(""), "train_state.json": json.dumps({"step": step}).encode()}


FOLDERS = {
    "Plain": "step-{}",
    "HuggingFace": "checkpoint-{}",
    "Verl": "global_step_{}",
    "OpenRLHF": "_actor/global_step{}",
    "NeMoRL": "step_{}",
    "Slime": "iter_{:07}",
    "TorchDCP": "step-{}",
}
MAKERS = {
    "Plain": plain,
    "HuggingFace": hugging_face,
    "Verl": verl,
    "OpenRLHF": openrlhf,
    "NeMoRL": nemo,
    "Slime": slime,
    "TorchDCP": torch_dcp,
}
# Their newest checkpoint alone tells nothing of what is still to come beside it.
WAIT_FOR_ANOTHER = ("OpenRLHF", "TorchDCP")


def write(folder: Path, files: Files) -> Path:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def save(root: Path, layout: str, step: int, files: Files | None = None) -> Path:
    """A whole checkpoint of a step, as its trainer leaves it; returns its folder."""
    folder = write(root / FOLDERS[layout].format(step), MAKERS[layout](step) if files is None else files)
    if layout == "Slime":
        of_fsdp = (folder / "meta.json").exists()  # whose number is one more than the rollout's
        write(root, {f"rollout/global_dataset_state_dict_{step - of_fsdp}.pt": torch_file()})
        (root / "latest_checkpointed_iteration.txt").write_text(str(step))
    if layout == "OpenRLHF":
        (root / "_actor" / "latest").write_text(f"global_step{step}")
    if layout == "Verl":
        (root / "latest_checkpointed_iteration.txt").write_text(str(step))
    age(folder)
    return folder


def age(folder: Path, seconds: int = 3600) -> None:
    """Let a save lie back: what is done to it later has later times, however coarse the clock."""
    for path in (*folder.rglob("*"), folder):
        found = path.lstat()
        at = found.st_mtime_ns - seconds * 10**9
        os.utime(path, ns=(at, at), follow_symlinks=False)
