"""The same safety on an S3 server that others wrote (versitygw 1.8.0): copies in parts, kills, remains."""

import hashlib
import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.checkpoints import digest, object_copy, object_store, s3
from controller.checkpoints.access import carry_out
from controller.checkpoints.errors import AccessError, Reason
from controller.checkpoints.object_store import ObjectStore
from controller.checkpoints.request import Request, Result, Source
from controller.checkpoints.s3 import Bucket, part_size
from controller.checkpoints.staging import Writer
from deploy.local.acquire import Found
from deploy.local.versitygw.gateway import environment, gateway
from deploy.local.versitygw.recipe import PROGRAM
from tests.support.cluster_report import built
from tests.support.trainers_files import plain

MIB = 1 << 20
PART = 5 * MIB  # the least that S3 takes for a part that is not the last
LOCATION, KEPT = "s3://bucket/runs/a", "s3://bucket/best/team/run-0f2a1"

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def versitygw_tools(request: pytest.FixtureRequest) -> dict[str, Found]:
    return built(request, "versitygw_tools")


@pytest.fixture
def served(
    versitygw_tools: dict[str, Found], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """The folder behind the bucket ``bucket``; pieces and parts are of 5 MiB, objects above 8 MiB too large
    for one copy."""
    folder = tmp_path / "gateway"
    (folder / "bucket").mkdir(parents=True)
    monkeypatch.setattr(digest, "PIECE", PART)
    monkeypatch.setattr(s3, "COPY_LIMIT", 8 * MIB)
    monkeypatch.setattr(s3, "COPY_PART", PART)
    with gateway(versitygw_tools[PROGRAM].path, folder) as url:
        for name, value in environment(url).items():
            monkeypatch.setenv(name, value)
        yield folder / "bucket"


def large(step: int) -> dict[str, bytes]:
    """A checkpoint with one file above the limit of a copy, one of two pieces, and small ones."""
    files = {
        "model.safe": random.Random(step).randbytes(3 * PART + 12345),
        "optim.safe": random.Random(-step).randbytes(PART + 77),
        **{name: data for name, data in plain(step).items() if name != "manifest.json"},
    }
    return {**files, "manifest.json": manifest(step, files)}


def manifest(step: int, files: dict[str, bytes]) -> bytes:
    listed = {
        name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in files.items()
        if name != "manifest.json"
    }
    return json.dumps({"step": step, "files": listed}).encode()


def put(step: int, files: dict[str, bytes]) -> None:
    store = ObjectStore.at(LOCATION)
    for name, data in files.items():
        store.write(f"step-{step}/{name}", data)


def ask(
    operation: str, step: int, serial: int, kept: Result | None = None, location: str = LOCATION
) -> Result:
    source = None if kept is None else Source(kept.path, kept.digest, kept.step)
    destination = KEPT if kept is not None else ""
    return carry_out(
        Request(
            operation,
            "Plain",
            "uid-1",
            location,
            step,
            source=source,
            destination=destination,
            id=f"{operation}-{step}-{serial}",
        )
    )


def content(uri: str) -> dict[str, bytes]:
    store = ObjectStore.at(uri)
    return {name: store.read(name, 1 << 30) for name in store.files("")}


def uploads(bucket: Path) -> list[str]:
    """Parts of uploads that nobody completed or aborted, as they lie behind the gateway."""
    found = (Path(folder) for folder, _, names in os.walk(bucket) if names)
    return [str(folder) for folder in found if ".sgwtmp" in str(folder)]


def test_an_object_too_large_for_one_copy_goes_round(served: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CopyObject refuses more than 5 GiB: never secured, never stopped."""  # row 18
    asked = count(monkeypatch)
    put(100, large(100))
    secured = ask("secure", 100, 1)
    assert content(secured.path) == large(100)
    assert asked["UploadPartCopy"] == 4
    assert asked["CopyObject"] == 4
    kept = ask("retain", 100, 2, secured)
    assert content(kept.path) == large(100)
    assert asked["UploadPart"] == 4 + 2
    restored = ask("restore", 100, 3, kept)
    assert content(restored.path) == large(100)
    assert restored.digest == kept.digest == secured.digest
    before = Counter(asked)
    assert ask("secure", 100, 4).path == secured.path
    assert ask("retain", 100, 5, secured).path == kept.path
    assert asked["UploadPart"] == before["UploadPart"]
    assert uploads(served) == []


def count(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts requests by S3's names; the next of a kind in ``die`` is not answered any more."""
    asked: Counter[str] = Counter()
    inner = Bucket._ask

    def counted(this: Bucket, method: str, key: str, query: Any = None, *args: Any, **more: Any) -> Any:
        copied = "x-amz-copy-source" in (more.get("headers") or {})
        if "partNumber" in (query or {}):
            asked["UploadPartCopy" if copied else "UploadPart"] += 1
        elif copied:
            asked["CopyObject"] += 1
        else:
            asked[method] += 1
        if asked["dies after"] and asked["UploadPartCopy"] + asked["UploadPart"] > asked["dies after"]:
            raise SystemExit
        return inner(this, method, key, query, *args, **more)

    monkeypatch.setattr(Bucket, "_ask", counted)
    return asked


@pytest.mark.parametrize("after", [1, 2, 3])
def test_killed_between_parts_the_next_try_goes_on_with_them(
    served: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    put(100, large(100))
    asked = count(monkeypatch)
    monkeypatch.setattr(s3, "WORKERS", 1)
    # A kill runs no clearing up.
    monkeypatch.setattr(ObjectStore, "discard", lambda *_: None)
    asked["dies after"] = after
    with pytest.raises(SystemExit):
        ask("secure", 100, 1)
    asked["dies after"] = 0
    asked["UploadPartCopy"] = 0
    secured = ask("secure", 100, 2)
    assert asked["UploadPartCopy"] == 4 - after
    assert content(secured.path) == large(100)
    asked["UploadPartCopy"] = asked["UploadPart"] = 0
    asked["dies after"] = after
    with pytest.raises(SystemExit):
        ask("retain", 100, 3, secured)
    asked["dies after"] = 0
    asked["UploadPart"] = 0
    kept = ask("retain", 100, 4, secured)
    assert asked["UploadPart"] == 6 - after
    assert content(kept.path) == large(100)
    assert uploads(served) == []


def test_uploads_that_nobody_goes_on_with_are_aborted(served: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step was written anew after a kill: what the killed worker sent is of no use to anybody."""
    put(100, large(100))
    asked = count(monkeypatch)
    monkeypatch.setattr(s3, "WORKERS", 1)
    with monkeypatch.context() as patch:
        patch.setattr(ObjectStore, "discard", lambda *_: None)
        asked["dies after"] = 2
        with pytest.raises(SystemExit):
            ask("secure", 100, 1)
    asked["dies after"] = 0
    assert uploads(served)
    anew = {**large(100), "model.safe": large(101)["model.safe"], "manifest.json": b""}
    anew["manifest.json"] = manifest(100, anew)
    put(100, anew)
    secured = ask("secure", 100, 2)
    assert content(secured.path) == anew
    assert uploads(served) == []


def test_a_source_written_anew_between_two_parts_is_not_mixed(
    served: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(100, large(100))
    monkeypatch.setattr(s3, "WORKERS", 1)
    inner, seen = Bucket._ask, []

    def racing(this: Bucket, method: str, key: str, query: Any = None, *args: Any, **more: Any) -> Any:
        if "partNumber" in (query or {}):
            seen.append(query["partNumber"])
            if len(seen) == 2:
                put(100, {"model.safe": b"?" * (3 * PART + 12345)})
        return inner(this, method, key, query, *args, **more)

    monkeypatch.setattr(Bucket, "_ask", racing)
    with pytest.raises(AccessError) as caught:
        ask("secure", 100, 1)
    assert caught.value.reason is Reason.INCOMPLETE
    assert not list((served / "runs" / "a" / ".evalstop").rglob("*.complete.json"))


def test_between_a_volume_and_the_store(
    served: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, data in large(100).items():
        path = tmp_path / "ckpt" / "step-100" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    location = str(tmp_path / "ckpt")
    secured = ask("secure", 100, 1, location=location)
    asked = count(monkeypatch)
    monkeypatch.setattr(s3, "WORKERS", 1)
    monkeypatch.setattr(ObjectStore, "discard", lambda *_: None)
    asked["dies after"] = 3
    with pytest.raises(SystemExit):
        ask("retain", 100, 2, secured, location)
    asked["dies after"] = asked["UploadPart"] = 0
    kept = ask("retain", 100, 3, secured, location)
    assert asked["UploadPart"] == 6 - 3
    assert content(kept.path) == large(100)
    back = ask("restore", 100, 4, kept, location)
    assert Path(back.path, "model.safe").read_bytes() == large(100)["model.safe"]


def test_what_was_read_back_is_not_read_again(served: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(100, large(100))
    secured = ask("secure", 100, 1)
    read, times = ObjectStore.read_piece, [0]

    def counted(this: ObjectStore, name: str, start: int, size: int) -> bytes | bytearray:
        if KEPT in this.root:
            times[0] += 1
            if times[0] == 4:
                raise SystemExit
        return read(this, name, start, size)

    with monkeypatch.context() as patch:
        patch.setattr(ObjectStore, "read_piece", counted)
        patch.setattr(ObjectStore, "discard", lambda *_: None)
        patch.setattr(object_copy, "WORKERS", 1)
        with pytest.raises(SystemExit):
            ask("retain", 100, 2, secured)
        before, times[0] = times[0], 100
        kept = ask("retain", 100, 3, secured)
    pieces = 4 + 2 + 3
    assert (times[0] - 100) == pieces - (before - 1)
    assert content(kept.path) == large(100)


def test_a_damaged_part_of_a_former_try_is_found_and_replaced(
    served: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(100, large(100))
    secured = ask("secure", 100, 1)
    with monkeypatch.context() as patch:
        patch.setattr(ObjectStore, "discard", lambda *_: None)
        patch.setattr(object_store.ObjectStage, "publish", lambda *_: (_ for _ in ()).throw(SystemExit))
        with pytest.raises(SystemExit):
            ask("retain", 100, 2, secured)
    (rotten,) = (served / "best").rglob("optim.safe")
    rotten.write_bytes(b"?" * (PART + 77))
    for noted in (served / "best").rglob("*.checked.json"):
        noted.unlink()
    kept = ask("retain", 100, 3, secured)
    assert content(kept.path) == large(100)


def test_letting_a_pin_go_leaves_nothing_behind(served: Path) -> None:
    put(100, large(100))
    put(200, plain(200))
    first = ask("secure", 100, 1)
    carry_out(Request("secure", "Plain", "uid-1", LOCATION, 200, release=(first.path,), id="secure-200-2"))
    left = [n for n in ObjectStore.at(LOCATION).files(".evalstop/uid-1") if "100" in n.split("/")[0]]
    assert left == []


def test_no_object_has_more_parts_than_it_may() -> None:
    for size in (1, PART, 320 << 30, 10**12, 5 << 40):
        part = part_size(size, 32 * MIB)
        assert part % (32 * MIB) == 0
        assert -(-size // part) <= s3.PARTS_MOST
    assert part_size(10**11, 32 * MIB) == 32 * MIB
    assert Writer.of("retain-40-7").serial == 7
