"""No torn set counts as whole, every whole one is found: thousands of half-deleted and half-saved folders."""

from __future__ import annotations

import json
import os
import pickle
import random
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_checkpoints_layouts import megatron_v1, megatron_v2, problems

from controller.checkpoints.completeness import dcp, pickles, shards
from controller.checkpoints.layouts.base import Folder
from controller.checkpoints.volume import Volume
from tests.support.trainers_files import (
    FOLDERS,
    WAIT_FOR_ANOTHER,
    age,
    hugging_face,
    megatron,
    nemo,
    openrlhf,
    plain,
    safetensors_file,
    save,
    sharded,
    slime,
    slime_fsdp,
    states,
    torch_dcp,
    torch_file,
    verl,
    write,
)

FSDP = {
    **sharded("pytorch_model_fsdp_0"),
    **sharded("optimizer_0"),
    "scheduler.pt": torch_file(),
    "rng_state_0.pth": torch_file(),
    "rng_state_1.pth": torch_file(),
}
ZERO3 = {
    "zero_pp_rank_0_mp_rank_00_model_states.pt": states(dp_world_size=2, mp_world_size=1),
    "zero_pp_rank_1_mp_rank_00_model_states.pt": states(dp_world_size=2, mp_world_size=1),
    "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt": torch_file(),
    "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt": torch_file(),
}
FULL = {  # FULL_STATE_DICT: as any other model, and the states to resume from
    "config.json": b"{}",
    "model.safetensors": safetensors_file(),
    "pytorch_model_fsdp.bin": torch_file(),
}
LOCAL = {  # LOCAL_STATE_DICT: the weights of each rank by themselves, the optimizer's by DCP
    "pytorch_model_fsdp_rank0.bin": torch_file(),
    "pytorch_model_fsdp_rank1.bin": torch_file(),
    **{name: data for name, data in FSDP.items() if not name.startswith("pytorch_model_fsdp_0/")},
}
PEFT = {"adapter_model.safetensors": safetensors_file(), "adapter_config.json": b"{}", "README.md": b"peft"}


def trainer_state(step: int) -> bytes:
    return json.dumps({"global_step": step}).encode()


def saves(step: int) -> dict[str, tuple[str, dict[str, bytes]]]:
    """Whole checkpoints of every layout and form, files in the order in which their trainers write them."""
    ddp = dict(hugging_face(step))
    del ddp["rng_state.pth"]
    ddp = {**ddp, "training_args.bin": states(num_processes=2)}
    ranks = {"rng_state_0.pth": torch_file(), "trainer_state.json": ddp.pop("trainer_state.json")}
    late = {"rng_state_1.pth": torch_file()}  # the other rank is not waited for
    zero3 = {f"global_step{step}/{name}": data for name, data in ZERO3.items()}
    full = dict(hugging_face(step, weights=FULL))
    full["optimizer.bin"] = full.pop("optimizer.pt")
    del full["trainer_state.json"]
    return {
        "plain": ("Plain", dict(plain(step))),
        "hf": ("HuggingFace", dict(hugging_face(step))),
        "hf-peft": ("HuggingFace", dict(hugging_face(step, weights=PEFT))),
        "hf-model-only": ("HuggingFace", dict(hugging_face(step, model_only=True))),
        "hf-ddp": ("HuggingFace", {**ddp, **ranks, **late}),
        "hf-fsdp": ("HuggingFace", {**FSDP, "trainer_state.json": trainer_state(step)}),
        "hf-zero3": ("HuggingFace", dict(hugging_face(step, weights=zero3))),
        "verl": ("Verl", dict(verl(step))),
        "verl-megatron-v1": ("Verl", {**megatron_v1(), "data.pt": torch_file()}),
        "verl-megatron": ("Verl", {**megatron_v2(), "data.pt": torch_file()}),
        "openrlhf": ("OpenRLHF", dict(openrlhf(step))),
        "verl-megatron-common-state": ("Verl", {**megatron_v2(common=False), "data.pt": torch_file()}),
        "nemo": ("NeMoRL", {**nemo(step), **sharded("policy/optimizer")}),
        "nemo-megatron": ("NeMoRL", {**nemo(step), **megatron("policy/weights/iter_0000000", common=False)}),
        "hf-fsdp-full": ("HuggingFace", {**full, "trainer_state.json": trainer_state(step)}),
        "hf-fsdp-local": ("HuggingFace", {**LOCAL, "trainer_state.json": trainer_state(step)}),
        "slime": ("Slime", dict(slime(step))),
        "slime-fsdp": ("Slime", dict(slime_fsdp())),
        "slime-fsdp-parts": ("Slime", dict(slime_fsdp("model", "optimizer", "lr_scheduler"))),
        "slime-fsdp-lora": ("Slime", dict(slime_fsdp("adapter", "optimizer"))),
        "torch-dcp": ("TorchDCP", dict(torch_dcp(step))),
    }


