"""Copies that are killed go on where they were, and two workers at once never publish a damaged one."""

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.checkpoints import digest, retaining, staging, volume_copy
from controller.checkpoints.digest import FileDigest, hash_stream, tree_digest
from controller.checkpoints.errors import AccessError, Reason
from controller.checkpoints.layouts import LAYOUTS
from controller.checkpoints.plan import Piece, Plan
from controller.checkpoints.progress import METER
from controller.checkpoints.request import Request, Result, Source
from controller.checkpoints.retaining import restore, retain
from controller.checkpoints.rooted import Rooted
from controller.checkpoints.staging import Writer
from controller.checkpoints.volume import Volume
from controller.checkpoints.volume_copy import VolumeCopy

OWNER = "0f2a-uid"
PIECE = 4096
COPY = "1-aa01b2c3-40"  # named as the pin is
PIN = f".evalstop/{OWNER}/{COPY}"
FILES = {
    "training_info.json": b"{}",
    "policy/weights/model.bin": random.Random(1).randbytes(PIECE * 9 + 17),
    "policy/weights/other.bin": random.Random(2).randbytes(PIECE * 3),
    "policy/empty.txt": b"",
    "policy/optimizer.bin": random.Random(3).randbytes(PIECE - 1),
}


class Killed(BaseException):
    """The end of a worker at this very point."""


class Anything:
    """A layout for which everything is whole: completeness is not what is looked at here."""

    name = "Anything"

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "PIECE", PIECE)


def put_pin(root: Path, files: dict[str, bytes] | None = None) -> Source:
    """A pin as securing leaves it; its record of pieces beside it."""
    for name, data in (FILES if files is None else files).items():
        path = root / "ckpt" / PIN / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    store = Volume(str(root / "ckpt"))
    manifest = {name: store.hash(f"{PIN}/{name}") for name in store.files(PIN)}
    retaining.pieces.record(store, PIN, manifest)
    return Source(f"{root}/ckpt/{PIN}", tree_digest(manifest), 40)


def copy(root: Path, source: Source, serial: int, layout: Any = None) -> Result:
    writer = Writer(serial)
    location, kept = Volume(str(root / "ckpt"), writer), Volume(str(root / "kept"), writer)
    request = Request(
        "retain", "Any", OWNER, str(root / "ckpt"), 40, source=source, destination=str(root / "kept")
    )
    return retain(location, kept, layout or Anything(), request)


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def is_right(root: Path, files: dict[str, bytes] | None = None) -> bool:
    return tree(root / "kept" / COPY) == (FILES if files is None else files)


class Copied:
    """Counts how often each piece was copied; kills after a number of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times: Counter[int] = Counter()
        self.left: float = float("inf")
        self._lock = threading.Lock()
        write = VolumeCopy._write

        def counted(this: VolumeCopy, piece: Piece, data: bytes | bytearray) -> str:
            with self._lock:
                self.left -= 1
                if self.left < 0:
                    raise Killed
                self.times[piece.index] += 1
            return write(this, piece, data)

        monkeypatch.setattr(VolumeCopy, "_write", counted)


# -- going on --------------------------------------------------------------------------------------------


def test_killed_again_and_again_it_ends_and_only_pieces_under_way_are_copied_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It began from zero at each try, so a copy longer than a try could not end."""  # row 5
    source, copied = put_pin(tmp_path), Copied(monkeypatch)
    for serial in range(1, 5):
        copied.left = 3
        with pytest.raises(Killed):
            copy(tmp_path, source, serial)
        assert not (tmp_path / "kept" / COPY).exists()
    copied.left = float("inf")
    result = copy(tmp_path, source, 5)
    assert is_right(tmp_path)
    assert (result.digest, result.bytes) == (source.digest, sum(map(len, FILES.values())))
    assert set(copied.times) == set(range(15))  # 1 + 10 + 3 + 1 pieces; an empty file has none
    assert sum(copied.times.values()) == 15
    assert sorted(os.listdir(tmp_path / "kept")) == [COPY, f"{COPY}.pieces.json"]


