"""What lies on a tenant's volume or in his bucket: records of ours that he can write, and his checkpoints."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from controller.checkpoints import fence, inventory, ownership, pins, s3, saves, securing, weights
from controller.checkpoints.completeness import dcp, deepspeed, shards, streams
from controller.checkpoints.completeness.pickles import PickleProblem
from controller.checkpoints.errors import AccessError, Damaged, Vanished, store_errors
from controller.checkpoints.inventory import take_inventory
from controller.checkpoints.judge import Survey
from controller.checkpoints.layouts import LAYOUTS
from controller.checkpoints.layouts.base import json_object
from controller.checkpoints.object_copy import ObjectCopy
from controller.checkpoints.pieces import recorded
from controller.checkpoints.request import BranchLife, Request
from controller.checkpoints.retaining import _first_seen
from controller.checkpoints.uploads import Upload
from tests.fuzz.target import Target
from tests.support import trainers_files

OWNER = "8f1c0a52-1f7e-4a51-9d0a-2f3b6c1d7e90"
DIGEST = "sha256:" + "ab" * 32
LIFE = "2-9f2c41d0"


class OneFile:
    """A store in which whatever is read is one text, as the product's stores read it: within limits."""

    root = "/location"
    writer = None

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.wrote: dict[str, bytes] = {}

    def read(self, name: str, limit: int = 1 << 20) -> bytes:
        if len(self.data) > limit:
            raise Damaged(f"{name} is larger than the {limit} bytes it may have")
        return self.data

    def read_range(self, name: str, start: int, length: int) -> bytes:
        return (self.data[start:] if start < 0 else self.data[start : start + length])[:length]

    def files(self) -> Mapping[str, int]:
        return dict.fromkeys(_Names(), len(self.data))

    def written(self, name: str) -> int | None:
        return 1

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def write(self, name: str, data: bytes) -> None:
        self.wrote[name] = data


def _Names() -> tuple[str, ...]:
    return ("x", ".metadata", "__0_0.distcp", "__1_0.distcp", *(f"x{suffix}" for suffix in _SUFFIXES))


_SUFFIXES = (".safetensors", ".json", *weights.TORCH_SUFFIXES)


class Tree:
    """A store of a few files in memory: names, sizes and, of short ones, what is in them."""

    root = "/location"

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files

    def exists(self) -> bool:
        return True

    def folders(self, folder: str = "") -> list[str]:
        return sorted({name.split("/")[0] for name in self._below(folder) if "/" in name})

    def names(self, folder: str) -> list[str]:
        return sorted({name.split("/")[0] for name in self._below(folder)})

    def files(self, folder: str) -> dict[str, int]:
        return {name: len(data) for name, data in self._below(folder).items()}

    def signatures(self, folder: str) -> dict[str, str]:
        return {name: f"{len(data)}:1:1" for name, data in self._below(folder).items()}

    def folder_times(self, folder: str) -> dict[str, int] | None:
        return None

    def written(self, name: str) -> int | None:
        return None

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def read(self, name: str, limit: int = 1 << 20) -> bytes:
        data = self._of(name)
        if len(data) > limit:
            raise Damaged(f"{name} is larger than the {limit} bytes it may have")
        return data

    def read_range(self, name: str, start: int, length: int) -> bytes:
        data = self._of(name)
        return (data[start:] if start < 0 else data[start : start + length])[:length]

    def write(self, name: str, data: bytes) -> None:
        pass

    def _of(self, name: str) -> bytes:
        if name not in self._files:
            raise Vanished(name)
        return self._files[name]

    def _below(self, folder: str) -> dict[str, bytes]:
        at = f"{folder}/" if folder else ""
        found = {n.removeprefix(at): data for n, data in self._files.items() if n.startswith(at)}
        if folder and not found:
            raise Vanished(folder)
        return found


def _dumped(value: object) -> bytes:
    return json.dumps(value).encode()


SAVE = {
    "attempt": LIFE,
    "step": 400,
    "name": "checkpoint-400",
    "files": {"model.safetensors": 2048, "a/b": 0},
    "uid": OWNER,
    "sequence": 7,
}
INVENTORY = {
    "inventories": [
        {"attempt": "1", "candidates": {}},
        {"attempt": LIFE, "candidates": {"step-400": {"model.safetensors": "2048:17:99", "": "unreadable"}}},
    ]
}
PINNED = {"digest": DIGEST, "attempt": LIFE, "evidence": "SaveRecord", "files": {"a": "1:2:3"}}
PIECES = {
    "digest": DIGEST,
    "piece": 4,
    "files": {
        "a": {"size": 9, "sha256": "ab" * 32, "pieces": ["ab" * 32, "cd" * 32, "ef" * 32]},
        "b": {"size": 0, "sha256": "ab" * 32, "pieces": []},
    },
}
REQUEST = {
    "operation": "retain",
    "layout": "HuggingFace",
    "owner": OWNER,
    "location": "/work/run",
    "step": 400,
    "maxStepLag": 10,
    "release": [f"/work/run/.evalstop/{OWNER}/{LIFE}-300"],
    "destination": "/kept/team/run-8f1c0",
    "keepLatest": True,
    "id": "7",
    "job": "team/run",
    "branch": [{"attempt": LIFE, "after": 300}, {"attempt": "1", "after": -1, "base": 100}],
    "attempt": "2-",
    "locationWithin": "/work",
    "destinationWithin": "/kept",
    "source": {"path": f"/work/run/.evalstop/{OWNER}/{LIFE}-400", "digest": DIGEST, "step": 400},
}


