"""Checkpoints as each trainer family writes them, small: folders of files by relative name."""

import hashlib
import io
import json
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path

Files = Mapping[str, bytes]


def torch_file(payload: bytes = b"weights") -> bytes:
    """What torch.save writes: a zip archive."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", payload)
        archive.writestr("archive/data/0", payload * 40)
    return buffer.getvalue()


def safetensors_file(size: int = 64) -> bytes:
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(range(size))


def plain(step: int, salt: bytes = b"") -> Files:
    files = {"params.npz": b"params of %d " % step + salt, "optimizer/state.npz": b"state" * 50 + salt}
    listed = {
        name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in files.items()
    }
    return {**files, "manifest.json": json.dumps({"step": step, "files": listed}).encode()}


def hugging_face(step: int) -> Files:
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    return {
        "model.safetensors.index.json": json.dumps(index).encode(),
        "model-00001-of-00002.safetensors": safetensors_file(),
        "model-00002-of-00002.safetensors": safetensors_file(32),
        "optimizer.pt": torch_file(),
        "trainer_state.json": json.dumps({"global_step": step, "log_history": []}).encode(),
    }


def verl(step: int, ranks: int = 2) -> Files:
    files = {"data.pt": torch_file()}
    for rank in range(ranks):
        for what in ("model", "optim", "extra_state"):
            files[f"actor/{what}_world_size_{ranks}_rank_{rank}.pt"] = torch_file(b"%d" % rank)
    return files


def openrlhf(step: int, ranks: int = 2) -> Files:
    """Below ``_actor/global_step<N>``."""
    files = {"mp_rank_00_model_states.pt": torch_file()}
    for rank in range(ranks):
        files[f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"] = torch_file(b"%d" % rank)
    return files


def nemo(step: int) -> Files:
    return {
        "training_info.json": json.dumps({"step": step}).encode(),
        "config.yaml": b"policy: {}\n",
        "policy/weights/model.safetensors": safetensors_file(),
        "train_dataloader.pt": torch_file(),
    }


FOLDERS = {
    "Plain": "step-{}",
    "HuggingFace": "checkpoint-{}",
    "Verl": "global_step_{}",
    "OpenRLHF": "_actor/global_step{}",
    "NeMoRL": "step_{}",
}
MAKERS = {"Plain": plain, "HuggingFace": hugging_face, "Verl": verl, "OpenRLHF": openrlhf, "NeMoRL": nemo}


def write(folder: Path, files: Files) -> Path:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def save(root: Path, layout: str, step: int, files: Files | None = None) -> Path:
    """A whole checkpoint of a step, as its trainer leaves it; returns its folder."""
    folder = write(root / FOLDERS[layout].format(step), MAKERS[layout](step) if files is None else files)
    if layout == "OpenRLHF":
        (root / "_actor" / "latest").write_text(f"global_step{step}")
    return folder
