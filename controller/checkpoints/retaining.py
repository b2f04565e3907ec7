"""Retain and restore: whole copies between the trainer's location and the folder it cannot reach.

A copy has inodes of its own, is made durable, and is read back: piece by piece, each must be what was read,
and what was read must be of the digest recorded when the source was secured. A hard-linked pin shares its
data with the trainer's file, so a trainer that wrote into it after the fact is found out here.

A try that ends early leaves its pieces in the staging folder, and the next one goes on with them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import field

from controller.checkpoints import digest as digests
from controller.checkpoints import fence, pieces
from controller.checkpoints.digest import Manifest, hash_files, tree_digest
from controller.checkpoints.errors import AccessError, Damaged, Reason, Vanished, suppress_unreadable
from controller.checkpoints.inventory import signatures_of
from controller.checkpoints.judge import Survey, Verdict
from controller.checkpoints.layouts import Folder, Layout
from controller.checkpoints.pins import parse_pin, pin_folder, pin_name, pins_folder
from controller.checkpoints.plan import Piece, Plan
from controller.checkpoints.progress import METER
from controller.checkpoints.request import Request, Result, Source
from controller.checkpoints.securing import (
    AVAILABLE_LOOKED_AT,
    PublishedCheckpoint,
    intact,
    pins_by_step,
    unchanged,
)
from controller.checkpoints.store import Read, Store, publish, read_json, relative, withdraw
from controller.frozen import dataclass

SEEN = ".seen.json"  # after a copy's name: what its checkpoint was when it was first seen as the latest
RESUME_FOLDER = "resume"  # beside the pins, where no trainer's rotation looks


@dataclass(frozen=True, slots=True)
class CopyTarget:
    """Target of a copy: published as ``folder``, the checkpoint in its sub-folder ``inner`` ("": itself).

    ``extra``: small files written beside the content, not part of its digest. ``fence``: raises where nothing
    may be removed any more.
    """

    store: Store
    folder: str
    inner: str = ""
    extra: Mapping[str, bytes] = field(default_factory=dict)
    fence: Callable[[], None] = lambda: None

    def within(self, folder: str) -> str:
        """Return the checkpoint's own folder inside a staged or published one."""
        return f"{folder}/{self.inner}" if self.inner else folder

    def manifest(self, folder: str) -> Manifest:
        """Return what a staged or published copy holds, read from the device."""
        content = Folder(self.store, (("", self.within(folder)),))
        return _hashes(self.store, content, self.extra)

    def published(self, digest: str) -> PublishedCheckpoint | None:
        """Return a published copy of that digest, read again to be sure."""
        for folder in self.store.published(self.folder):
            try:
                manifest = self.manifest(folder)
                if tree_digest(manifest) == digest:
                    return PublishedCheckpoint(self.within(folder), manifest, digest)
            except (Vanished, Damaged):
                continue
        return None

    def write_extra(self, folder: str, content: Folder) -> None:
        tops = {name.partition("/")[0] for name in content.files()}
        for name, data in self.extra.items():
            if (
                "/" not in name or name.partition("/")[0] in tops
            ):  # a job without critic gets no _critic/latest
                self.store.write(f"{self.within(folder)}/{name}", data)

    def clear(self) -> None:
        """Remove what is published there."""
        self.fence()
        for folder in self.store.published(self.folder):
            self.store.remove(folder)


def retain(location: Store, retention: Store, layout: Layout, request: Request) -> Result:
    """Copy the secured checkpoint to ``<destination>/<attempt>-<step>``, as its pin is named, and verify it.

    Repeating it is safe: a copy of that digest that is there already is read again and answered. What is
    retained is never overwritten or removed.

    Raises:
        AccessError: MISSING (the pin is gone), DIGEST_MISMATCH (it is not what was secured), COPY_DAMAGED
            (the copy does not read back), INCOMPLETE, OUT_OF_SPACE, STORE_UNREACHABLE, INTERRUPTED.
    """
    source = request.source
    assert source is not None  # Request.parse saw to it
    folder = pin_folder(request.location, request.owner, source.path)
    pin = parse_pin(folder.split("/")[2])
    assert pin is not None  # pin_folder saw to it
    copied, method = _copied(location, folder, CopyTarget(retention, pin_name(*pin)), source)
    latest = _retain_latest(location, retention, layout, request) if request.keep_latest else {}
    return _result(retention, copied, source, method, latest)


def restore(location: Store, retention: Store | None, layout: Layout, request: Request) -> Result:
    """Put a checkpoint where the workload can read it: ``<location>/.evalstop/<owner>/resume/<own name>``.

    With a source it is a retained one, copied and verified; without, the step is looked for among the
    job's pins and the trainer's own checkpoints and given a second name there. Whatever was restored before
    is removed; the workload is suspended meanwhile, so nobody reads it.

    Raises:
        AccessError: as `retain`.
    """
    folder = f"{pins_folder(request.owner)}/{RESUME_FOLDER}"
    target = CopyTarget(
        location,
        folder,
        layout.own_name(request.step),
        layout.resume_files(request.step),
        lambda: fence.check(location, request),
    )
    source = request.source
    if source is None:
        copied, method = _relink(*_find(location, layout, request), target, layout, request.step)
        source = Source(location.path(copied.folder), copied.digest, request.step)
    else:
        assert retention is not None  # Request.parse saw to it
        copied, method = _copied(retention, relative(retention.root, source.path), target, source)
    return _result(location, copied, source, method)


