"""Complete is not merely present: every layout, whole and in each way of not being whole."""

import json
import os
import random
import shutil
from pathlib import Path

import pytest

from controller.checkpoints.judge import judge
from controller.checkpoints.layouts import LAYOUTS
from controller.checkpoints.object_store import ObjectStore
from controller.checkpoints.store import Store
from controller.checkpoints.volume import Volume
from tests.support.trainers_files import (
    MAKERS,
    age,
    hugging_face,
    megatron,
    openrlhf,
    plain,
    safetensors_file,
    save,
    sharded,
    states,
    torch_file,
    write,
)

LAYOUT_NAMES = sorted(LAYOUTS)


def problems(root: Path, layout: str) -> dict[int, str | None]:
    return survey(layout, Volume(str(root)))


def survey(layout: str, store: Store) -> dict[int, str | None]:
    """Step -> what is wrong, of every checkpoint of a location, in the layout's order."""
    own = LAYOUTS[layout]
    return {found.step: judge(own, store, found) for found in own.candidates(store)}


def test_the_api_offers_exactly_these_layouts() -> None:
    from controller.api.storage import Layout
    from controller.names import AUTO_LAYOUT

    assert {str(layout) for layout in Layout} == {*LAYOUTS, AUTO_LAYOUT}


@pytest.mark.parametrize("layout", LAYOUT_NAMES)
def test_whole_checkpoints_are_complete_newest_first(layout: str, tmp_path: Path) -> None:
    for step in (100, 300, 200):
        save(tmp_path, layout, step)
    (tmp_path / "logs").mkdir()
    (tmp_path / ".evalstop" / "uid" / "100").mkdir(parents=True)
    if layout == "OpenRLHF":
        (tmp_path / "_actor" / "latest").write_text("global_step300")
    assert list(problems(tmp_path, layout).items()) == [(300, None), (200, None), (100, None)]


@pytest.mark.parametrize("layout", LAYOUT_NAMES)
def test_object_stores_see_the_same(layout: str, tmp_path: Path) -> None:
    for step in (50, 100):
        save(tmp_path, layout, step)
    broken = save(tmp_path, layout, 200)
    first = sorted(
        p for p in broken.rglob("*") if p.is_file() and p.suffix in (".pt", ".safetensors", ".npz", ".distcp")
    )[0]
    first.write_bytes(first.read_bytes()[:-9])
    store = ObjectStore.at(f"file://{tmp_path}")
    found = survey(layout, store)
    assert found == problems(tmp_path, layout)
    assert found[100] is None
    assert found[200] is not None


@pytest.mark.parametrize("layout", LAYOUT_NAMES)
def test_every_missing_file_that_matters_is_noticed(layout: str, tmp_path: Path) -> None:
    """Delete each file in turn: the checkpoint is not whole any more, alone or beside a whole one."""
    for name in MAKERS[layout](100):
        folder = save(tmp_path / name.replace("/", "_"), layout, 100)
        (folder / name).unlink()
        root = folder.parents[1] if layout == "OpenRLHF" else folder.parent
        assert problems(root, layout)[100], f"{layout}: {name} was deleted"
        save(root, layout, 200)
        assert problems(root, layout)[100], f"{layout}: {name} was deleted, another one is whole"


@pytest.mark.parametrize("layout", LAYOUT_NAMES)
@pytest.mark.parametrize("cut", [1, 20, 10_000])
def test_cut_off_files_are_noticed(layout: str, cut: int, tmp_path: Path) -> None:
    for name, data in MAKERS[layout](100).items():
        if name == "config.yaml":  # holds no sizes, and has no end of its own
            continue
        folder = save(tmp_path / name.replace("/", "_"), layout, 100)
        (folder / name).write_bytes(data[: max(0, len(data) - cut)])
        root = folder.parents[1] if layout == "OpenRLHF" else folder.parent
        assert problems(root, layout)[100], f"{layout}: {name} cut by {cut} bytes counts as complete"


