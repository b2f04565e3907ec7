"""What today's trainers write beside a checkpoint, and after it (docs/use/checkpoints.md, the layouts)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from test_checkpoints_layouts import megatron_v2, problems

from controller.checkpoints.access import carry_out
from controller.checkpoints.layouts import LAYOUTS
from controller.checkpoints.request import Request
from controller.checkpoints.volume import Volume
from tests.support.trainers_files import (
    MAKERS,
    age,
    hugging_face,
    megatron,
    safetensors_file,
    save,
    sharded,
    slime_fsdp,
    states,
    torch_file,
    write,
)

ENTROPY = {"entropy_ctrl_state.json": b'{"entropy_coef": 0.1, "last_world_entropy": 0.5}'}


@pytest.mark.parametrize("adaptive", [True, False])
def test_trls_entropy_is_waited_for_where_the_arguments_say_that_it_comes(
    adaptive: bool, tmp_path: Path
) -> None:
    """It is written after trainer_state.json: the first checkpoint counted as whole without it."""
    files = dict(hugging_face(100))
    files["training_args.bin"] = states(use_adaptive_entropy=adaptive, num_processes=1)
    save(tmp_path, "HuggingFace", 100, files)
    found = problems(tmp_path, "HuggingFace")[100]
    assert (found is None) is not adaptive
    if adaptive:
        assert "entropy_ctrl_state.json is missing" in str(found)
        write(tmp_path / "checkpoint-100", ENTROPY)
        age(tmp_path / "checkpoint-100")
        assert problems(tmp_path, "HuggingFace")[100] is None


def test_verls_queue_is_part_of_the_save_until_it_is_renamed(tmp_path: Path) -> None:
    files = {**MAKERS["Verl"](100), "transfer_queue.tmp/controller_state.pkl": b"\x80\x05."}
    folder = save(tmp_path, "Verl", 100, files)
    assert "no transfer_queue: it is still being written" in str(problems(tmp_path, "Verl")[100])
    (folder / "transfer_queue.tmp").rename(folder / "transfer_queue")
    assert problems(tmp_path, "Verl")[100] is None, "the folder alone is newer than its last file"
    (folder / "actor" / "huggingface" / "config.json").unlink()
    assert problems(tmp_path, "Verl")[100], "rotation takes the roles' folders"


def test_verl_megatron_without_hf_files_is_whole_by_its_list_alone(tmp_path: Path) -> None:
    """An asynchronous save ends with a rename after data.pt: no times prove it, and none are needed."""
    listed = json.loads(megatron_v2()["actor/ckpt_contents.json"])
    del listed["contents"]["hf_config"]
    files = {n: d for n, d in megatron_v2(common=False).items() if "huggingface" not in n}
    files |= {"actor/ckpt_contents.json": json.dumps(listed).encode(), "data.pt": torch_file()}
    folder = save(tmp_path, "Verl", 100, files)
    (folder / "actor" / "more").mkdir()
    assert problems(tmp_path, "Verl")[100] is None
    for name in files:
        shutil.rmtree(folder)
        folder = save(tmp_path, "Verl", 100, files)
        (folder / name).unlink()
        assert problems(tmp_path, "Verl")[100], name


@pytest.mark.parametrize("lost", ["metadata.json", "__1_0.distcp"])
def test_megatron_needs_no_common_pt_where_the_shards_have_it(lost: str, tmp_path: Path) -> None:
    """Megatron of 2026 writes no common.pt; without what ends the save it is not through."""
    files = dict(MAKERS["NeMoRL"](100)) | megatron("policy/weights/iter_0000000", common=False)
    folder = save(tmp_path, "NeMoRL", 100, files)
    assert problems(tmp_path, "NeMoRL")[100] is None
    (folder / "policy" / "weights" / "iter_0000000" / lost).unlink()
    assert lost in str(problems(tmp_path, "NeMoRL")[100])


def test_slimes_data_belongs_to_the_checkpoint_and_is_restored_with_it(tmp_path: Path) -> None:
    location = tmp_path / "location"
    save(location, "Slime", 10)
    save(location, "Slime", 20)
    (location / "rollout" / "global_dataset_state_dict_20.pt").unlink()
    assert "no rollout/ state of rollout 20" in str(problems(location, "Slime")[20])
    answer = carry_out(request("secure", location, 10))
    names = {p.relative_to(answer.path).as_posix() for p in Path(answer.path).rglob("*") if p.is_file()}
    assert {"iter_0000010/.metadata", "rollout/global_dataset_state_dict_10.pt"} <= names
    shutil.rmtree(location / "iter_0000010")
    restored = Path(carry_out(request("restore", location, 10)).path)
    assert restored.name == "iter_0000010"
    assert (restored / "latest_checkpointed_iteration.txt").read_text() == "10"
    assert (restored / "iter_0000010" / "metadata.json").exists()


@pytest.mark.parametrize("fsdp", [False, True])
def test_slimes_fsdp_counts_one_more_than_the_data_do(fsdp: bool, tmp_path: Path) -> None:
    """With a save in each step the state of the step before lies there: it is not this one's."""
    files = slime_fsdp("model", "optimizer") if fsdp else None
    for step in (9, 10):
        save(tmp_path, "Slime", step, files)
    assert problems(tmp_path, "Slime") == {10: None, 9: None}
    state = tmp_path / "rollout" / f"global_dataset_state_dict_{10 - fsdp}.pt"
    (one, _) = LAYOUTS["Slime"].candidates(Volume(str(tmp_path)))
    assert one.files == ((f"rollout/{state.name}", f"rollout/{state.name}"),)
    state.unlink()
    assert f"no rollout/ state of rollout {10 - fsdp}" in str(problems(tmp_path, "Slime")[10])