FORMS = sorted(saves(100))


def put(root: Path, form: str, step: int) -> Path:
    layout, files = saves(step)[form]
    return save(root, layout, step, files)


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside-whole"])
@pytest.mark.parametrize("form", FORMS)
def test_whole_ones_are_found(form: str, beside: bool, tmp_path: Path) -> None:
    layout = saves(100)[form][0]
    if beside or layout in WAIT_FOR_ANOTHER:
        put(tmp_path, form, 50)
    put(tmp_path, form, 100)
    assert problems(tmp_path, layout)[100] is None


# row 3
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside-whole"])
def test_2700_half_deleted_states_of_hugging_face_are_torn(beside: bool, tmp_path: Path) -> None:
    """rmtree takes files in the folder's own order: any. 850 of 2,700 such states used to count as whole."""
    chance = random.Random(3)
    model = {
        "config.json": b"{}",
        "generation_config.json": b"{}",
        "model.safetensors": safetensors_file(),
    }
    files = hugging_face(100, weights=model)
    if beside:
        save(tmp_path, "HuggingFace", 50, {**files, "trainer_state.json": trainer_state(50)})
    judged = 0
    orders = 60 if beside else 300
    for _ in range(orders):
        folder = save(tmp_path, "HuggingFace", 100, files)
        if judged % 450 == 0:
            assert problems(tmp_path, "HuggingFace")[100] is None
        order = chance.sample(sorted(files), len(files))
        for name in order[:-1]:
            (folder / name).unlink()
            assert problems(tmp_path, "HuggingFace")[100], (
                f"without {sorted(set(order) - set(os.listdir(folder)))}"
            )
            judged += 1
        shutil.rmtree(folder)
    assert judged == orders * 9