def _save_record(data: bytes) -> None:
    found = saves.read_record(OneFile(data), f"{LIFE}-400.json")  # type: ignore[arg-type]
    if found is not None:
        found.difference({"model.safetensors": 1})
        found.difference(dict(found.files))


def _inventory(data: bytes) -> None:
    store = OneFile(data)
    noted = inventory.read_inventories(store, OWNER)  # type: ignore[arg-type]
    for one in noted:
        assert one.number >= 0
        repr(one.life)
    branch = (BranchLife(LIFE, 300), BranchLife("1", -1, 100))
    for step in (100, 400):
        candidate = _candidate(f"step-{step}", step)
        inventory.writer(candidate, {"model.safetensors": "2048:17:99"}, noted, branch)


def _candidate(name: str, step: int) -> Any:
    from controller.checkpoints.layouts import Candidate

    return Candidate(step, name, (("", name),))


def _upload(data: bytes) -> None:
    told = Upload(OneFile(data), "x").load()  # type: ignore[arg-type]
    assert told is None or isinstance(told, dict)


def _checked(data: bytes) -> None:
    copy = ObjectCopy.__new__(ObjectCopy)
    copy._store, copy.folder = OneFile(data), "x"  # type: ignore[assignment]
    assert all(type(index) is int for index in copy._load())


def _weights(data: bytes) -> None:
    content = OneFile(data)
    for suffix in _SUFFIXES:
        weights.truncation(content, f"x{suffix}")


def _dcp(data: bytes) -> None:
    content = OneFile(data)
    dcp.problem(content, "")
    dcp.world_size(content, "")
    with suppress(PickleProblem):
        dcp._scanned(content, ".metadata", len(data))


def _state(data: bytes) -> None:
    content = OneFile(data)
    streams.top_number(content, "x", "global_step")
    list(streams.matches(content, "x", LAYOUTS["HuggingFace"].__class__._sharded.__globals__["_SHARD_NAME"]))
    deepspeed.number_in(content, "x", "dp_world_size")
    shards.world_size(content, "x")
    json_object(content, "x", 4 << 20)


class _Answer:
    status, reason = 200, "OK"

    def __init__(self, data: bytes) -> None:
        self.data = data


def _s3(data: bytes) -> None:
    """What a store in a tenant's bucket, or of his making, answers; every answer is this one."""
    bucket = s3.Bucket.__new__(s3.Bucket)
    bucket._ask = lambda *_, **__: _Answer(data)  # type: ignore[assignment, method-assign, return-value]
    with store_errors("s3://kept", foreign=True):
        s3._check(_Answer(data), "s3://kept/x")  # type: ignore[arg-type]
        bucket._parts("x", "u")


def _tree(data: bytes) -> None:
    """Each line is a file: its name, and after ``=`` what is in it (``@`` and a trainer's file by name)."""
    files: dict[str, bytes] = {}
    for line in data.split(b"\n")[:200]:
        name, _, text = line.partition(b"=")
        path = name.decode("utf-8", "surrogateescape").strip("/")
        if not path or any(part in ("", ".", "..") for part in path.split("/")) or "\0" in path:
            continue  # no file system has them
        files[path] = _FILES.get(text, text.replace(b"\\n", b"\n"))
    store: Any = Tree(files)
    request = Request("claim", "Plain", OWNER, "/location", attempt=LIFE)
    for layout in LAYOUTS.values():
        with suppress(AccessError):
            take_inventory(store, layout, request)
        for branch in ((), (BranchLife(LIFE, 3), BranchLife("1", -1, 1))):
            with suppress(AccessError):
                survey = Survey(store, layout, OWNER, branch)
                for candidate in survey.candidates[:4]:
                    survey.verdict(candidate)
                    survey.looked_at(candidate)
                survey.complete_steps(4)
    pins.parse_pin(next(iter(files), ""))


_FILES: Mapping[bytes, bytes] = {
    b"@torch": trainers_files.torch_file(),
    b"@states": trainers_files.states(dp_world_size=2, mp_world_size=1),
    b"@dcp": trainers_files.dcp_metadata({"__0_0.distcp": 10, "__1_0.distcp": 10}),
    b"@safetensors": trainers_files.safetensors_file(),
}


