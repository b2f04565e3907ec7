"""The access program as a process: what it reads, writes and exits with, also when it is told to leave."""

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.checkpoints.access import answer
from controller.checkpoints.digest import tree_digest
from controller.checkpoints.errors import AccessError, Reason
from controller.checkpoints.request import MESSAGE_LIMIT, BranchLife, Request, Result, failure
from controller.checkpoints.volume import Volume
from tests.support.trainers_files import plain, safetensors_file, save, torch_file, write

OWNER = "0f2a1bb7-uid"
BASE = {"operation": "secure", "layout": "Plain", "owner": OWNER, "location": "/ckpt", "step": 100}
DIGEST = "sha256:" + "0" * 64


def start(request: Mapping[str, Any] | str, message: Path) -> subprocess.Popen[bytes]:
    text = request if isinstance(request, str) else json.dumps(request)
    environment = {
        "PATH": os.environ["PATH"],
        "EVALSTOP_REQUEST": text,
        "EVALSTOP_TERMINATION_MESSAGE": str(message),
    }
    return subprocess.Popen(
        [sys.executable, "-m", "controller.checkpoints.access"],
        env=environment,
        cwd=Path(__file__).parents[2],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def run(request: Mapping[str, Any] | str, message: Path) -> dict[str, Any]:
    process = start(request, message)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors.decode()
    result: dict[str, Any] = json.loads(message.read_text())
    return result


def test_yes_and_no_are_both_results(tmp_path: Path) -> None:
    location = tmp_path / "ckpt"
    save(location, "Plain", 100)
    request = {**BASE, "location": str(location)}
    yes = run(request, tmp_path / "message")
    assert yes["ok"] is True
    assert yes["step"] == 100
    assert yes["path"] == f"{location}/.evalstop/{OWNER}/0-100"
    assert yes["digest"] == yes["sourceDigest"]
    assert yes["files"] == 3
    assert yes["bytes"] == sum(len(data) for data in plain(100).values())
    no = run({**request, "step": 90}, tmp_path / "message")
    assert no["ok"] is False
    assert no["reason"] == "CheckpointMissing"
    assert (no["available"], no["lowest"]) == ([100], 100)


def test_it_starts_light() -> None:
    """No Kubernetes client, no fsspec, no pydantic: an access Job is all start-up."""
    program = "import sys, controller.checkpoints.access; print(' '.join(sorted(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    heavy = {"kubernetes", "fsspec", "obstore", "pydantic", "aiohttp", "numpy", "asyncio"}
    assert not heavy & set(out.split())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"operation": "delete"},
            "operation: 'delete', expected one of claim, secure, retain, restore, check",
        ),
        ({"layout": "Tar"}, "layout: 'Tar', expected one of Auto, Plain"),
        ({"layout": ""}, "layout: '', expected a text"),
        ({"owner": "../x"}, "owner: '../x', expected the uid"),
        ({"location": "relative/path"}, "expected an absolute path"),
        ({"location": "/a/../b"}, "expected an absolute path without '..'"),
        ({"location": "http://host/x"}, "scheme 'http'"),
        ({"step": -1}, "step: -1, expected a whole number"),
        ({"step": True}, "step: True, expected a whole number"),
        ({"step": "100"}, "step: '100', expected a whole number"),
        ({"release": [300]}, "release: 300, expected a text"),
        ({"release": ["/ckpt/.evalstop/other-uid/1-300"]}, "expected the exact path of a pin below"),
        ({"release": [f"/ckpt/.evalstop/{OWNER}"]}, "expected the exact path of a pin below"),
        ({"release": [f"/ckpt/.evalstop/{OWNER}/resume"]}, "expected the exact path of a pin below"),
        ({"release": [f"/ckpt/.evalstop/{OWNER}/1-300/policy"]}, "expected the exact path of a pin below"),
        ({"release": [f"/ckpt/.evalstop/{OWNER}/1-300/../../x"]}, "expected the exact path of a pin below"),
        ({"release": ["/ckpt/checkpoint-300"]}, "expected the exact path of a pin below"),
        ({"branch": [{"attempt": "x"}]}, "branch.attempt: 'x', expected an attempt"),
        ({"branch": [{"attempt": "1-A"}]}, "branch.attempt: '1-A', expected an attempt"),
        ({"branch": [{"attempt": "1", "after": -2}]}, "after: -2, expected a whole number"),
        ({"branch": {"attempt": "1"}}, "expected a list of at most"),
        ({"operation": "check"}, "source: None, expected the pinned checkpoint to check"),
        ({"operation": "retain"}, "source: None, expected the pinned checkpoint to retain"),
        ({"source": {"path": "/x", "digest": "abc", "step": 1}}, "source.digest: 'abc', expected 'sha256:'"),
        ({"source": {"path": "/x", "digest": DIGEST, "step": 1}}, "destination: '', expected the retention"),
        ({"source": "x"}, "source: 'x', expected an object"),
    ],
)
def test_bad_requests_name_field_and_value(change: dict[str, Any], message: str) -> None:
    result = json.loads(answer({"EVALSTOP_REQUEST": json.dumps({**BASE, **change})}))
    assert result["reason"] == "BadRequest"
    assert message in result["message"]