CASES = [
    ("Plain", {"params.npz": b"x"}, "no manifest.json"),
    ("Plain", {"manifest.json": b"{"}, "not JSON"),
    ("Plain", {"manifest.json": b"[]"}, "holds no JSON object"),
    ("Plain", {"manifest.json": b'{"step": 100}'}, "not of the form"),
    ("Plain", {"manifest.json": b'{"step": 100, "files": {}}'}, "not of the form"),
    ("Plain", plain(101), "says step 101, the folder says 100"),
    ("HuggingFace", {**hugging_face(100), "trainer_state.json": b'{"global_step": 90}'}, "global_step 90"),
    ("HuggingFace", {"trainer_state.json": b'{"global_step": 100}'}, "no weights"),
    (
        "HuggingFace",
        {"trainer_state.json": b'{"global_step": 100}', "model.safetensors": safetensors_file()[:40]},
        "cut off inside its header",
    ),
    ("Verl", {"data.pt": torch_file()}, "only data.pt is left"),
    ("Verl", {"data.pt": torch_file(), "actor/huggingface/config.json": b"{}"}, "actor has no model"),
    (
        "Verl",
        {"data.pt": torch_file(), "actor/model_world_size_4_rank_2.pt": torch_file()},
        "model of 1 of 4 ranks; first missing: 0",
    ),
    ("OpenRLHF", {"bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt": torch_file()}, "no *model_states.pt"),
    (
        "OpenRLHF",
        {**openrlhf(100), "bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt": torch_file()},
        "has states of rank 3, of 2 ranks",
    ),
    ("NeMoRL", {"training_info.json": b"{}"}, "no policy folder"),
]


@pytest.mark.parametrize(("layout", "files", "message"), CASES)
def test_incompleteness_is_explained(
    layout: str, files: dict[str, bytes], message: str, tmp_path: Path
) -> None:
    save(tmp_path, layout, 100, files)
    assert message in str(problems(tmp_path, layout)[100])


def test_plain_takes_the_manifests_two_shapes(tmp_path: Path) -> None:
    files = dict(plain(100))
    document = json.loads(files["manifest.json"])
    document["files"] = [{"name": name, **entry} for name, entry in document["files"].items()]
    files["manifest.json"] = json.dumps(document).encode()
    save(tmp_path, "Plain", 100, files)
    assert problems(tmp_path, "Plain") == {100: None}


@pytest.mark.parametrize(
    "weights",
    [
        {"config.json": b"{}", "pytorch_model.bin": torch_file()},
        {"adapter_config.json": b"{}", "adapter_model.safetensors": safetensors_file()},
        {"pytorch_model_fsdp.bin": torch_file()},
        {"pytorch_model_fsdp_0_rank0.bin": torch_file(), "optimizer_0_rank0.bin": torch_file()},
        {**sharded("pytorch_model_fsdp_0"), **sharded("optimizer_0")},
        {f"global_step100/{name}": data for name, data in openrlhf(100).items()},
    ],
    ids=["bin", "peft", "fsdp-full", "fsdp-no-dcp", "fsdp-dcp", "deepspeed"],
)
def test_hugging_face_takes_every_form_of_weights(weights: dict[str, bytes], tmp_path: Path) -> None:
    files = dict(hugging_face(100, weights=weights))
    if any("rank0.bin" in name for name in weights):
        files["training_args.bin"] = states(num_processes=1)
    save(tmp_path, "HuggingFace", 100, files)
    assert problems(tmp_path, "HuggingFace") == {100: None}


def test_verl_rotation_leaves_a_shell_and_its_tracker_is_not_needed(tmp_path: Path) -> None:
    for step in (100, 200, 300):
        save(tmp_path, "Verl", step)
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("100")  # asynchronous saves do not write it
    shutil.rmtree(tmp_path / "global_step_100" / "actor")
    found = problems(tmp_path, "Verl")
    assert (found[300], found[200]) == (None, None)
    assert "rotated away" in str(found[100])


def test_verl_alone_waits_for_its_tracker_as_more_may_come_after_data_pt(tmp_path: Path) -> None:
    folder = save(tmp_path, "Verl", 100)
    (tmp_path / "latest_checkpointed_iteration.txt").unlink()
    assert "does not name it yet" in str(problems(tmp_path, "Verl")[100])
    write(folder, {"transfer_queue/state.pt": torch_file()})
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("100")
    assert problems(tmp_path, "Verl") == {100: None}


def test_verl_with_critic_wants_both(tmp_path: Path) -> None:
    for step in (100, 200):
        save(tmp_path, "Verl", step)
    write(tmp_path / "global_step_200", {"critic/model_world_size_1_rank_0.pt": torch_file()})
    found = problems(tmp_path, "Verl")
    assert found[200] is None
    assert "no critic folder" in str(found[100])