class _Changed(Exception):
    """A piece of the source is not what the plan says."""


def _copied(
    origin: Store, folder: str, target: CopyTarget, source: Source
) -> tuple[PublishedCheckpoint, str]:
    """Return a verified copy of ``folder``, published; the one that is there already, if its digest is
    right."""
    already = target.published(source.digest)
    if already is not None:
        _record(target, already)
        return already, ""
    if target.inner:
        target.fence()
        withdraw(target.store, target.folder)
    try:
        content = Folder(origin, (("", folder),))
        plan = pieces.recorded(origin, folder, source.digest)
        if plan is not None and content.files() == {n: f.size for n, f in plan.manifest.items()}:
            try:
                return _copy(origin, content, plan, target, source), "copy"
            except _Changed:
                pass  # the source, or else what was recorded of its pieces: the one reading more tells
        plan = _planned(origin, content, source)
        try:
            return _copy(origin, content, plan, target, source), "copy"
        except _Changed as changed:
            raise _other(source, str(changed)) from changed
    except Vanished as gone:
        raise AccessError(Reason.MISSING, f"checkpoint of step {source.step} is gone: {gone}") from gone


def _planned(origin: Store, content: Folder, source: Source) -> Plan:
    """Return the pieces of a source that has no record of them, or another one.

    Raises:
        AccessError: DIGEST_MISMATCH, it is not what was secured.
    """
    plan = Plan(_hashes(origin, content), digests.PIECE)
    if plan.digest != source.digest:
        raise _other(source, f"it has digest {plan.digest}")
    return plan


def _other(source: Source, found: str) -> AccessError:
    return AccessError(
        Reason.DIGEST_MISMATCH,
        f"checkpoint of step {source.step} at {source.path}: {found}, but {source.digest} was "
        "recorded: it was changed since",
    )


def _copy(
    origin: Store, content: Folder, plan: Plan, target: CopyTarget, source: Source
) -> PublishedCheckpoint:
    store = target.store

    def kept(folder: str) -> PublishedCheckpoint:
        return PublishedCheckpoint(target.within(folder), plan.manifest, plan.digest)

    before = set(store.published(target.folder))  # other content of this step, or what is damaged

    def published() -> bool:
        return bool(set(store.published(target.folder)) - before)

    with store.copying(target.folder, plan, target.inner, published) as copy:
        if copy is None:
            already = target.published(plan.digest)
            if already is None:
                raise AccessError(
                    Reason.INTERRUPTED, f"{store.path(target.folder)}: another worker has just been there"
                )
            return already
        _check_space(store, copy.missing)
        copy.fill(_reading(origin, content))
        staged = Folder(store, (("", target.within(copy.folder)),))
        target.write_extra(copy.folder, staged)
        done, _ = publish(copy, plan.digest, same=lambda: target.published(plan.digest), kept=kept)
        copy.over = True
    _record(target, done)
    return done


def _record(target: CopyTarget, copied: PublishedCheckpoint) -> None:
    """Write the list of pieces of a retained copy, which a restore reads."""
    if not target.inner and pieces.recorded(target.store, copied.folder, copied.digest) is None:
        pieces.record(target.store, copied.folder, copied.manifest)


def _reading(origin: Store, content: Folder) -> Read:
    def read(piece: Piece) -> bytes | bytearray:
        data = origin.read_piece(content.where(piece.name), piece.start, piece.size)
        if hashlib.sha256(data).hexdigest() != piece.sha256:
            raise _Changed(f"{piece.name} is another from byte {piece.start} on")
        return data

    return read


def _check_space(store: Store, needed: int) -> None:
    free = store.free()
    if free is not None and needed > free:
        raise AccessError(
            Reason.OUT_OF_SPACE, f"{store.root}: the checkpoint needs {needed} bytes more, {free} are free"
        )


def _hashes(store: Store, content: Folder, extra: Mapping[str, bytes] | None = None) -> Manifest:
    sizes = content.files()
    inside = [name for name in sizes if name not in (extra or {})]
    METER.begin("Reading", sum(sizes[name] for name in inside))
    return hash_files(inside, lambda name: store.hash(content.where(name), fresh=True))