def test_progress_begins_where_the_former_try_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, copied = put_pin(tmp_path), Copied(monkeypatch)
    copied.left = 6
    with pytest.raises(Killed):
        copy(tmp_path, source, 1)
    started: list[tuple[str, int, int]] = []
    begin = METER.begin
    monkeypatch.setattr(
        METER,
        "begin",
        lambda phase, total, done=0: (started.append((phase, done, total)), begin(phase, total, done)),
    )
    copied.left = float("inf")
    copy(tmp_path, source, 2)
    _, done, total = next(s for s in started if s[0] == "Copying")
    assert total == sum(map(len, FILES.values()))
    assert done >= 5 * (PIECE - 1)
    assert METER.read()[1] == METER.read()[2] == total


def test_a_journal_that_is_cut_off_or_lies_of_other_pieces_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, copied = put_pin(tmp_path), Copied(monkeypatch)
    copied.left = 5
    with pytest.raises(Killed):
        copy(tmp_path, source, 1)
    (journal,) = (tmp_path / "kept").glob(".tmp-*/journal")
    whole = journal.read_text()
    for index in range(15):
        for text in (f"{index} {'0' * 64}\n", f"9{index}9 x\n", "\xff\n", f"{index} "):
            journal.write_bytes((whole + text).encode("latin-1"))
    copied.left = float("inf")
    copy(tmp_path, source, 2)
    assert is_right(tmp_path)


def test_a_file_that_went_from_the_staging_folder_is_copied_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, copied = put_pin(tmp_path), Copied(monkeypatch)
    copied.left = 8
    with pytest.raises(Killed):
        copy(tmp_path, source, 1)
    (staged,) = (tmp_path / "kept").glob(".tmp-*/tree")
    for name in ("policy/weights/model.bin", "policy/optimizer.bin"):
        (staged / name).unlink()
    (staged / "stranger").write_bytes(b"?")
    copied.left = float("inf")
    copy(tmp_path, source, 2)
    assert is_right(tmp_path)


def test_without_a_record_of_pieces_the_source_is_read_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, copied = put_pin(tmp_path), Copied(monkeypatch)
    beside = tmp_path / "ckpt" / f"{PIN}.pieces.json"
    right = beside.read_bytes()
    told = json.loads(right)
    told["files"]["policy/weights/model.bin"]["pieces"][3] = "0" * 64
    for serial, text in enumerate((b"", b"{", b"[]", right[:-40], json.dumps(told).encode()), 1):
        beside.write_bytes(text)
        assert copy(tmp_path, source, serial).digest == source.digest
        assert is_right(tmp_path)
        shutil.rmtree(tmp_path / "kept")
    beside.unlink()
    copied.times.clear()
    copy(tmp_path, source, 9)
    assert sum(copied.times.values()) == 15


def test_a_source_that_changed_is_not_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, copied = put_pin(tmp_path), Copied(monkeypatch)
    copied.left = 5
    with pytest.raises(Killed):
        copy(tmp_path, source, 1)
    copied.left = float("inf")
    path = tmp_path / "ckpt" / PIN / "policy/weights/model.bin"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(AccessError) as caught:
        copy(tmp_path, source, 2)
    assert caught.value.reason is Reason.DIGEST_MISMATCH
    assert os.listdir(tmp_path / "kept") == []


def test_what_does_not_read_back_is_never_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = put_pin(tmp_path)
    monkeypatch.setattr(volume_copy, "_hash_back", lambda *_: "0" * 64)
    with pytest.raises(AccessError) as caught:
        copy(tmp_path, source, 1)
    assert caught.value.reason is Reason.COPY_DAMAGED
    assert os.listdir(tmp_path / "kept") == []