def test_verl_megatron_is_complete_by_its_metadata(tmp_path: Path) -> None:
    shards = sharded("actor/dist_ckpt")
    metadata = shards.pop("actor/dist_ckpt/.metadata")
    common = {"actor/dist_ckpt/common.pt": torch_file()}
    folder = save(tmp_path, "Verl", 100, {**common, **shards, "data.pt": torch_file()})
    assert "no actor/dist_ckpt/.metadata" in str(problems(tmp_path, "Verl")[100])
    write(folder, {"actor/dist_ckpt/.metadata": metadata})
    assert "no actor/dist_ckpt/metadata.json" in str(problems(tmp_path, "Verl")[100])
    write(folder, {"actor/dist_ckpt/metadata.json": b"{}"})
    assert problems(tmp_path, "Verl") == {100: None}
    (folder / "actor" / "dist_ckpt" / "__1_0.distcp").unlink()
    assert "__1_0.distcp is missing" in str(problems(tmp_path, "Verl")[100])


def megatron_v1(role: str = "actor") -> dict[str, bytes]:
    """As verl 0.7 writes a role: one distributed checkpoint, then HF's files and the settings."""
    at = f"{role}/dist_ckpt"
    return {
        f"{at}/common.pt": torch_file(),
        **sharded(at),
        f"{at}/metadata.json": b"{}",
        f"{role}/huggingface/tokenizer.json": b"{}",
        f"{role}/huggingface/config.json": b"{}",
        f"{role}/transformer_config.json": b"{}",
    }


def test_verl_megatron_v1_is_whole_by_its_metadata_and_by_its_siblings(tmp_path: Path) -> None:
    """It was refused for want of layout v2's list. Half deleted, of any number of files, it is torn."""
    files = {**megatron_v1(), "data.pt": torch_file()}
    chance = random.Random(5)
    for beside in (False, True):
        root = tmp_path / str(beside)
        if beside:
            save(root, "Verl", 50, files)
        for _ in range(30):
            folder = save(root, "Verl", 100, files)
            assert problems(root, "Verl")[100] is None
            for name in chance.sample(sorted(files), len(files)):
                (folder / name).unlink()
                assert problems(root, "Verl")[100], f"without {name}, beside {beside}"
            shutil.rmtree(folder)


def test_verl_megatron_v1_needs_both_ends_of_its_distributed_checkpoint(tmp_path: Path) -> None:
    """Shards and .metadata alone are whole for torch; Megatron has a file before and one after them."""
    files = {**megatron_v1(), "data.pt": torch_file()}
    for gone in (("common.pt", "metadata.json"), (".metadata", "__0_0.distcp", "__1_0.distcp")):
        left = {name: data for name, data in files.items() if name.rpartition("/")[2] not in gone}
        save(tmp_path / gone[0], "Verl", 100, left)
        assert "no actor/dist_ckpt/" in str(problems(tmp_path / gone[0], "Verl")[100])


def megatron_v2(role: str = "actor", common: bool = True) -> dict[str, bytes]:
    """As verl 0.9.1 writes a role: three distributed checkpoints, the HF model, the list of contents last."""
    files: dict[str, bytes] = {}
    for part in ("model", "optimizer", "extra"):
        files |= megatron(f"{role}/{part}/dist_ckpt", common)
    files[f"{role}/model/huggingface/config.json"] = b"{}"
    files[f"{role}/transformer_config.json"] = b"{}"
    contents = {
        "model": {"path": "model/dist_ckpt", "format": "megatron_dist_checkpoint"},
        "optimizer": {"path": "optimizer/dist_ckpt", "format": "megatron_dist_checkpoint"},
        "rng_state": {"path": "extra/dist_ckpt", "format": "megatron_dist_checkpoint"},
        "transformer_config": {"path": "transformer_config.json", "format": "json"},
        "hf_config": {"path": "model/huggingface", "format": "huggingface"},
    }
    files[f"{role}/ckpt_contents.json"] = json.dumps({"schema_version": 2, "contents": contents}).encode()
    return files


def test_verl_megatron_v2_is_complete_by_its_list_of_contents(tmp_path: Path) -> None:
    files = {**megatron_v2(), "data.pt": torch_file()}
    save(tmp_path / "whole", "Verl", 100, files)
    assert problems(tmp_path / "whole", "Verl") == {100: None}
    for name in files:
        folder = save(tmp_path / name.replace("/", "_"), "Verl", 100, files)
        (folder / name).unlink()
        assert problems(folder.parent, "Verl")[100], name


