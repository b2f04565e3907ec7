"""Secure: put the best checkpoint beside the trainer's own, where its rotation does not look.

On a volume the pin is a tree of hard links, so it costs no space and no copying. What is linked cannot be
taken away by rotation any more; its names, sizes and times of writing are compared before linking and after,
so that what was judged is what was linked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from controller.checkpoints import pieces
from controller.checkpoints.digest import Manifest, hash_files, tree_digest
from controller.checkpoints.errors import AccessError, Damaged, Reason, Vanished
from controller.checkpoints.inventory import branch_life, signatures_of
from controller.checkpoints.judge import SAVE_RECORD, Survey, Verdict
from controller.checkpoints.layouts import Candidate, Folder, Layout
from controller.checkpoints.pins import NOBODY, parse_pin, pin_folder, pin_name, pins_folder
from controller.checkpoints.progress import METER
from controller.checkpoints.request import Request, Result, Source
from controller.checkpoints.store import Store, away, publish, read_json

AVAILABLE_LOOKED_AT = 20  # checkpoints judged to tell a person which steps there are
FILES_SUFFIX = ".files.json"  # beside a pin: signatures of its files when its digest was taken
FILES_LIMIT = 32 << 20  # bytes, of about 300,000 files


@dataclass(frozen=True, slots=True)
class PublishedCheckpoint:
    """A published folder and what is in it."""

    folder: str  # relative to its store
    manifest: Manifest
    digest: str

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.manifest.values())


@dataclass(frozen=True, slots=True)
class Pinned:
    """A pin with what is known of the checkpoint in it."""

    kept: PublishedCheckpoint
    attempt: str
    evidence: str
    method: str = ""  # "" where it was there already


def secure(store: Store, layout: Layout, request: Request) -> Result:
    """Pin the checkpoint of ``request.step``, else the nearest earlier complete one within the lag.

    Only checkpoints of the request's branch count. Repeating it is safe: what is pinned already and still
    sound is answered again.

    Raises:
        AccessError: MISSING (nothing in the window), INCOMPLETE (something, but nothing complete),
            STORE_UNREACHABLE (also where the location itself is not there), OUT_OF_SPACE, INTERRUPTED.
    """
    lowest = max(0, request.step - request.max_step_lag)
    told: list[str] = []
    if not store.exists():
        raise away(store)
    survey = Survey(store, layout, request.owner, request.branch)
    pins = pins_by_step(store, request)
    window = {
        step for step in ({c.step for c in survey.candidates} | pins.keys()) if lowest <= step <= request.step
    }
    for step in sorted(window, reverse=True):
        found = _try(survey, request, step, pins.get(step, []), told)
        if found is not None:
            break
    else:
        raise _nothing(survey, request, lowest, told)
    kept = found.kept
    pieces.record(store, kept.folder, kept.manifest)
    return Result(
        step=step,
        path=store.path(kept.folder),
        digest=kept.digest,
        source_digest=kept.digest,
        bytes=kept.bytes,
        files=len(kept.manifest),
        method=found.method,
        note=_note(found.method, told),
        attempt=found.attempt,
        evidence=found.evidence,
    )


def check(store: Store, request: Request) -> Result:
    """Return whether the pin at ``request.source`` is unchanged since its digest, by the signatures noted
    then.

    Raises:
        AccessError: MISSING (it is gone), DIGEST_MISMATCH (a file changed, came or went, or the digest noted
        is
            another one), STORE_UNREACHABLE.
    """
    source = request.source
    assert source is not None  # Request.parse saw to it
    folder = pin_folder(request.location, request.owner, source.path)
    try:
        now = store.signatures(folder)
    except Vanished as gone:
        raise AccessError(Reason.MISSING, f"the pin of step {source.step} is gone: {gone}") from gone
    noted = _noted(store, folder)
    if noted is None:
        raise _changed(source, f"{store.path(folder)}{FILES_SUFFIX} cannot be read")
    if noted.get("digest") != source.digest:
        raise _changed(source, f"it has digest {noted.get('digest')}, {source.digest} was recorded")
    then = noted["files"]
    for name in sorted({*now, *then}):
        if now.get(name) != then.get(name):
            raise _changed(source, f"{name} was written, added or removed after that")
    sizes = [int(signature.split(":")[0]) for signature in now.values()]
    return Result(
        step=source.step,
        path=source.path,
        digest=source.digest,
        source_digest=source.digest,
        bytes=sum(sizes),
        files=len(sizes),
        attempt=str(noted.get("attempt") or ""),
        evidence=str(noted.get("evidence") or ""),
    )


def release(store: Store, request: Request, kept: str) -> None:
    """Let the pins go that the request names by their exact paths, except what lies at ``kept``."""
    source = request.source.path if request.source is not None else ""
    for path in request.release:
        if path not in (kept, source):
            folder = pin_folder(request.location, request.owner, path)
            store.remove(folder)
            store.delete(f"{folder}{FILES_SUFFIX}")


def pins_by_step(store: Store, request: Request) -> dict[int, list[str]]:
    """Return the published pins of this RLHFJob by step, of the attempts whose checkpoints count."""
    try:
        names = store.folders(pins_folder(request.owner))
    except Vanished:
        return {}
    found: dict[int, list[str]] = {}
    for pin in sorted({pin for pin in map(parse_pin, names) if pin is not None}):
        if _counts(request, pin.attempt, pin.step):
            name = f"{pins_folder(request.owner)}/{pin_name(pin.attempt, pin.step)}"
            found.setdefault(pin.step, []).extend(store.published(name))
    return found


def _counts(request: Request, attempt: str, step: int) -> bool:
    if not request.branch:
        return True
    life = branch_life(request.branch, step)
    if life is not None and life.attempt == attempt:
        return True
    return attempt == NOBODY and any(one.base == step for one in request.branch)


def inspect(
    store: Store, layout: Layout, folder: str, step: int, recorded: bool = False
) -> PublishedCheckpoint:
    """Read a published or staged folder whole and hold it against what its format says of itself.

    ``recorded``: it is known to be whole, so that only digests it may carry are compared.

    Raises:
        Damaged: something in it is certainly wrong, or its content is not what it says of itself.
        Vanished: it, or a part of it, is not there.
    """
    content = Folder(store, (("", folder),))
    problem = None if recorded else layout.problem(content, step)
    if problem:
        raise Damaged(problem)
    METER.begin("Reading", sum(content.files().values()))
    manifest = hash_files(content.files(), lambda name: store.hash(content.where(name)))
    problem = layout.mismatch(content, manifest)
    if problem:
        raise Damaged(problem)
    return PublishedCheckpoint(folder, manifest, tree_digest(manifest))


def _try(survey: Survey, request: Request, step: int, pins: list[str], told: list[str]) -> Pinned | None:
    """Pin one step. ``told`` gathers why it did not work."""
    for candidate in survey.of_step(step):
        verdict = survey.verdict(candidate)
        problem = verdict.problem
        if problem is None:
            try:
                return _pin(survey, request, candidate, verdict)
            except Vanished:
                problem = "removed by the trainer's rotation while it was being secured"
            except Damaged as damage:
                problem = str(damage)
        told.append(f"step {step}: {problem}")
    # Rotated away since: a pin of this step that is there already, by an earlier try, serves as well.
    for folder in pins:
        try:
            return intact(survey.store, survey.layout, folder, step)
        except (Damaged, Vanished) as damage:
            told.append(f"pin of step {step}: {damage}")
    return None


def _pin(survey: Survey, request: Request, candidate: Candidate, verdict: Verdict) -> Pinned:
    store, layout, step = survey.store, survey.layout, candidate.step
    target = f"{pins_folder(request.owner)}/{pin_name(verdict.attempt, step)}"
    # As it was judged, not as it is by now: rotation may have begun in between.
    content, before = candidate.content(store), _times(survey.looked_at(candidate))
    key = store.fingerprint(content.where(name) for name in content.files())
    METER.begin("Copying", sum(content.files().values()))
    with store.staging(target, key) as stage:
        methods = {
            store.duplicate(content.where(name), f"{stage.folder}/{name}") for name in sorted(content.files())
        }
        if _written(store, candidate) != before:
            raise Damaged("files came, went or were written while it was being linked")
        linked = store.signatures(stage.folder)
        staged = inspect(store, layout, stage.folder, step, verdict.evidence == SAVE_RECORD)
        if {name: file.size for name, file in staged.manifest.items()} != content.files():
            raise Damaged("what was linked is not what was there before")
        kept, new = publish(
            stage,
            staged.digest,
            same=lambda: _same(store, layout, target, step, staged.digest),
            kept=lambda folder: PublishedCheckpoint(folder, staged.manifest, staged.digest),
            note=lambda folder: _note_files(store, staged, folder, linked, verdict),
        )
        return Pinned(kept, verdict.attempt, verdict.evidence, "+".join(sorted(methods)) if new else "")


def _written(store: Store, candidate: Candidate) -> dict[str, str]:
    return _times(signatures_of(store, candidate))


def _times(signatures: Mapping[str, str]) -> dict[str, str]:
    """Sizes and times of writing by name: linking changes neither."""
    return {name: text.rpartition(":")[0] for name, text in signatures.items()}


def unchanged(store: Store, folder: str) -> bool:
    """Return whether a pin's files are those that were noted with its digest, by their signatures alone."""
    noted = _noted(store, folder)
    return noted is not None and noted["files"] == store.signatures(folder)


