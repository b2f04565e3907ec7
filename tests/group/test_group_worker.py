"""A family's worker, evalstop_client.worker, asked in this process; that it is a process is in the turns."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evalstop_client.place import DeviceFull, HostRegion, LocalDevice
from evalstop_client.worker import Worker, family_of, receive, send
from tests.group.families import Counted

MOST = 1 << 16


def worker(folder: Path) -> tuple[Worker, dict[str, Any]]:
    device = folder / "worker-a"
    if not device.exists():
        device.write_bytes(bytes(MOST))
    place = {"resident": "a", "rank": 1, "size": 2, "device": str(device), "deviceBytes": MOST}
    return Worker(Counted, place), place


def ask(made: Worker, **request: Any) -> dict[str, Any]:
    return made.answer(request, {})[0]


def count(made: Worker, function: str = "count") -> Any:
    return ask(made, function=function, arguments={})["result"]["counter"]


def test_a_state_is_written_beside_and_comes_back(tmp_path: Path) -> None:
    made, place = worker(tmp_path)
    assert made.hello()["hello"]["functions"]["count"] == ["counter"]
    assert ask(made, do="load", folder=None, place=place)["loaded"]["regions"] == {
        "counter": 8, "weights": 4096, "frozen": 4096,
    }  # fmt: skip
    assert count(made, "train") == 1
    first, second = tmp_path / "1", tmp_path / "2"
    first.mkdir()
    second.mkdir()
    saved = ask(made, do="save", folder=str(first), base=None)["saved"]
    assert sorted(saved["written"]) == ["counter", "frozen", "weights"]
    assert count(made) == 2
    saved = ask(made, do="save", folder=str(second), base=str(first))["saved"]
    assert saved["written"] == ["counter"]
    assert (second / "weights").stat().st_ino == (first / "weights").stat().st_ino
    assert ask(made, do="offload") == {"offloaded": {}}
    ask(made, do="load", folder=str(first), place=place)
    assert count(made) == 2
    (first / "frozen").write_bytes(b"short")
    ask(made, do="offload")
    assert "4096 bytes, 5 were kept" in ask(made, do="load", folder=str(first), place=place)["failed"]


def test_a_refused_call_changes_nothing_and_a_failed_one_says_why(tmp_path: Path) -> None:
    made, place = worker(tmp_path)
    ask(made, do="load", folder=None, place=place)
    first, second = tmp_path / "1", tmp_path / "2"
    first.mkdir()
    second.mkdir()
    ask(made, do="save", folder=str(first), base=None)
    assert ask(made, function="refuse")["refused"] == "lr: -1, expected a number of at least 0"
    assert "there are count, differ" in ask(made, function="nothing")["refused"]
    assert ask(made, do="save", folder=str(second), base=str(first))["saved"]["written"] == []
    assert ask(made, function="fail")["failed"] == "fail: RuntimeError: something went wrong"
    assert "none of load" in ask(made, do="dance")["failed"]


def test_a_device_has_so_many_bytes_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / "device"
    path.write_bytes(bytes(MOST))
    device = LocalDevice(str(path), MOST)
    one = device.buffer(MOST - 4096)
    with pytest.raises(DeviceFull, match="4097 bytes more than 61440 of 65536"):
        device.buffer(4097)
    other = memoryview(one)
    with pytest.raises(BufferError):
        device.close()
    other.release()
    device.close()
    assert device.used == 0


def test_a_region_of_host_memory_is_read_written_and_mapped(tmp_path: Path) -> None:
    file = os.open(tmp_path / "region", os.O_RDWR | os.O_CREAT)
    region = HostRegion(file, 5)
    region.write_from(b"12345")
    found = bytearray(5)
    region.read_into(found)
    assert found == b"12345"
    with region.view() as view:
        assert view[:5] == b"12345"
    with pytest.raises(OSError, match="ends after 5"):
        HostRegion(file, 6).read_into(bytearray(6))
    with pytest.raises(ValueError, match="a buffer of 3 bytes for a region of 5"):
        region.write_from(b"123")
    os.close(file)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "expected package.module:Class"),
        ("tests.group.families:Nothing", "has no functions, load"),
        ("/nowhere/family.py:Class", "there is no file"),
    ],
)
def test_a_family_that_is_none_is_named(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        family_of(name)


def test_a_family_that_cannot_be_made_is_told_and_a_worker_dies_with_who_asks() -> None:
    ours, theirs = socket.socketpair()
    environ = {
        **os.environ, "EVALSTOP_WORKER_SOCKET": str(theirs.fileno()),
        "EVALSTOP_WORKER_PARENT": str(os.getpid()),
        "EVALSTOP_WORKER_FAMILY": "no.such.module:Class", "EVALSTOP_WORKER_PLACE": json.dumps({}),
    }  # fmt: skip
    command = [sys.executable, "-m", "evalstop_client.worker"]
    process = subprocess.Popen(command, env=environ, pass_fds=(theirs.fileno(),), stderr=subprocess.DEVNULL)
    theirs.close()
    found = receive(ours)
    assert found is not None
    assert "ModuleNotFoundError" in found[0]["failed"]
    assert process.wait(30) == 1
    with pytest.raises(OSError, match="Broken pipe"):
        send(ours, {}, {})
    ours.close()