def test_slime_without_a_state_of_the_data_waits_for_the_next_checkpoint(tmp_path: Path) -> None:
    for step in (10, 20):
        age(write(tmp_path / f"iter_{step:07}", megatron(common=False)))
        found = problems(tmp_path, "Slime")
        assert "still to come" in str(found[step]) if step == 10 else found == {20: None, 10: None}


def test_dcp_alone_counts_once_another_has_the_same_files(tmp_path: Path) -> None:
    save(tmp_path, "TorchDCP", 10)
    assert "nothing tells whether more than the shards is still to come" in str(
        problems(tmp_path, "TorchDCP")[10]
    )
    age(write(tmp_path / "step-20", sharded("")))
    assert "train_state.json" in str(problems(tmp_path, "TorchDCP")[20])
    write(tmp_path / "step-20", {"train_state.json": b"{}"})
    assert problems(tmp_path, "TorchDCP") == {20: None, 10: None}


def test_a_save_record_of_an_export_or_of_slime_bears_the_folders_own_name(tmp_path: Path) -> None:
    """A folder of the location itself is recorded with names from that folder on."""
    exported = {
        "config.json": b"{}",
        "model.safetensors": safetensors_file(),
        "tokenizer.json": b"{}",
    }
    write(tmp_path / "o" / "global_step20_hf", exported)
    recorded(tmp_path / "o", 20, "global_step20_hf", {name: len(data) for name, data in exported.items()})
    assert problems(tmp_path / "o", "OpenRLHF") == {20: None}
    files = megatron(common=False)
    write(tmp_path / "s" / "iter_0000020", files)
    recorded(tmp_path / "s", 20, "iter_0000020", {name: len(data) for name, data in files.items()})
    assert problems(tmp_path / "s", "Slime") == {20: None}
    (tmp_path / "s" / "iter_0000020" / "metadata.json").unlink()
    assert "the save record lists it" in str(problems(tmp_path / "s", "Slime")[20])


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_each_layout_knows_its_own_checkpoints_and_says_what_loads_them(layout: str, tmp_path: Path) -> None:
    save(tmp_path, layout, 100)
    store = Volume(str(tmp_path))
    (candidate,) = LAYOUTS[layout].candidates(store)
    content = candidate.content(store)
    assert LAYOUTS[layout].fits(content.files()) in content.files()
    assert LAYOUTS[layout].loads(content)


LOADED = [
    ({"config.json": b"{}", "model.safetensors": safetensors_file()}, "from_pretrained"),
    (
        {"adapter_config.json": b"{}", "adapter_model.safetensors": safetensors_file()},
        "PeftModel.from_pretrained, onto its base model",
    ),
    ({**sharded("pytorch_model_fsdp_0")}, "accelerate merge-weights pytorch_model_fsdp_0 OUT"),
    ({"pytorch_model_fsdp_0_rank0.bin": torch_file()}, "nothing merges files of single ranks"),
    ({"global_step100/mp_rank_00_model_states.pt": states(dp_world_size=1)}, "zero_to_fp32.py"),
]


@pytest.mark.parametrize(("weights", "said"), LOADED, ids=["full", "peft", "fsdp", "fsdp-ranks", "zero3"])
def test_what_loads_a_hugging_face_checkpoint(weights: dict[str, bytes], said: str, tmp_path: Path) -> None:
    """FSDP's sharded states load only after a merge, those of single ranks by nothing but FSDP."""
    save(tmp_path, "HuggingFace", 100, {**weights, "trainer_state.json": b'{"global_step": 100}'})
    store, layout = Volume(str(tmp_path)), LAYOUTS["HuggingFace"]
    assert said in layout.loads(layout.candidates(store)[0].content(store))


def request(operation: str, location: Path, step: int) -> Request:
    asked = {
        "operation": operation,
        "id": f"{operation}-{step}-1",
        "layout": "Slime",
        "owner": "me",
        "location": str(location),
        "step": step,
        "maxStepLag": 0,
    }
    return Request.parse(json.dumps(asked))


def recorded(location: Path, step: int, name: str, files: dict[str, int]) -> None:
    record = {"attempt": "1-abc", "step": step, "name": name, "files": files, "uid": "me", "sequence": 1}
    write(location / ".evalstop" / "saves", {f"1-abc-{step}.json": json.dumps(record).encode()})