@pytest.mark.parametrize("text", [None, "", "[]", "{", "7"])
def test_a_request_that_is_none(text: str | None) -> None:
    result = json.loads(answer({} if text is None else {"EVALSTOP_REQUEST": text}))
    assert result["reason"] == "BadRequest"
    assert "EVALSTOP_REQUEST" in result["message"]


@given(st.text(max_size=9000), st.lists(st.integers(0, 10**12), max_size=200))
def test_messages_always_fit(text: str, steps: list[int]) -> None:
    for message in (
        failure(AccessError(Reason.MISSING, text, steps)),
        Result(1, "/p", DIGEST, DIGEST, 1, 1, note=text).to_json(),
    ):
        assert len(message.encode()) <= MESSAGE_LIMIT
        json.loads(message)


@given(
    st.builds(
        Request,
        operation=st.just("secure"),
        layout=st.just("Plain"),
        owner=st.just(OWNER),
        location=st.just("/ckpt"),
        step=st.integers(0, 10**9),
        max_step_lag=st.integers(0, 10**6),
        release=st.tuples(st.integers(0, 10**9).map(lambda n: f"/ckpt/.evalstop/{OWNER}/2-9f2c41d0-{n}")),
        id=st.sampled_from(("", "secure-40-7")),
        job=st.sampled_from(("", "ns/name")),
        branch=st.lists(
            st.builds(
                BranchLife,
                attempt=st.from_regex(r"[0-9]{1,9}(-[0-9a-z]{1,16})?", fullmatch=True),
                after=st.integers(-1, 10**9),
                base=st.none() | st.integers(0, 10**9),
            ),
            max_size=4,
        ).map(tuple),
        attempt=st.sampled_from(("", "3", "3-9f2c41d0")),
    )
)
def test_requests_survive_their_json(request_: Request) -> None:
    assert Request.parse(request_.to_json()) == request_


def _big(location: Path, step: int) -> None:
    """A checkpoint of 48 MB in files of 1 MB: long enough to be hit in the middle."""
    files = {f"policy/weights/{i}.bin": os.urandom(1 << 20) for i in range(48)}
    whole = {"training_info.json": b"{}", "policy/model.safetensors": safetensors_file()}
    write(location / f"step_{step}", {**files, **whole, "train_dataloader.pt": torch_file()})


def _published(folder: Path) -> dict[str, str]:
    """Digest of everything a reader would take for a checkpoint."""
    store = Volume(str(folder))
    if not store.exists():
        return {}
    found = {}
    for name in store.folders():
        if not name.startswith(".tmp-"):
            files = {n: store.hash(f"{name}/{n}") for n in store.files(name)}
            found[name] = tree_digest(files)
    return found


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM])
def test_ended_in_the_middle_nothing_half_done_shows_and_a_retry_converges(
    sent: signal.Signals, tmp_path: Path
) -> None:
    location, kept, message = tmp_path / "ckpt", tmp_path / "kept", tmp_path / "message"
    _big(location, 100)
    request = {**BASE, "layout": "NeMoRL", "location": str(location)}
    pins = location / ".evalstop" / OWNER
    secured = run(request, message)
    shutil.rmtree(pins)
    source = {key: secured[key] for key in ("path", "digest", "step")}
    retain = {**request, "operation": "retain", "source": source, "destination": str(kept)}

    serial = itertools.count(1)  # of the requests: what an older one left is the next one's to see to
    for work, folder in ((request, pins), (retain, kept)):
        hits, done_as = 0, "0-100"  # a copy has the name of its pin
        for copied in (0, 5, 30, 47):
            message.unlink(missing_ok=True)
            process = start({**work, "id": f"{work['operation']}-100-{next(serial)}"}, message)
            if _wait_for_staged(process, folder, copied):
                process.send_signal(sent)
                hits += 1
            process.communicate(timeout=60)
            if sent is signal.SIGTERM:
                answered = json.loads(message.read_text())
                assert answered["ok"] or answered["reason"] == "Interrupted"
                # Once it has answered the interpreter ends, and a signal that meets it then ends it as usual.
                assert process.returncode in (0, -sent)
                # What is linked is cleared away; a copy is gone on with.
                assert folder is kept or not [n for n in os.listdir(folder) if n.startswith(".tmp-")]
            assert set(_published(folder).values()) <= {secured["digest"]}
            # It may have been done before it was hit: the next try, too, must have something to do.
            shutil.rmtree(folder / done_as, ignore_errors=True)
        assert hits >= 2
        done = run({**work, "id": f"{work['operation']}-100-{next(serial)}"}, message)
        assert done["ok"], done
        assert done["digest"] == secured["digest"]
        beside = [f"{done_as}.files.json", "newest.json"] if folder is pins else []
        assert sorted(os.listdir(folder)) == sorted([done_as, *beside, f"{done_as}.pieces.json"])