# row 3
@pytest.mark.parametrize("form", FORMS)
def test_killed_anywhere_in_a_save_it_is_torn(form: str, tmp_path: Path) -> None:
    """Stopped after any file, or in the middle of one, with a whole checkpoint beside it and without."""
    layout, files = saves(100)[form]
    for beside in (False, True):
        for at, name in enumerate(files):
            for part in (0, len(files[name]) // 2):
                root = tmp_path / f"{beside}-{at}-{part}"
                if beside:
                    put(root, form, 50)
                own = FOLDERS[layout].format(100)
                folder = root / (f"tmp_{own}" if layout == "NeMoRL" else own)  # renamed when it is through
                folder.mkdir(parents=True)
                done = dict(list(files.items())[:at])
                age(write(folder, {**done, **({name: files[name][:part]} if part else {})}))
                found = problems(root, layout)
                assert found.get(100, "not seen"), f"{form}: killed in {name} at {part}, beside {beside}"


@pytest.mark.parametrize("form", FORMS)
def test_any_file_taken_away_it_is_torn(form: str, tmp_path: Path) -> None:
    layout, files = saves(100)[form]
    for beside in (False, True):
        root = tmp_path / str(beside)
        if beside or layout in WAIT_FOR_ANOTHER:
            put(root, form, 50)
        for name in files:
            folder = put(root, form, 100)
            (folder / name).unlink()
            assert problems(root, layout)[100], f"{form}: {name} was taken away, beside {beside}"
            shutil.rmtree(folder)


def test_openrlhfs_actor_is_not_whole_before_its_critic_is_there(tmp_path: Path) -> None:
    save(tmp_path, "OpenRLHF", 1)
    assert problems(tmp_path, "OpenRLHF")[1], "_critic may still come"
    age(write(tmp_path / "_critic" / "global_step1", openrlhf(1)))
    (tmp_path / "_critic" / "latest").write_text("global_step1")
    save(tmp_path, "OpenRLHF", 2)
    assert problems(tmp_path, "OpenRLHF")[1] is None
    assert "_critic/global_step2 is missing" in str(problems(tmp_path, "OpenRLHF")[2])


# row 19
@pytest.mark.skipif(not hasattr(resource, "RLIMIT_AS"), reason="no limits here")
def test_a_trainer_state_of_60_mb_needs_little_memory(tmp_path: Path) -> None:
    """The access pod has 256 MiB; read whole, 60 MB of log history become 600 MB of objects."""
    folder = save(tmp_path, "HuggingFace", 100)
    line = b'    {"epoch": 0.1, "loss": 1.25, "rewards/gold/mean": 0.5, "step": 7},\n'
    with open(folder / "trainer_state.json", "wb") as file:
        file.write(b'{\n  "best_metric": 1.0,\n  "global_step": 100,\n  "log_history": [\n')
        for _ in range(63_000_000 // len(line) // 1000):
            file.write(line * 1000)
        file.write(b'    {"step": 8}\n  ],\n  "max_steps": 400\n}\n')
    assert (folder / "trainer_state.json").stat().st_size > 60_000_000
    age(folder)
    program = """
import resource, sys
from controller.checkpoints.judge import judge
from controller.checkpoints.layouts import LAYOUTS
from controller.checkpoints.volume import Volume
import controller.checkpoints.judge
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20),) * 2)
layout, store = LAYOUTS["HuggingFace"], Volume(sys.argv[1])
print([judge(layout, store, c) for c in layout.candidates(store)])
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    out = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert out.stdout.strip() == "[None]", out.stdout + out.stderr[-2000:]


class _Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (os.system, ("touch evil-was-here",))


def test_metadata_is_read_without_running_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = {
        **FSDP,
        "pytorch_model_fsdp_0/.metadata": pickle.dumps(_Evil()),
        "trainer_state.json": trainer_state(100),
    }
    save(tmp_path, "HuggingFace", 100, files)
    assert "holds no Metadata" in str(problems(tmp_path, "HuggingFace")[100])
    assert not list(tmp_path.rglob("evil*"))
    for data in (b"", b"\x80", b"garbage", pickle.dumps([1])[:-1], b"\x80\x04]\x94(" * 50):
        with pytest.raises(pickles.PickleProblem):
            pickles.load(data)


def test_large_metadata_is_scanned_for_its_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dcp, "EXACT_LIMIT", 10)
    monkeypatch.setattr(dcp, "PIECE", 50)
    folder = put(tmp_path, "hf-fsdp", 100)
    assert problems(tmp_path, "HuggingFace")[100] is None
    (folder / "pytorch_model_fsdp_0" / "__1_0.distcp").unlink()
    assert "__1_0.distcp is missing" in str(problems(tmp_path, "HuggingFace")[100])


def test_shards_shorter_than_their_metadata_says_are_noticed(tmp_path: Path) -> None:
    folder = put(tmp_path, "hf-fsdp", 100)
    shard = folder / "optimizer_0" / "__0_0.distcp"
    shard.write_bytes(shard.read_bytes()[:-1])
    assert "bytes" in str(problems(tmp_path, "HuggingFace")[100])


def test_what_none_tells_is_not_whole_and_the_cure_is_named(tmp_path: Path) -> None:
    folder = save(tmp_path, "HuggingFace", 100)
    (folder / "optimizer.pt").unlink()
    told = str(problems(tmp_path, "HuggingFace")[100])
    assert "client.checkpoint_saved(step, path)" in told
    assert "docs/use/trainer-contract.md" in told


# files of single ranks


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 300, 70_000])
def test_how_many_ranks_a_mesh_has_is_read_from_its_pickle(ranks: int, tmp_path: Path) -> None:
    """FSDP 2 keeps its sharded tensors on a mesh. tests/torn/recorded/fsdp-ranks.tar.xz has real ones."""
    mesh = {"_device_type": "cpu", shards.MESH: tuple(reversed(range(ranks))), "_dim": None}
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "optimizer_0_rank0.bin").write_bytes(pickle.dumps(mesh, protocol=2))
    content = Folder(Volume(str(tmp_path)), [("", "x")])
    assert shards.world_size(content, "optimizer_0_rank0.bin") == ranks


@pytest.mark.parametrize("said", [(), (-1,), ("a",), (0, "a"), [0, 1], None, (1 << 80,)])
def test_what_is_no_mesh_says_of_no_rank(said: object, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "optimizer_0_rank0.bin").write_bytes(pickle.dumps({shards.MESH: said}, protocol=2))
    assert shards.world_size(Folder(Volume(str(tmp_path)), [("", "x")]), "optimizer_0_rank0.bin") is None


def test_a_rank_beyond_those_that_there_were_is_no_proof(tmp_path: Path) -> None:
    """Left by a save on more ranks: then nothing says how many this one had."""
    files = dict(hugging_face(100))
    del files["rng_state.pth"]
    late = {"rng_state_0.pth": torch_file(), "rng_state_1.pth": torch_file(), "rng_state_2.pth": torch_file()}
    files |= {"training_args.bin": states(num_processes=2), **late, "trainer_state.json": trainer_state(100)}
    save(tmp_path, "HuggingFace", 100, files)
    said = problems(tmp_path, "HuggingFace")[100]
    assert "rng_state_<rank>.pth are there of rank 2, where there were 2 ranks" in str(said)