def test_restoring_goes_on_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, copied = put_pin(tmp_path), Copied(monkeypatch)
    kept = copy(tmp_path, source, 1)
    back = Source(kept.path, kept.digest, 40)

    def again(serial: int) -> Result:
        location, retention = (Volume(str(tmp_path / name), Writer(serial)) for name in ("ckpt", "kept"))
        request = Request(
            "restore", "NeMoRL", OWNER, location.root, 40, source=back, destination=retention.root
        )
        layout = Anything()
        layout.own_name = lambda step: f"step_{step}"  # type: ignore[attr-defined]
        layout.resume_files = lambda step: {"policy/latest": b"step_40"}  # type: ignore[attr-defined]
        return restore(location, retention, layout, request)

    copied.times.clear()
    copied.left = 9
    with pytest.raises(Killed):
        again(2)
    copied.left = float("inf")
    result = again(3)
    assert tree(Path(result.path)) == {**FILES, "policy/latest": b"step_40"}
    assert sum(copied.times.values()) == 15
    assert again(4).path == result.path


# -- one terabyte ----------------------------------------------------------------------------------------

TERABYTE = 10**12
RATE = 200e6  # bytes/s


class Content(bytes):
    """Stands for the content of a piece: its digest, in 64 bytes."""


class _Digest:
    def __init__(self, data: Any = b"") -> None:
        self._data = bytes(data)

    def hexdigest(self) -> str:
        return self._data.decode() if len(self._data) == 64 else hashlib.sha256(self._data).hexdigest()


class _Hashlib:
    sha256 = _Digest