def _trees() -> Iterator[bytes]:
    for layout, make in trainers_files.MAKERS.items():
        lines = []
        for step in (4, 5):
            folder = trainers_files.FOLDERS[layout].format(step)
            for name, content in make(step).items():
                short = next((key for key, whole in _FILES.items() if whole == content), None)
                text = short or (b"@torch" if content[:2] == b"PK" else content)
                lines.append(f"{folder}/{name}=".encode() + text.replace(b"\n", b"\\n"))
        lines.append(b"_actor/latest=global_step5")
        lines.append(b"latest_checkpointed_iteration.txt=5")
        record = {**SAVE, "step": 5, "name": trainers_files.FOLDERS[layout].format(5)}
        lines.append(f".evalstop/saves/{LIFE}-5.json=".encode() + _dumped(record))
        lines.append(f".evalstop/{OWNER}/inventory.json=".encode() + _dumped(INVENTORY))
        yield b"\n".join(lines)
    yield b"checkpoint-5/trainer_state.json={}\ncheckpoint-5/rng_state_7.pth=@torch\n" + (
        b"checkpoint-5/x/.metadata=@dcp"
    )
    yield b"global_step_5/actor/ckpt_contents.json=" + _dumped(
        {"contents": {"model": {"path": "model", "format": "huggingface"}}}
    )


S3_PARTS = (
    b'<?xml version="1.0"?><ListPartsResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Part>'
    b"<PartNumber>1</PartNumber><Size>5</Size><ETag>e</ETag></Part><IsTruncated>true</IsTruncated>"
    b"<NextPartNumberMarker>1</NextPartNumberMarker></ListPartsResult>"
)
S3_ERROR = b"<Error><Code>NoSuchUpload</Code><Message>no</Message></Error>"

TARGETS = (
    Target("save-record", _save_record, lambda: (_dumped(SAVE),), most=1 << 18),
    Target("inventory", _inventory, lambda: (_dumped(INVENTORY),), own=(Damaged,), most=1 << 18),
    Target(
        "location-owner",
        lambda data: str(ownership.read_owner(OneFile(data))),  # type: ignore[arg-type]
        lambda: (_dumped({"uid": OWNER, "job": "team/run", "since": "2026-11-23T06:00:00Z"}),),
        own=(Damaged,),
    ),
    Target(
        "newest-request",
        lambda data: fence._newest(OneFile(data), OWNER),  # type: ignore[arg-type]
        lambda: (_dumped({"serial": 7}),),
    ),
    Target(
        "pinned-files",
        lambda data: securing._noted(OneFile(data), "x"),  # type: ignore[arg-type]
        lambda: (_dumped(PINNED),),
        most=1 << 18,
    ),
    Target(
        "pieces",
        lambda data: recorded(OneFile(data), "x", DIGEST),  # type: ignore[arg-type]
        lambda: (_dumped(PIECES),),
        most=1 << 18,
    ),
    Target("upload", _upload, lambda: (_dumped({"upload": "abc", "size": 9, "parts": {"1": "e"}}),)),
    Target("checked-pieces", _checked, lambda: (_dumped({"checked": [0, 1, 2, 9]}),)),
    Target(
        "first-seen",
        lambda data: _first_seen(OneFile(data), "0-400", DIGEST),  # type: ignore[arg-type]
        lambda: (_dumped({"digest": DIGEST}),),
        own=(Damaged,),
    ),
    Target(
        "store-request",
        lambda data: Request.parse(data.decode("utf-8", "replace")),
        lambda: (_dumped(REQUEST), _dumped({**REQUEST, "operation": "claim", "former": [OWNER]})),
        own=(AccessError,),
        most=1 << 18,
    ),
    Target(
        "weights-file",
        _weights,
        lambda: (
            trainers_files.safetensors_file(),
            trainers_files.torch_file(),
            b"\x80\x02}q\x00.",
            b'{"a": 1}',
        ),
        most=1 << 18,
    ),
    Target(
        "dcp-metadata",
        _dcp,
        lambda: (trainers_files.dcp_metadata({"__0_0.distcp": 10, "__1_0.distcp": 10}),),
        most=1 << 18,
        words=(
            b"\x8c",
            b"X",
            b"\x8a\xff",
            b"\x8b",
            b"(",
            b"t",
            b"R",
            b"b",
            b"u",
            b"s",
            b"\x94",
            b"h",
            b"K",
            b"J",
            b".",
        ),
    ),
    Target(
        "trainer-state",
        _state,
        lambda: (
            _dumped({"log_history": [{"loss": 0.5, "step": 1}], "global_step": 400, "epoch": 1.0}),
            _dumped({"metadata": {"total_size": 9}, "weight_map": {"a": "model-00001-of-00002.safetensors"}}),
            trainers_files.states(dp_world_size=2, mp_world_size=1),
        ),
        most=1 << 18,
    ),
    Target(
        "s3-answer",
        _s3,
        lambda: (S3_PARTS.replace(b"true", b"false"), S3_PARTS, S3_ERROR),
        own=(AccessError, Vanished, Damaged),
        words=(b"<!DOCTYPE x [<!ENTITY a 'aaaa'>]>", b"&a;", b"<a>", b"</a>", b"<![CDATA["),
    ),
    Target(
        "checkpoint-tree",
        _tree,
        _trees,
        words=(
            *_FILES,
            b"=@dcp",
            b"\n",
            b"/",
            b"actor/",
            b"rank_",
            b"999999999999",
            b"world_size_4000000000",
        ),
        cpu=4.0,
    ),
)
