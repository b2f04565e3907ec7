"""Secure, retain, restore: nothing half-done is visible, nothing is let go too early, repeating is safe."""

import errno
import fcntl
import hashlib
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.checkpoints.access import carry_out
from controller.checkpoints.digest import FileDigest, tree_digest
from controller.checkpoints.errors import AccessError, Damaged, Reason, Vanished
from controller.checkpoints.layouts import LAYOUTS
from controller.checkpoints.request import Request, Result, Source
from controller.checkpoints.volume import Volume
from controller.policy.wording import SKIPPED
from tests.support.trainers_files import FOLDERS, plain, save, write

OWNER = "0f2a-uid"


class StoreWorld:
    """A location and a retention place, as URIs of one kind of store."""

    def __init__(self, scheme: str, root: str) -> None:
        self.scheme = scheme
        self.location, self.retention = f"{root}/ckpt", f"{root}/kept/ns/run-0f2a1"
        self.files: Any = fsspec.filesystem(scheme or "file")

    def local(self, path: str) -> str:
        return path.partition("://")[2] if self.scheme else path

    def save(self, step: int, layout: str = "Plain", salt: bytes = b"") -> None:
        files = plain(step, salt)
        folder = f"{self.local(self.location)}/{FOLDERS[layout].format(step)}"
        for name, data in files.items():
            self.files.makedirs(f"{folder}/{name}".rpartition("/")[0], exist_ok=True)
            self.files.pipe_file(f"{folder}/{name}", data)

    def rotate(self, step: int) -> None:
        self.files.rm(f"{self.local(self.location)}/step-{step}", recursive=True)

    def overwrite(self, path: str, data: bytes) -> None:
        # In place, as a trainer does that opens its file again: pipe_file would make a new one on no store.
        with self.files.open(self.local(path), "wb") as file:
            file.write(data)

    def read(self, path: str) -> bytes:
        data: bytes = self.files.cat_file(self.local(path))
        return data

    def names(self, path: str) -> list[str]:
        base = self.local(path).strip("/")
        found = (str(name).strip("/") for name in self.files.find(self.local(path)))
        return sorted(name[len(base) :].strip("/") for name in found)

    # -- requests --

    def secure(self, step: int, lag: int = 0, release: tuple[str, ...] = ()) -> Result:
        return carry_out(Request("secure", "Plain", OWNER, self.location, step, lag, release))

    def retain(self, kept: Result, keep_latest: bool = False) -> Result:
        source = Source(kept.path, kept.digest, kept.step)
        return carry_out(
            Request(
                "retain",
                "Plain",
                OWNER,
                self.location,
                kept.step,
                source=source,
                destination=self.retention,
                keep_latest=keep_latest,
            )
        )

    def restore(self, step: int, kept: Result | None = None) -> Result:
        source = None if kept is None else Source(kept.path, kept.digest, kept.step)
        destination = self.retention if kept is not None else ""
        return carry_out(
            Request("restore", "Plain", OWNER, self.location, step, source=source, destination=destination)
        )