def intact(store: Store, layout: Layout, folder: str, step: int) -> Pinned:
    """Return a pin that is there, read again.

    Raises:
        Damaged: it is not what was pinned.
        Vanished: it is gone.
    """
    noted = _noted(store, folder)
    kept = inspect(store, layout, folder, step, noted is not None)  # judged when it was pinned
    pin = parse_pin(folder.removeprefix(f"{folder.split('/')[0]}/{folder.split('/')[1]}/").split("/")[0])
    attempt = pin.attempt if pin is not None else NOBODY
    if noted is None:
        # Pins are published with one. Without it nothing tells whether another process wrote into it since.
        raise Damaged(f"what was pinned cannot be told: {store.path(folder)}{FILES_SUFFIX} cannot be read")
    if noted.get("digest") != kept.digest:
        raise Damaged(f"it was changed since it was pinned: {noted.get('digest')} then, {kept.digest} now")
    return Pinned(kept, attempt, str(noted.get("evidence") or ""))


def _same(store: Store, layout: Layout, target: str, step: int, digest: str) -> PublishedCheckpoint | None:
    for folder in store.published(target):
        with suppress(Damaged, Vanished):
            found = intact(store, layout, folder, step).kept
            if found.digest == digest:
                return found
    return None


def _note_files(
    store: Store, staged: PublishedCheckpoint, folder: str, signatures: Mapping[str, str], verdict: Verdict
) -> None:
    """Write down, before a pin is published as ``folder``, what its files were before its digest was taken.

    A pin that were there without it, its maker killed in between, could be written into by another process,
    and nothing would tell. The other way round, a note without a pin, is overwritten by the next try.

    Raises:
        Damaged: they were written to meanwhile.
    """
    now = store.signatures(staged.folder)
    if now != dict(signatures):
        raise Damaged("it was written to while it was being secured")
    document = {
        "digest": staged.digest,
        "attempt": verdict.attempt,
        "evidence": verdict.evidence,
        "files": now,
    }
    store.write(f"{folder}{FILES_SUFFIX}", json.dumps(document, sort_keys=True).encode() + b"\n")