def _retain_latest(location: Store, retention: Store, layout: Layout, request: Request) -> dict[str, object]:
    """Retain the newest complete checkpoint beside the best one, and return what to report of it.

    A failure is reported; it does not undo that the best checkpoint was retained.
    """
    survey = Survey(location, layout, request.owner, request.branch, request.later)
    for candidate in survey.candidates:
        if request.source is not None and candidate.step <= request.source.step:
            break
        verdict = Verdict("it cannot be read")
        with suppress_unreadable(), suppress(Vanished, Damaged):
            before = signatures_of(location, candidate)
            verdict = survey.verdict(candidate)
        if verdict.problem is not None:
            continue
        name = pin_name(verdict.attempt, candidate.step)
        try:
            content = candidate.content(location)
            plan = Plan(_hashes(location, content), digests.PIECE)
            if signatures_of(location, candidate) != before:
                raise Damaged("it was written, or exchanged, after it had been judged")
            _first_seen(retention, name, plan.digest)
            source = Source(location.path(candidate.parts[0][1]), plan.digest, candidate.step)
            target = CopyTarget(retention, name)
            copied = target.published(plan.digest) or _copy(location, content, plan, target, source)
        except (AccessError, Vanished, Damaged, _Changed) as error:
            if isinstance(error, AccessError) and error.reason is Reason.INTERRUPTED:
                raise
            return {"step": candidate.step, "problem": str(error)[:300]}
        return {"step": candidate.step, "path": retention.path(copied.folder), "digest": copied.digest}
    return {}


def _first_seen(retention: Store, checkpoint: str, digest: str) -> None:
    """Note the digest that the latest checkpoint had when it was first seen whole.

    Nothing recorded one when it was saved, so that from try to try it could become somebody else's.

    Raises:
        Damaged: it had another.
    """
    name = f"{checkpoint}{SEEN}"
    try:
        noted = read_json(retention, name).get("digest")
    except (Vanished, Damaged, ValueError, AttributeError):
        noted = None
    if noted is None:
        retention.write(name, json.dumps({"digest": digest}).encode() + b"\n")
    elif noted != digest:
        raise Damaged(f"it has digest {digest}, and had {noted} when it was first seen")


def _find(store: Store, layout: Layout, request: Request) -> tuple[Folder, Mapping[str, str]]:
    """Return a complete checkpoint of exactly the step asked for, in the location.

    With the signatures of its files as it was judged: rotation may have begun in between. A pin has none.
    """
    problems: list[str] = []
    for folder in pins_by_step(store, request).get(request.step, []):
        content = Folder(store, (("", folder),))
        try:
            if not unchanged(store, folder):
                intact(store, layout, folder, request.step)
            return content, {}
        except (Damaged, Vanished) as damage:
            problems.append(f"pin: {damage}")
    survey = Survey(store, layout, request.owner, request.branch, request.later)
    for candidate in survey.of_step(request.step):
        problem = survey.verdict(candidate).problem
        if problem is None:
            return candidate.content(store), survey.looked_at(candidate)
        problems.append(problem)
    raise _not_found(survey, request.step, problems)


def _not_found(survey: Survey, step: int, problems: list[str]) -> AccessError:
    store, available = survey.store, survey.complete_steps(AVAILABLE_LOOKED_AT)
    there = ", ".join(map(str, available)) if available else "none"
    reason = Reason.INCOMPLETE if problems else Reason.MISSING
    why = f"; {'; '.join(problems)}" if problems else ""
    return AccessError(
        reason,
        f"no complete checkpoint of step {step} in {store.root}; complete ones: {there}{why}",
        available,
    )


def _relink(
    content: Folder, judged: Mapping[str, str], target: CopyTarget, layout: Layout, step: int
) -> tuple[PublishedCheckpoint, str]:
    """Link the checkpoint under a second name that rotation does not know, and return it.

    No data is copied on a volume. ``judged``: the signatures of its files when it was found whole; empty: of
    a pin, which nobody takes files from.
    """
    store = target.store
    key = store.fingerprint(content.where(name) for name in content.files())
    with store.staging(target.folder, key) as stage:
        inside = target.within(stage.folder)
        methods = {
            store.duplicate(content.where(name), f"{inside}/{name}") for name in sorted(content.files())
        }
        staged = Folder(store, (("", inside),))
        manifest = _hashes(store, staged)
        problem = layout.mismatch(staged, manifest)
        if staged.files() != content.files() or (judged and content.files().keys() != judged.keys()):
            problem = "files came, went or were written while it was being linked"
        if problem:
            raise AccessError(Reason.INCOMPLETE, f"checkpoint of step {step}: {problem}")
        digest = tree_digest(manifest)
        already = target.published(digest)
        if already is not None:
            return already, ""
        target.clear()
        target.write_extra(stage.folder, staged)
        copied, _ = publish(
            stage,
            digest,
            same=lambda: target.published(digest),
            kept=lambda folder: PublishedCheckpoint(target.within(folder), manifest, digest),
        )
        return copied, "+".join(sorted(methods))


def _result(
    store: Store,
    copied: PublishedCheckpoint,
    source: Source,
    method: str,
    latest: Mapping[str, object] | None = None,
) -> Result:
    return Result(
        step=source.step,
        path=store.path(copied.folder),
        digest=copied.digest,
        source_digest=source.digest,
        bytes=copied.bytes,
        files=len(copied.manifest),
        method=method,
        latest=latest or {},
    )