def test_a_copy_killed_in_the_middle_is_gone_on_with(tmp_path: Path) -> None:
    """It began anew with every try, so one that takes longer than a try can last never ended."""  # row 5
    location, kept, message = tmp_path / "ckpt", tmp_path / "kept", tmp_path / "message"
    _big(location, 100)
    request = {**BASE, "layout": "NeMoRL", "location": str(location)}
    secured = run({**request, "id": "secure-100-1"}, message)
    source = {key: secured[key] for key in ("path", "digest", "step")}
    retain = {**request, "operation": "retain", "source": source, "destination": str(kept)}
    process = start({**retain, "id": "retain-100-2"}, message)
    assert _wait_for_staged(process, kept, 20)
    process.kill()
    process.communicate(timeout=60)
    before = _written(kept)
    assert len(before) >= 17
    assert run({**retain, "id": "retain-100-3"}, message)["ok"]
    assert len(before & _written(kept / "0-100")) >= len(before) - 3  # the pieces under way


def _written(folder: Path) -> set[tuple[int, int]]:
    """(inode, time of the last write) of the large files that have all of their content."""
    found = [path.stat() for path in folder.rglob("*.bin")]
    return {(s.st_ino, s.st_mtime_ns) for s in found if s.st_blocks * 512 >= 1 << 20}


def test_memory_is_bounded_whatever_the_size_of_a_file(tmp_path: Path) -> None:
    """The access pod has 256Mi; a file of 256 MiB, sparse, goes through three workers with a piece each."""
    location, message = tmp_path / "ckpt", tmp_path / "message"
    folder = write(
        location / "step_100",
        {
            "training_info.json": b"{}",
            "policy/model.safetensors": safetensors_file(),
            "train_dataloader.pt": torch_file(),
        },
    )
    (folder / "policy" / "huge.data").touch()
    os.truncate(folder / "policy" / "huge.data", 1 << 28)
    request = {**BASE, "layout": "NeMoRL", "location": str(location)}
    secured = run({**request, "id": "secure-100-1"}, message)
    source = {key: secured[key] for key in ("path", "digest", "step")}
    retain = {**request, "operation": "retain", "source": source, "destination": str(tmp_path / "kept")}
    process = start({**retain, "id": "retain-100-2"}, message)
    peak = 0
    while process.poll() is None:
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{process.pid}/status").read_text()
            peak = max(peak, *(int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line), 0)
        time.sleep(0.01)
    assert json.loads(message.read_text())["ok"]
    assert 0 < peak < 180_000, f"{peak} kB"  # row 19: of 262144
    shutil.rmtree(tmp_path / "kept")


def _wait_for_staged(process: subprocess.Popen[bytes], folder: Path, count: int) -> bool:
    """Wait until the worker has put ``count`` files into its staging folder, or noted as many pieces of a
    copy there; False: it ended before."""
    deadline = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < deadline:
        for staged in folder.glob(".tmp-*"):
            journal = staged / "journal"
            with contextlib.suppress(OSError):
                if ".links." in staged.name:
                    done = sum(len(files) for _, _, files in os.walk(staged))
                else:
                    done = journal.read_bytes().count(b"\n")
                if done >= count:
                    return True
        time.sleep(0.002)
    return False


def test_the_program_loads_no_types_of_the_policy() -> None:
    """It is started for each checkpoint: with them it would take half as much CPU again before it begins."""
    program = (
        "import json, sys\nimport controller.checkpoints.access\n"
        "heavy = ('controller.policy.types', 'controller.api', 'pydantic', 'cattrs', 'structlog')\n"
        "print(json.dumps([m for m in heavy if m in sys.modules]))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