def _noted(store: Store, folder: str) -> dict[str, Any] | None:
    try:
        raw = read_json(store, f"{folder}{FILES_SUFFIX}", FILES_LIMIT)
    except (Vanished, Damaged, ValueError):
        return None
    return raw if isinstance(raw, dict) and isinstance(raw.get("files"), dict) else None


def _changed(source: Source, how: str) -> AccessError:
    return AccessError(
        Reason.DIGEST_MISMATCH, f"the pin of step {source.step} at {source.path} is not what it was: {how}"
    )


def _nothing(survey: Survey, request: Request, lowest: int, told: list[str]) -> AccessError:
    store = survey.store
    available = survey.complete_steps(AVAILABLE_LOOKED_AT)
    window = f"step {request.step}" if lowest == request.step else f"steps {lowest} to {request.step}"
    there = ", ".join(map(str, available)) if available else "none"
    where = f"in {store.root} (layout {survey.layout.name}); complete ones there: {there}"
    if told:
        return AccessError(
            Reason.INCOMPLETE, f"no complete checkpoint of {window} {where}; {'; '.join(told[:5])}", available
        )
    return AccessError(Reason.MISSING, f"no checkpoint of {window} {where}", available)


def _note(method: str, told: list[str]) -> str:
    notes = list(told[:3])
    if "copy" in method:
        notes.append("the store does not allow hard links here, so the pin is a copy")
    return "; ".join(notes)
