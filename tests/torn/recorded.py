"""Checkpoints as the trainers' libraries leave them, small: what is true of them, fresh or recorded.

`make test-trainers` writes them (tests/real_trainers/test_real_sharded.py), and with ``RECORD=1`` keeps them
in recorded/, one archive for each way of saving; versions.json says of which libraries. `make test` judges
those.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

from controller.checkpoints.listing import Listed, listed
from controller.checkpoints.recognition import recognised
from controller.checkpoints.volume import Volume

RECORDED = Path(__file__).parent / "recorded"
VERSIONS = RECORDED / "versions.json"
STEPS = 4  # of a run that is recorded, with a checkpoint after every second

MERGED = "from_pretrained beside the base model's config.json and tokenizer, after accelerate merge-weights"
# By the way of saving: how many ranks write it, and what loads it.
KINDS = {
    "peft": (1, "PeftModel.from_pretrained, onto its base model"),
    "fsdp": (2, f"{MERGED} pytorch_model_fsdp_0 OUT"),
    "fsdp-full": (2, "from_pretrained"),
    "fsdp-ranks": (
        2,
        "FSDP on as many ranks, by accelerate's load_fsdp_model: nothing merges files of single ranks",
    ),
    "zero2": (2, "from_pretrained"),
    "zero3": (2, "from_pretrained, after python zero_to_fp32.py . OUT"),
}


def judged(folder: Path) -> list[Listed]:
    """Return what the access Job's judge says of the checkpoints there, whose layout it finds for itself."""
    store = Volume(str(folder))
    (found,) = recognised(store)
    assert found.layout.name == "HuggingFace", found
    return listed(store, found.layout)


def check(folder: Path, kind: str, scratch: Path) -> int:
    """Assert that all there is whole and rightly named, and nothing half-deleted is; return how many halves.

    ``scratch``: a folder of the same file system, for the halves.
    """
    halves = 0
    for records in (True, False):
        whole = scratch / f"whole-{records}"
        shutil.copytree(folder, whole, copy_function=os.link)
        if not records:
            shutil.rmtree(whole / ".evalstop")
        found = judged(whole)
        assert [one.step for one in found] == [STEPS, STEPS - 2]
        for one in found:
            assert (one.problem, one.loads) == (None, KINDS[kind][1])
            assert one.evidence == ("SaveRecord" if records else "Manifest")
        for half, name in _halves(whole, scratch / "half"):
            newest = judged(half)[0]
            assert newest.problem, f"{kind}, save records {records}: whole without {name}"
            halves += 1
    return halves


def _halves(whole: Path, half: Path) -> Iterator[tuple[Path, str]]:
    """Yield copies whose newest checkpoint lacks one file, each file in turn, and the file's name."""
    newest = whole / f"checkpoint-{STEPS}"
    for file in sorted(path for path in newest.rglob("*") if path.is_file()):
        shutil.copytree(whole, half, copy_function=os.link)
        (half / file.relative_to(whole)).unlink()
        yield half, str(file.relative_to(newest))
        shutil.rmtree(half)


def record(folder: Path, kind: str) -> None:
    """Keep a folder of checkpoints."""
    RECORDED.mkdir(exist_ok=True)
    with tarfile.open(RECORDED / f"{kind}.tar.xz", "w:xz", format=tarfile.PAX_FORMAT) as archive:
        archive.add(folder, kind, filter=_anonymous)


def unpack(kind: str, folder: Path) -> Path:
    """Unpack a recorded folder below ``folder``, times of change with it; return it."""
    with tarfile.open(RECORDED / f"{kind}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / kind


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info