def test_openrlhf_waits_for_latest_or_metric(tmp_path: Path) -> None:
    for step in (50, 100):
        save(tmp_path, "OpenRLHF", step)
    files = {name: data for name, data in openrlhf(200).items() if name != "metric.json"}
    write(tmp_path / "_actor" / "global_step200", files)
    assert "latest does not name global_step200" in str(problems(tmp_path, "OpenRLHF")[200])
    write(tmp_path / "_actor" / "global_step200", {"metric.json": b'{"metric_value": 1}'})
    assert problems(tmp_path, "OpenRLHF") == {200: None, 100: None, 50: None}


def test_openrlhf_alone_waits_as_the_other_role_may_come(tmp_path: Path) -> None:
    save(tmp_path, "OpenRLHF", 100)
    assert "whether a role or an export is still to come" in str(problems(tmp_path, "OpenRLHF")[100])
    save(tmp_path, "OpenRLHF", 200)
    assert problems(tmp_path, "OpenRLHF") == {200: None, 100: None}


def test_openrlhf_best_and_exported_checkpoints_are_seen(tmp_path: Path) -> None:
    for step in (20, 40):
        save(tmp_path, "OpenRLHF", step)
    age(write(tmp_path / "_actor" / "best_global_step60", openrlhf(60)))
    exported = {
        "config.json": b"{}",
        "model.safetensors": safetensors_file(),
        "tokenizer.json": b"{}",
    }
    write(tmp_path / "global_step80_hf", exported)
    found = problems(tmp_path, "OpenRLHF")
    assert found[60] is None
    assert 80 in found
    layout = LAYOUTS["OpenRLHF"]
    best = next(c for c in layout.candidates(Volume(str(tmp_path))) if c.step == 60)
    assert best.name == "best_global_step60"
    names = best.content(Volume(str(tmp_path))).files()
    assert "_actor/global_step60/mp_rank_00_model_states.pt" in names, (
        "it can be resumed under its plain name"
    )


@pytest.mark.parametrize(
    "lost", ["mp_rank_00_model_states.pt", "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"]
)
def test_openrlhf_notices_the_last_ranks(lost: str, tmp_path: Path) -> None:
    for step in (100, 200):
        save(tmp_path, "OpenRLHF", step)
    (tmp_path / "_actor" / "global_step200" / lost).unlink()
    assert problems(tmp_path, "OpenRLHF")[200]


def test_openrlhf_with_critic_wants_both(tmp_path: Path) -> None:
    for step in (100, 200):
        save(tmp_path, "OpenRLHF", step)
    write(tmp_path / "_critic" / "global_step200", openrlhf(200))
    (tmp_path / "_critic" / "latest").write_text("global_step200")
    found = problems(tmp_path, "OpenRLHF")
    assert found[200] is None
    assert "_critic/global_step100 is missing" in str(found[100])


def test_nemo_rl_tells_a_checkpoint_being_written(tmp_path: Path) -> None:
    save(tmp_path, "NeMoRL", 100)
    (tmp_path / "step_100").rename(tmp_path / "tmp_step_100")
    assert problems(tmp_path, "NeMoRL") == {100: "tmp_step_100 is still being written"}


def test_links_out_of_the_location_and_odd_files_are_refused(tmp_path: Path) -> None:
    location, outside = tmp_path / "location", tmp_path / "secret"
    outside.write_bytes(b"not yours")
    for step, odd in ((100, "link"), (200, "pipe"), (300, "inside"), (400, "folder")):
        folder = save(location, "NeMoRL", step)
        if odd == "link":
            (folder / "policy" / "more.pt").symlink_to(outside)
        elif odd == "pipe":
            os.mkfifo(folder / "policy" / "pipe")
        elif odd == "folder":
            (folder / "policy" / "other").symlink_to(location / "step_300")
        else:
            (folder / "latest.yaml").symlink_to(folder / "config.yaml")
            write(folder, {"training_info.json": b"{}"})  # what a trainer writes last
    (location / "step_500").symlink_to(location / "step_300")
    found = problems(location, "NeMoRL")
    assert "leads out of" in str(found[100])
    assert "neither a file nor a folder" in str(found[200])
    assert found[300] is None
    assert "symbolic link" in str(found[400])
    assert 500 not in found
