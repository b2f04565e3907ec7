"""What lies on a volume is a tenant's: files of ours are read within limits, and so are his checkpoints'."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from controller import bounded
from controller.checkpoints import inventory, saves, securing
from controller.checkpoints.completeness import pickles
from controller.checkpoints.completeness.ranks import first_missing
from controller.checkpoints.errors import Damaged
from controller.checkpoints.inventory import Inventory, read_inventories, take_inventory
from controller.checkpoints.layouts import LAYOUTS
from controller.checkpoints.ownership import read_owner
from controller.checkpoints.pieces import recorded
from controller.checkpoints.request import Request
from controller.checkpoints.s3 import Bucket
from controller.checkpoints.volume import Volume

OWNER = "8f1c0a52"
DEEP = [b"[" * 60_000, b'{"uid":' * 3000, b'{"attempt":' + b"[" * 990 + b"]" * 990 + b"}", b"9" * 5000]


def store(folder: Path, name: str, content: bytes) -> Volume:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return Volume(str(folder))


@pytest.mark.parametrize("text", DEEP)
def test_records_nested_too_deep_are_none(tmp_path: Path, text: bytes) -> None:
    name = ".evalstop/saves/1-5.json"
    assert saves.read_record(store(tmp_path, name, text), "1-5.json") is None
    assert securing._noted(store(tmp_path, f"x{securing.FILES_SUFFIX}", text), "x") is None
    assert recorded(store(tmp_path, "x.pieces.json", text), "x", "sha256:0") is None
    owner = read_owner(store(tmp_path, ".evalstop/owner.json", text))
    assert owner is not None
    assert owner.uid == ""  # somebody's, and nobody knows whose: it is not taken
    with pytest.raises(Damaged, match=r"inventory\.json is not of the agreed form"):
        read_inventories(store(tmp_path, f".evalstop/{OWNER}/inventory.json", text), OWNER)


def test_of_inventories_as_many_are_kept_as_will_be_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = Volume(str(tmp_path))
    for first, size, limit in ((100, 1 << 30, 200), (500, 5000, 1 << 30)):
        monkeypatch.setattr(inventory, "INVENTORY_LIMIT", size)
        monkeypatch.setattr(bounded, "VALUES", limit)
        for number in range(1, 30):
            (tmp_path / f"step-{number}").mkdir(exist_ok=True)
            (tmp_path / f"step-{number}" / "params").write_bytes(b"x")
            request = Request("claim", "Plain", OWNER, str(tmp_path), attempt=f"{first + number}")
            take_inventory(volume, LAYOUTS["Plain"], request)
            found = read_inventories(volume, OWNER)
            assert found[-1] == Inventory(f"{first + number}", found[-1].candidates)
            assert len(found[-1].candidates) >= number
        assert 1 <= len(found) < 29
        text = (tmp_path / ".evalstop" / OWNER / "inventory.json").read_text()
        assert json.loads(text)["inventories"][-1]["attempt"] == f"{first + 29}"


def test_the_lowest_missing_rank_is_found_however_many_there_are_said_to_be() -> None:
    assert first_missing({0, 1, 3}, 4_000_000_000) == 2
    assert first_missing({0, 1, 2}, 3) is None
    assert first_missing({7, 900}, 2) == 0
    assert first_missing((), 0) is None


@pytest.mark.parametrize("data", [b"\x80\x02]r\xff\xff\xff\x0f.", b"]p4000000000\n."])
def test_a_pickle_whose_memory_would_take_gigabytes_is_refused(data: bytes) -> None:
    with pytest.raises(pickles.PickleProblem, match=r"opcode 3 remembers|opcode 2 remembers"):
        pickles.load(data)


def test_a_store_that_lists_parts_without_end_is_given_up() -> None:
    page = b"<R><Part><PartNumber>1</PartNumber><Size>5</Size><ETag>e</ETag></Part>%s</R>"
    more = page % b"<IsTruncated>true</IsTruncated><NextPartNumberMarker>1</NextPartNumberMarker>"
    bucket: Any = Bucket.__new__(Bucket)
    asked = []

    def ask(*arguments: Any) -> Any:
        asked.append(arguments)
        return type("Answer", (), {"data": more})

    bucket._ask = ask
    with pytest.raises(Damaged, match="without end"):
        bucket._parts("x", "u")
    assert len(asked) == 2