@pytest.fixture(params=["", "file", "memory"], ids=["volume", "file-objects", "memory-objects"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreWorld]:
    if request.param == "memory":
        yield StoreWorld("memory", f"memory://{tmp_path.name}")
        fsspec.filesystem("memory").rm("/", recursive=True)
    else:
        (tmp_path / "ckpt").mkdir()
        yield StoreWorld(request.param, f"{request.param}://{tmp_path}" if request.param else str(tmp_path))


@pytest.fixture
def disk(tmp_path: Path) -> StoreWorld:
    (tmp_path / "ckpt").mkdir()
    return StoreWorld("", str(tmp_path))


def refusal(reason: Reason, call: Any, *args: Any, **more: Any) -> AccessError:
    with pytest.raises(AccessError) as caught:
        call(*args, **more)
    assert caught.value.reason is reason, caught.value.message
    return caught.value


# -- on every kind of store ------------------------------------------------------------------------------


def test_the_best_survives_rotation_and_comes_back(world: StoreWorld) -> None:
    world.save(100)
    pinned = world.secure(100)
    world.rotate(100)
    kept = world.retain(pinned)
    assert kept.digest == pinned.digest == kept.source_digest
    assert kept.path.startswith(world.retention)
    assert world.read(f"{kept.path}/params.npz") == plain(100)["params.npz"]
    world.files.rm(world.local(world.location), recursive=True)
    back = world.restore(100, kept)
    assert back.digest == pinned.digest
    assert back.path.endswith("/resume/step-100") or "/resume/" in back.path
    assert back.path.rpartition("/")[2] == "step-100"
    assert world.read(f"{back.path}/optimizer/state.npz") == plain(100)["optimizer/state.npz"]


def test_each_step_may_be_repeated(world: StoreWorld) -> None:
    world.save(100)
    pinned = world.secure(100)
    again = world.secure(100)
    assert (again.path, again.digest) == (pinned.path, pinned.digest)
    world.rotate(100)
    assert world.secure(100).path == pinned.path
    kept = world.retain(pinned)
    assert world.retain(pinned).path == kept.path
    back = world.restore(100, kept)
    assert world.restore(100, kept).path == back.path
    pins = [n for n in world.names(world.location) if n.startswith(".evalstop/") and n.endswith("params.npz")]
    assert len(pins) == 2  # one pin, one restored


def test_nearest_earlier_within_the_lag(world: StoreWorld) -> None:
    for step in (70, 80, 110):
        world.save(step)
    assert world.secure(100, lag=20).step == 80
    error = refusal(Reason.MISSING, world.secure, 100, lag=19)
    assert error.available == (70, 80, 110)
    assert "steps 81 to 100" in error.message
    assert "70, 80, 110" in error.message


def test_its_own_step_wins_over_an_earlier_one(world: StoreWorld) -> None:
    for step in (90, 100):
        world.save(step)
    assert world.secure(100, lag=50).step == 100


def test_half_written_is_passed_over_and_told(world: StoreWorld) -> None:
    world.save(90)
    world.save(100)
    world.overwrite(f"{world.location}/step-100/params.npz", b"half")
    secured = world.secure(100, lag=10)
    assert secured.step == 90
    assert "step 100: params.npz has 4 of" in secured.note
    error = refusal(Reason.INCOMPLETE, world.secure, 100)
    assert "params.npz has 4 of" in error.message
    assert error.available == (90,)


def test_same_size_but_other_content_is_found_by_its_digest(world: StoreWorld) -> None:
    world.save(100)
    size = len(plain(100)["params.npz"])
    world.overwrite(f"{world.location}/step-100/params.npz", b"?" * size)
    assert "differs from the sha256" in refusal(Reason.INCOMPLETE, world.secure, 100).message
    assert not [n for n in world.names(world.location) if n.startswith(".evalstop/")]


def test_former_pins_go_only_after_the_new_one_stands(world: StoreWorld) -> None:
    for step in (100, 200):
        world.save(step)
    first = world.secure(100)
    refusal(Reason.MISSING, world.secure, 300, release=(first.path,))
    assert world.read(f"{first.path}/params.npz")
    again = world.secure(200)
    second = world.secure(200, release=(first.path, again.path))
    assert world.read(f"{second.path}/params.npz")
    assert not world.files.exists(world.local(first.path))


def test_a_changed_pin_is_never_retained(world: StoreWorld) -> None:
    world.save(100)
    pinned = world.secure(100)
    size = len(plain(100)["params.npz"])
    # On a volume through the trainer's own file: a hard link shares the inode.
    target = f"{pinned.path}/params.npz" if world.scheme else f"{world.location}/step-100/params.npz"
    world.overwrite(target, b"!" * size)
    error = refusal(Reason.DIGEST_MISMATCH, world.retain, pinned)
    assert pinned.digest in error.message
    assert world.names(world.retention) == []


def test_a_lost_pin_is_missing(world: StoreWorld) -> None:
    world.save(100)
    pinned = world.secure(100)
    world.files.rm(world.local(pinned.path), recursive=True)
    assert "step 100 is gone" in refusal(Reason.MISSING, world.retain, pinned).message


def test_retained_copies_are_never_overwritten(world: StoreWorld) -> None:
    world.save(100)
    pinned = world.secure(100)
    first = world.retain(pinned)
    world.rotate(100)
    world.save(100, salt=b"second life")
    second_pin = world.secure(100)
    second = world.retain(second_pin)
    assert first.digest != second.digest
    assert first.path != second.path
    assert world.read(f"{first.path}/params.npz") == plain(100)["params.npz"]
    assert world.read(f"{second.path}/params.npz") == plain(100, b"second life")["params.npz"]


def test_a_damaged_retained_copy_is_not_taken_for_done(world: StoreWorld) -> None:
    world.save(100)
    pinned = world.secure(100)
    first = world.retain(pinned)
    world.overwrite(f"{first.path}/params.npz", b"rotten")
    second = world.retain(pinned)
    assert second.path != first.path
    assert second.digest == pinned.digest
    refusal(Reason.DIGEST_MISMATCH, world.restore, 100, first)
    assert world.restore(100, second).digest == pinned.digest


def test_latest_is_kept_beside_the_best_when_asked_for(world: StoreWorld) -> None:
    for step in (100, 200, 300):
        world.save(step)
    world.overwrite(f"{world.location}/step-300/params.npz", b"half")
    kept = world.retain(world.secure(100), keep_latest=True)
    assert kept.step == 100
    assert kept.latest["step"] == 200
    assert world.read(f"{kept.latest['path']}/params.npz") == plain(200)["params.npz"]


def test_restore_without_a_source_finds_the_step_where_it_lies(world: StoreWorld) -> None:
    for step in (100, 200):
        world.save(step)
    world.secure(100)
    world.rotate(100)
    for step in (100, 200):
        back = world.restore(step)
        assert world.read(f"{back.path}/params.npz") == plain(step)["params.npz"]
    assert [n for n in world.names(world.location) if "/resume/" in n and "step-100" in n] == []
    error = refusal(Reason.MISSING, world.restore, 300)
    assert error.available == (200,)


def test_paths_out_of_place_are_refused(world: StoreWorld) -> None:
    world.save(100)
    pinned = world.secure(100)
    for path in (f"{world.location}/step-100", "/etc", f"{world.location}/.evalstop/{OWNER}/../../step-100"):
        outside = Result(100, path, pinned.digest, pinned.digest, 1, 1)
        refusal(Reason.BAD_REQUEST, world.retain, outside)
    refusal(Reason.BAD_REQUEST, world.restore, 100, Result(100, "/etc/passwd", pinned.digest, "", 1, 1))


# -- volumes ---------------------------------------------------------------------------------------------


def test_a_pin_is_a_hard_link_and_a_retained_copy_is_not(disk: StoreWorld) -> None:
    disk.save(100)
    pinned = disk.secure(100)
    kept = disk.retain(pinned)
    inode = os.stat(f"{disk.location}/step-100/params.npz").st_ino
    assert pinned.method == "link"
    assert os.stat(f"{pinned.path}/params.npz").st_ino == inode
    assert os.stat(f"{kept.path}/params.npz").st_ino != inode
    assert pinned.path == f"{disk.location}/.evalstop/{OWNER}/0-100"
    assert kept.path == f"{disk.retention}/0-100"


def test_where_links_are_refused_the_pin_is_a_copy_and_says_so(
    disk: StoreWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: Any, **__: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    disk.save(100)
    pinned = disk.secure(100)
    assert pinned.method == "copy"
    assert "does not allow hard links" in pinned.note
    assert os.stat(f"{pinned.path}/params.npz").st_nlink == 1


def test_a_missing_folder_and_an_empty_one(disk: StoreWorld) -> None:
    error = refusal(Reason.MISSING, disk.secure, 100)
    assert "complete ones there: none" in error.message
    os.rmdir(disk.location)
    assert "is not there" in refusal(Reason.STORE_UNREACHABLE, disk.secure, 100).message


def test_a_step_that_was_never_saved_is_told_from_one_that_rotation_removed(disk: StoreWorld) -> None:
    for step in (100, 200):
        disk.save(step)
    for step, skipped in ((50, False), (150, True), (250, False)):
        assert (SKIPPED in refusal(Reason.MISSING, disk.secure, step).message) is skipped, step


def test_rotation_during_the_link_loop_falls_back_to_an_earlier_one(
    disk: StoreWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (90, 100):
        disk.save(step)
    linked: list[str] = []
    link = os.link

    def racing(source: str, *args: Any, **more: Any) -> None:
        if "step-100" in os.readlink(f"/proc/self/fd/{more['src_dir_fd']}") and linked:
            disk.rotate(100)
        linked.append(source)
        link(source, *args, **more)

    monkeypatch.setattr(os, "link", racing)
    secured = disk.secure(100, lag=10)
    assert secured.step == 90
    assert "rotation" in secured.note
    disk.save(100)
    linked.clear()
    assert "rotation" in refusal(Reason.INCOMPLETE, disk.secure, 100).message
    assert sorted(os.listdir(f"{disk.location}/.evalstop/{OWNER}")) == ["0-90", "0-90.files.json"]


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_every_layout_goes_round(layout: str, tmp_path: Path) -> None:
    for step in (50, 100):
        save(tmp_path / "ckpt", layout, step)
    request = Request("secure", layout, OWNER, str(tmp_path / "ckpt"), 100)
    pinned = carry_out(request)
    shutil.rmtree(tmp_path / "ckpt" / FOLDERS[layout].format(100))
    source = Source(pinned.path, pinned.digest, 100)
    location, kept_at = str(tmp_path / "ckpt"), str(tmp_path / "kept")
    kept = carry_out(Request("retain", layout, OWNER, location, 100, source=source, destination=kept_at))
    source = Source(kept.path, kept.digest, 100)
    for _ in range(2):
        back = carry_out(Request("restore", layout, OWNER, location, 100, source=source, destination=kept_at))
        assert back.digest == pinned.digest
        assert back.path.rpartition("/")[2] == LAYOUTS[layout].own_name(100)
    if layout == "OpenRLHF":
        assert Path(back.path, "_actor", "latest").read_text() == "global_step100"
        assert not Path(back.path, "_critic").exists()


def test_two_workers_at_once_agree(disk: StoreWorld) -> None:
    disk.save(100)
    results: list[Result] = []
    start = threading.Barrier(4)

    def work() -> None:
        start.wait()
        results.append(disk.secure(100))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert {r.digest for r in results} == {results[0].digest}
    for result in results:
        assert Path(result.path, "params.npz").read_bytes() == plain(100)["params.npz"]
    assert sorted(os.listdir(f"{disk.location}/.evalstop/{OWNER}")) == ["0-100", "0-100.files.json"]


def test_full_disks_are_told_before_and_during_a_copy(
    disk: StoreWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.save(100)
    pinned = disk.secure(100)
    with monkeypatch.context() as patch:
        patch.setattr(Volume, "free", lambda self: 10)
        assert "10 are free" in refusal(Reason.OUT_OF_SPACE, disk.retain, pinned).message

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert disk.retention in refusal(Reason.OUT_OF_SPACE, disk.retain, pinned).message
    assert os.listdir(disk.retention) == []
    assert disk.retain(pinned).digest == pinned.digest


def test_unreachable_is_told(disk: StoreWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    disk.save(100)

    def broken(*_: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "scandir", broken)
    assert disk.location in refusal(Reason.STORE_UNREACHABLE, disk.secure, 100).message


def test_a_pins_folder_that_leads_elsewhere_is_not_followed(disk: StoreWorld, tmp_path: Path) -> None:
    disk.save(100)
    (tmp_path / "elsewhere").mkdir()
    os.symlink(tmp_path / "elsewhere", f"{disk.location}/.evalstop")
    refusal(Reason.INCOMPLETE, disk.secure, 100)
    assert os.listdir(tmp_path / "elsewhere") == []


def test_remains_of_a_dead_worker_go_and_those_of_a_living_one_stay(disk: StoreWorld) -> None:
    disk.save(100)
    store = Volume(disk.location)
    pins = f"{disk.location}/.evalstop/{OWNER}"
    os.makedirs(f"{pins}/.tmp-0-100-dead")
    with store.staging(f".evalstop/{OWNER}/200") as alive:
        disk.secure(100)
        assert os.path.isdir(f"{disk.location}/{alive.folder}")
        assert not os.path.exists(f"{pins}/.tmp-0-100-dead")
    assert sorted(os.listdir(pins)) == ["0-100", "0-100.files.json"]


def test_a_living_worker_on_another_node_keeps_its_staging_folder(
    disk: StoreWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some file systems keep locks to a node: there every other worker's lock seems free."""  # row 19
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    disk.save(100)
    with Volume(disk.location).staging(f".evalstop/{OWNER}/0-200") as alive:
        disk.secure(100)
        assert os.path.isdir(f"{disk.location}/{alive.folder}")


def test_coreutils_compute_the_same_digest(tmp_path: Path) -> None:
    """The recipe of docs/use/checkpoints.md."""
    folder = save(tmp_path, "Plain", 100)
    write(folder, {"odd names/ü b": b"x", "B": b"", "a": b"2"})
    recipe = (
        "find . -type f -printf '%P\\n' | LC_ALL=C sort | while IFS= read -r f; do "
        'printf \'%s %s %s\\n\' "$(sha256sum < "$f" | cut -d\' \' -f1)" "$(stat -c %s "$f")" "$f"; '
        "done | sha256sum | cut -d' ' -f1"
    )
    said = subprocess.run(["bash", "-c", recipe], cwd=folder, capture_output=True, text=True, check=True)
    store = Volume(str(folder))
    manifest = {name: store.hash(name) for name in store.files("")}
    assert tree_digest(manifest) == f"sha256:{said.stdout.strip()}"


NAMES = st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=8)
TREES = st.dictionaries(NAMES, st.binary(max_size=20), max_size=6)


def _manifest(tree: dict[str, bytes]) -> dict[str, FileDigest]:
    return {name: FileDigest(len(data), hashlib.sha256(data).hexdigest()) for name, data in tree.items()}


@given(TREES, TREES)
def test_digests_are_equal_exactly_for_equal_trees(a: dict[str, bytes], b: dict[str, bytes]) -> None:
    assert (tree_digest(_manifest(a)) == tree_digest(_manifest(b))) == (a == b)
    assert tree_digest(_manifest(dict(reversed(a.items())))) == tree_digest(_manifest(a))


def test_names_that_could_imitate_another_tree_are_refused() -> None:
    with pytest.raises(Damaged):
        tree_digest({"a\nb": FileDigest(0, "0" * 64)})


ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("save"), st.integers(1, 6)),
        st.tuples(st.just("half"), st.integers(1, 6)),
        st.tuples(st.just("rotate"), st.integers(1, 6)),
        st.tuples(st.just("best"), st.integers(1, 6)),
    ),
    max_size=25,
)


@settings(max_examples=60)
@given(acts=ACTS, lag=st.integers(0, 3))
def test_whatever_the_trainer_does_the_last_secured_stays_whole(
    acts: list[tuple[str, int]], lag: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Model: a pin answered as secured stays readable with its digest until a newer one is secured."""
    world = StoreWorld("", str(tmp_path_factory.mktemp("w")))
    os.makedirs(world.location)
    whole: set[int] = set()
    current: Result | None = None
    for act, step in acts:
        folder = f"{world.location}/step-{step}"
        if act == "rotate" or act in ("save", "half"):
            shutil.rmtree(folder, ignore_errors=True)
            whole.discard(step)
        if act in ("save", "half"):
            world.save(step)
            whole.add(step)
        if act == "half":
            os.truncate(f"{folder}/params.npz", 3)
            whole.discard(step)
        if act == "best":
            current = _secure_and_check(world, step, lag, whole, current)
        if current is not None:
            manifest = {n: Volume(current.path).hash(n) for n in Volume(current.path).files("")}
            assert tree_digest(manifest) == current.digest


def _secure_and_check(
    world: StoreWorld, step: int, lag: int, whole: set[int], current: Result | None
) -> Result | None:
    pinned = {current.step} if current is not None else set()
    expected = [s for s in whole | pinned if max(0, step - lag) <= s <= step]
    release = (current.path,) if current is not None else ()
    if not expected:
        with pytest.raises(AccessError):
            world.secure(step, lag, release)
        return current
    secured = world.secure(step, lag, release)
    assert secured.step == max(expected)
    return secured


def test_vanished_is_no_empty_folder(disk: StoreWorld) -> None:
    with pytest.raises(Vanished):
        Volume(disk.location).files("step-1")
