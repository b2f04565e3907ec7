"""The same safety on S3, through obstore, against a server of the test's own."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from s3_server import Bucket, bucket

from controller.checkpoints.access import carry_out
from controller.checkpoints.errors import AccessError, Reason
from controller.checkpoints.request import Request, Result, Source
from tests.support.trainers_files import plain

LOCATION, KEPT = "s3://bucket/runs/a", "s3://bucket/best/team/run-0f2a1"


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    with bucket() as server:
        for name, value in {
            "AWS_ENDPOINT": server.url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "here",
        }.items():
            monkeypatch.setenv(name, value)
        yield server


def put(server: Bucket, step: int) -> None:
    for name, data in plain(step).items():
        server.objects[f"runs/a/step-{step}/{name}"] = data


def ask(operation: str, step: int, kept: Result | None = None, location: str = LOCATION) -> Result:
    source = None if kept is None else Source(kept.path, kept.digest, kept.step)
    destination = KEPT if kept is not None else ""
    return carry_out(
        Request(operation, "Plain", "uid-1", location, step, source=source, destination=destination)
    )


def test_secure_rotate_retain_restore(s3: Bucket) -> None:
    for step in (100, 200):
        put(s3, step)
    secured = ask("secure", 100)
    assert secured.path.startswith(f"{LOCATION}/.evalstop/uid-1/0-100/")
    assert secured.method == "copy"
    for key in [k for k in s3.objects if "/step-100/" in k and ".evalstop" not in k]:
        del s3.objects[key]
    again = ask("secure", 100)
    assert again.path == secured.path
    kept = ask("retain", 100, secured)
    assert kept.path.startswith(f"{KEPT}/0-100/")
    assert ask("retain", 100, secured).path == kept.path
    restored = ask("restore", 100, kept)
    key = restored.path.removeprefix("s3://bucket/") + "/params.npz"
    assert s3.objects[key] == plain(100)["params.npz"]
    assert restored.digest == kept.digest == secured.digest


def test_rotten_and_missing_objects_are_found(s3: Bucket) -> None:
    put(s3, 100)
    secured = ask("secure", 100)
    key = secured.path.removeprefix("s3://bucket/") + "/params.npz"
    s3.objects[key] = b"?" * len(s3.objects[key])
    with pytest.raises(AccessError) as caught:
        ask("retain", 100, secured)
    assert caught.value.reason is Reason.DIGEST_MISMATCH
    assert not [k for k in s3.objects if k.startswith("best/")]
    with pytest.raises(AccessError) as caught:
        ask("secure", 300)
    assert caught.value.reason is Reason.MISSING
    assert caught.value.available == (100,)


def test_an_object_above_what_one_copy_takes_is_secured(s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was StoreUnreachable for ever: never secured, never stopped. Here the limit is 40 bytes."""
    # row 18
    s3.copy_limit = 40
    with suppress(ImportError):
        from controller.checkpoints import s3 as client

        monkeypatch.setattr(client, "COPY_LIMIT", 40)
        monkeypatch.setattr(client, "COPY_PART", 50)
    put(s3, 100)
    secured = ask("secure", 100)
    key = secured.path.removeprefix("s3://bucket/")
    for name, data in plain(100).items():
        assert s3.objects[f"{key}/{name}"] == data
    assert not s3.uploads


def test_a_store_that_refuses_is_unreachable_and_says_so(s3: Bucket) -> None:
    put(s3, 100)
    s3.refuse_writes = True
    with pytest.raises(AccessError) as caught:
        ask("secure", 100)
    assert caught.value.reason is Reason.STORE_UNREACHABLE
    assert LOCATION in caught.value.message
    assert not [k for k in s3.objects if ".evalstop" in k]


def test_from_a_volume_into_a_bucket_and_back(s3: Bucket, tmp_path: Path) -> None:
    for name, data in plain(100).items():
        path = tmp_path / "step-100" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    secured = ask("secure", 100, location=str(tmp_path))
    kept = ask("retain", 100, secured, location=str(tmp_path))
    assert kept.digest == secured.digest
    restored = ask("restore", 100, kept, location=str(tmp_path))
    assert Path(restored.path, "params.npz").read_bytes() == plain(100)["params.npz"]