def test_a_terabyte_at_a_simulated_rate_killed_three_times_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real code over sparse files: 20 files of 50 GB, each piece standing for itself by 64 bytes.

    Only content is simulated: a piece's bytes are its digest, and time is bytes over a rate. Names, offsets,
    journal, staging and publishing are the product's. Before, each kill cost all of the 83 minutes.
    """  # row 5
    monkeypatch.setattr(digest, "PIECE", 32 << 20)
    sizes = {f"policy/shard-{n:02d}.bin": TERABYTE // 20 for n in range(20)}
    manifest = {}
    for name, size in sizes.items():
        path = tmp_path / "ckpt" / PIN / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.truncate(path, size)
        count = -(-size // digest.PIECE)
        digests = tuple(hashlib.sha256(f"{name} {n}".encode()).hexdigest() for n in range(count))
        manifest[name] = FileDigest(size, hashlib.sha256(name.encode()).hexdigest(), digests)
    plan = Plan(manifest, digest.PIECE)
    content = {(p.name, p.start): Content(p.sha256.encode()) for p in plan.pieces()}
    store = Volume(str(tmp_path / "ckpt"))
    retaining.pieces.record(store, PIN, manifest)
    source = Source(store.path(PIN), plan.digest, 40)

    clock, lock, times = [0.0], threading.Lock(), Counter[tuple[str, int]]()
    kills = [1500.0, 2400.0, 4700.0]  # s

    def read_piece(this: Volume, name: str, start: int, size: int) -> bytes:
        inside = name.removeprefix(f"{PIN}/")
        with lock:
            clock[0] += size / RATE
            times[inside, start] += 1
            dies()
        return content[inside, start]

    note = VolumeCopy._note

    def noted(this: VolumeCopy, piece: Piece) -> None:
        dies()  # the others' pieces are cut off too: written, and not noted
        note(this, piece)

    def dies() -> None:
        if kills and clock[0] >= kills[0]:
            raise Killed

    monkeypatch.setattr(VolumeCopy, "_note", noted)

    monkeypatch.setattr(Volume, "read_piece", read_piece)
    monkeypatch.setattr(Volume, "free", lambda self: None)
    monkeypatch.setattr(volume_copy, "_hash_back", lambda fd, start, size: os.pread(fd, 64, start).decode())
    monkeypatch.setattr(retaining, "hashlib", _Hashlib)
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    begun = []
    for serial in range(1, 5):
        begun.append(clock[0])
        if kills:
            with pytest.raises(Killed):
                copy(tmp_path, source, serial)
            kills.pop(0)
        else:
            result = copy(tmp_path, source, serial)
    again = sum(count - 1 for count in times.values())
    assert result.bytes == TERABYTE
    assert set(times) == set(content)
    # The pieces under way at a kill, one per worker: 96 MiB of 1 TB.
    assert 3 <= again <= 3 * volume_copy.WORKERS
    assert clock[0] <= TERABYTE / RATE + again * digest.PIECE / RATE + 1e-6
    for name in sizes:
        with open(tmp_path / "kept" / COPY / name, "rb") as file:
            for start in range(0, sizes[name], digest.PIECE):
                assert os.pread(file.fileno(), 64, start) == content[name, start]
    print(
        f"1 TB in {clock[0] / 60:.1f} min at {RATE / 1e6:.0f} MB/s, {len(begun) - 1} kills, "
        f"{again} pieces again"
    )


# -- two at once -----------------------------------------------------------------------------------------


class Chaos:
    """Workers in threads of their own, slowed and killed at random points by the acts of a history."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
        self.random, self.lock = random.Random(seed), threading.Lock()
        self.budgets: dict[int, int] = {}
        for owner, name in (
            (VolumeCopy, "_write"),
            (VolumeCopy, "_note"),
            (VolumeCopy, "_prepare"),
            (VolumeCopy, "_check_whole"),
            (staging, "enter"),
            (staging, "_taken"),
            (staging, "clear"),
            (os, "rename"),
            (Volume, "read_piece"),
        ):
            self._hook(monkeypatch, owner, name)

    def _hook(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        inner = getattr(owner, name)

        def stepped(*args: Any, **more: Any) -> Any:
            self.step()
            result = inner(*args, **more)
            self.step()
            return result

        monkeypatch.setattr(owner, name, stepped)

    def step(self) -> None:
        with self.lock:
            name = threading.current_thread().name.partition("/")[0]
            worker = int(name) if name.isdigit() else self.budgets.get(-1, 0)
            pause = self.random.random()
            left = self.budgets.get(worker)
            if left is not None:
                self.budgets[worker] = left - 1
        if left is not None and left <= 0:
            raise Killed
        if pause < 0.1:
            time.sleep(pause / 50)


def run_workers(root: Path, source: Source, chaos: Chaos, acts: list[tuple[int, int | None]]) -> None:
    """One thread per act (serial, steps until it is killed; None: it is not)."""
    threads = []
    for number, (serial, budget) in enumerate(acts):
        if budget is not None:
            chaos.budgets[number] = budget

        def work(serial: int = serial) -> None:
            with suppress(Killed, AccessError):
                copy(root, source, serial)

        threads.append(threading.Thread(target=work, name=str(number)))
    for thread in threads:
        thread.start()
        time.sleep(chaos.random.random() / 100)
    for thread in threads:
        thread.join()


@settings(max_examples=int(os.environ.get("EVALSTOP_TEST_HISTORIES", "12")), deadline=None)
@given(
    acts=st.lists(
        st.tuples(st.integers(1, 4), st.one_of(st.none(), st.integers(0, 80))), min_size=2, max_size=5
    ),
    seed=st.integers(0, 10**6),
    changed=st.booleans(),
)
def test_whoever_is_killed_or_slow_no_damaged_copy_is_published(
    acts: list[tuple[int, int | None]], seed: int, changed: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Two nodes at once, one of them thought dead: a file lock would not have told them apart."""  # row 19
    root = tmp_path_factory.mktemp("two")
    source = put_pin(root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digest, "PIECE", PIECE)
        patch.setattr(staging, "DEAD_SECONDS", 0.3)
        patch.setattr(staging.enter, "__kwdefaults__", {**staging.enter.__kwdefaults__, "dead_seconds": 0.3})
        patch.setattr(staging, "BEAT_SECONDS", 0.05)
        patch.setattr(volume_copy, "each", each_named)
        chaos = Chaos(patch, seed)
        if changed:
            threading.Timer(chaos.random.random() / 20, spoil, (root,)).start()
        run_workers(root, source, chaos, acts)
        if changed:
            time.sleep(0.06)
    kept = root / "kept" / COPY
    if kept.exists():
        assert is_right(root)
    if not changed:
        result = copy(root, source, 9)
        assert result.digest == source.digest
        assert is_right(root)
        assert sorted(n for n in os.listdir(root / "kept") if n[0] != ".") == [COPY, f"{COPY}.pieces.json"]


def spoil(root: Path) -> None:
    """A trainer writes into a checkpoint after it was pinned."""
    with open(root / "ckpt" / PIN / "policy/weights/model.bin", "r+b") as file:
        file.seek(PIECE * 5)
        file.write(b"!" * PIECE)


def each_named(items: Iterator[Any], work: Callable[[Any], None], workers: int) -> None:
    """As `workers.each`, in the worker's own thread: a kill is the kill of all of it."""
    for item in items:
        work(item)


def test_the_older_of_two_living_workers_ends_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = put_pin(tmp_path)
    inside, may_go_on = threading.Event(), threading.Event()
    write, told = VolumeCopy._write, []

    def slow(this: VolumeCopy, piece: Piece, data: bytes | bytearray) -> str:
        if not inside.is_set():
            inside.set()
            may_go_on.wait(10)
        return write(this, piece, data)

    monkeypatch.setattr(VolumeCopy, "_write", slow)

    def old() -> None:
        try:
            copy(tmp_path, source, 1)
        except AccessError as error:
            told.append(error)

    thread = threading.Thread(target=old)
    thread.start()
    assert inside.wait(10)
    assert copy(tmp_path, source, 2).digest == source.digest
    may_go_on.set()
    thread.join()
    assert [error.reason for error in told] == [Reason.INTERRUPTED]
    assert "another worker" in told[0].message
    assert is_right(tmp_path)


def test_a_living_worker_of_the_same_request_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = put_pin(tmp_path)
    inside = threading.Event()
    write, copies = VolumeCopy._write, Counter[int]()

    def slow(this: VolumeCopy, piece: Piece, data: bytes | bytearray) -> str:
        copies[piece.index] += 1
        inside.set()
        time.sleep(0.02)
        return write(this, piece, data)

    monkeypatch.setattr(VolumeCopy, "_write", slow)
    threads = [threading.Thread(target=copy, args=(tmp_path, source, 1)) for _ in range(2)]
    threads[0].start()
    assert inside.wait(10)
    threads[1].start()
    for thread in threads:
        thread.join()
    assert is_right(tmp_path)
    assert set(copies.values()) == {1}


def test_who_is_being_cleared_away_publishes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request for something else supersedes a living worker: not a half-cleared tree may come of it."""
    location, remove = Volume(str(tmp_path), Writer(1)), shutil.rmtree
    told: list[Reason] = []
    with location.staging(f".evalstop/{OWNER}/1-40") as alive:
        for name in ("one", "two"):
            location.write(f"{alive.folder}/{name}", b"content")

        def halfway(name: str, **more: Any) -> None:
            next((tmp_path / ".evalstop" / OWNER / name).rglob("one")).unlink(missing_ok=True)
            with pytest.raises(AccessError) as caught:
                alive.publish()
            told.append(caught.value.reason)
            remove(name, **more)

        with monkeypatch.context() as patch:
            patch.setattr(shutil, "rmtree", halfway)
            with Volume(str(tmp_path), Writer(2)).staging(f".evalstop/{OWNER}/1-60"):
                patch.undo()
        with pytest.raises(AccessError):
            alive.publish()
    assert told == [Reason.INTERRUPTED]
    assert os.listdir(tmp_path / ".evalstop" / OWNER) == []


def test_a_dead_worker_of_a_newer_request_is_found_dead_by_ones_own_clock(tmp_path: Path) -> None:
    """A status that was edited by hand may count anew: nothing waits for ever."""
    folder, now = tmp_path / "kept", [0.0]
    folder.mkdir()
    left = folder / str(staging.Name("40", "0" * 16, 9, "deadbeef"))
    left.mkdir()
    (left / staging.BEAT).write_text("x\n")

    def sleep(seconds: float) -> None:
        now[0] += seconds

    with Rooted(str(folder)).folder("") as opened:
        got = staging.enter(
            opened, "40", "0" * 16, Writer(2), dead_seconds=120.0, monotonic=lambda: now[0], sleep=sleep
        )
    assert got is not None
    assert 120.0 <= now[0] <= 125.0
    assert not left.exists()


def test_processes_killed_at_any_moment_two_at_a_time(tmp_path: Path) -> None:
    big = {
        "training_info.json": b"{}",
        **{f"policy/{n}.safe": random.Random(n).randbytes(3 << 20) for n in range(4)},
    }
    source = put_pin(tmp_path, big)
    chance, done = random.Random(7), 0
    for serial in range(1, 9, 2):
        workers = [process(tmp_path, source, serial + n) for n in range(2)]
        for worker in workers:
            time.sleep(chance.random() * 0.15)
            if chance.random() < 0.7:
                worker.send_signal(signal.SIGKILL)
        for worker in workers:
            worker.wait(60)
        if (tmp_path / "kept" / COPY).exists():
            assert is_right(tmp_path, big)
            done += 1
            shutil.rmtree(tmp_path / "kept")
    last = process(tmp_path, source, 99)
    assert last.wait(60) == 0
    assert is_right(tmp_path, big)
    assert not [n for n in os.listdir(tmp_path / "kept") if n.startswith(".tmp-")]


def process(root: Path, source: Source, serial: int) -> subprocess.Popen[bytes]:
    """The access program's own work in a process of its own, with small pieces."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path; import test_checkpoints_goes_on as t\n"
        "from controller.checkpoints import digest; digest.PIECE = t.PIECE\n"
        "t.copy(Path(sys.argv[2]), t.Source(sys.argv[3], sys.argv[4], 40), int(sys.argv[5]))\n"
    )
    arguments = [str(Path(__file__).parent), str(root), source.path, source.digest, str(serial)]
    return subprocess.Popen([sys.executable, "-c", program, *arguments], stderr=subprocess.DEVNULL)


# -- pieces ----------------------------------------------------------------------------------------------


@given(
    data=st.binary(max_size=5000), cut=st.lists(st.integers(1, 900), max_size=8), piece=st.integers(1, 1500)
)
def test_pieces_are_the_same_however_the_bytes_come(data: bytes, cut: list[int], piece: int) -> None:
    hasher, left = digest.Hasher(piece), memoryview(data)
    for length in cut:
        hasher.update(left[:length])
        left = left[length:]
    hasher.update(left)
    found = hasher.digest()
    assert (found.size, found.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    parts = [data[at : at + piece] for at in range(0, len(data), piece)]
    expected = tuple(hashlib.sha256(part).hexdigest() for part in parts)
    assert found.pieces == (expected if len(data) > piece else ())


def test_a_plan_survives_its_json_and_covers_every_byte() -> None:
    import io

    digest.PIECE = PIECE
    plan = Plan({name: hash_stream(io.BytesIO(data)) for name, data in FILES.items()}, PIECE)
    assert Plan.parse(plan.to_json().encode()) == plan
    assert Plan.parse(plan.to_json().encode()).key() == plan.key()
    seen = dict.fromkeys(FILES, b"")
    for number, piece in enumerate(plan.pieces()):
        assert piece.index == number
        assert piece.start == len(seen[piece.name])
        part = FILES[piece.name][piece.start : piece.start + piece.size]
        assert hashlib.sha256(part).hexdigest() == piece.sha256
        seen[piece.name] += part
    assert seen == FILES
    assert "NeMoRL" in LAYOUTS
