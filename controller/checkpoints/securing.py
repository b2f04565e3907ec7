"""Secure: put the best checkpoint beside the trainer's own, where its rotation does not look.

On a volume the pin is a tree of hard links, so it costs no space and no copying. What is linked cannot be
taken away by rotation any more; its names, sizes and times of writing are compared before linking and after,
so that what was judged is what was linked.
"""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from controller.checkpoints import fence, pieces
from controller.checkpoints.digest import WORKERS, Manifest, hash_files, tree_digest
from controller.checkpoints.errors import AccessError, Damaged, Reason, Vanished, suppress_unreadable
from controller.checkpoints.inventory import branch_lives, signatures_of
from controller.checkpoints.judge import SAVE_RECORD, Survey, Verdict
from controller.checkpoints.layouts import Candidate, Folder, Layout
from controller.checkpoints.pins import NOBODY, Pin, parse_pin, pin_folder, pin_name, pins_folder
from controller.checkpoints.progress import METER
from controller.checkpoints.recognition import misnamed, recognised, several
from controller.checkpoints.request import Request, Result, Source
from controller.checkpoints.store import Store, away, publish, read_json
from controller.checkpoints.volume import Volume
from controller.checkpoints.workers import each
from controller.frozen import dataclass
from controller.policy.job import is_linked
from controller.policy.wording import (
    LINKS,
    NO_CHECKPOINT,
    NONE_OF_THIS_RUN,
    SKIPPED,
    agreeing,
    counted,
    did_you_mean,
    some,
)

AVAILABLE_LOOKED_AT = 20  # checkpoints judged to tell a person which steps there are
LINKS_LOOKED_AT = 1000  # entries of a folder among which links are looked for
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
    method: str
    new: bool = False  # it was made just now


def secure(store: Store, layout: Layout, request: Request) -> Result:
    """Pin the checkpoint of ``request.step``, else the nearest earlier complete one within the lag.

    Only checkpoints of the request's branch count. Repeating it is safe: what is pinned already and still
    sound is answered again.

    Raises:
        AccessError: MISSING (nothing in the window), INCOMPLETE (something, but nothing complete),
            STORE_UNREACHABLE (also where the location itself is not there), OUT_OF_SPACE, INTERRUPTED.
    """
    lowest = max(0, request.step - request.max_step_lag)
    problems: list[str] = []
    if not store.exists():
        raise away(store)
    survey = Survey(store, layout, request.owner, request.branch, request.later)
    pins = pins_by_step(store, request)
    window = {
        step for step in ({c.step for c in survey.candidates} | pins.keys()) if lowest <= step <= request.step
    }
    for step in sorted(window, reverse=True):
        found = _try(survey, request, step, pins.get(step, []), problems)
        if found is not None:
            break
    else:
        raise _nothing(survey, request, lowest, problems)
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
        note=_note(found, problems),
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
    source, folder = _source(request)
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
        method=str(noted.get("method") or ""),
        attempt=str(noted.get("attempt") or ""),
        evidence=str(noted.get("evidence") or ""),
    )


def detach(store: Store, request: Request) -> Result:
    """Copy the linked pin at ``request.source``, so that it no longer shares files with the trainer's.

    The copy is flushed, read back and published beside the pin, which stays as it is. Repeating it is safe:
    a copy that is there is answered again, and so is a pin that shares nothing.

    Raises:
        AccessError: MISSING (the pin is gone), DIGEST_MISMATCH (it was written over, before or meanwhile),
            COPY_DAMAGED (what was written reads back otherwise), OUT_OF_SPACE, STORE_UNREACHABLE,
            INTERRUPTED.
    """
    source, folder = _source(request)
    done = check(store, request)
    if not is_linked(done.method):
        return done
    pin = parse_pin(folder.split("/")[2])
    assert pin is not None  # pin_folder saw to it
    name = f"{pins_folder(request.owner)}/{pin_name(pin.attempt, pin.step)}"
    files = sorted(store.files(folder))
    METER.begin("Copying", 2 * done.bytes)  # read once to copy, once to compare
    with store.staging(name) as stage:
        each(files, lambda one: store.copy(f"{folder}/{one}", f"{stage.folder}/{one}"), WORKERS)
        written = store.signatures(stage.folder)
        manifest = hash_files(files, lambda one: store.hash(f"{stage.folder}/{one}", fresh=True))
        digest = tree_digest(manifest)
        if digest != source.digest:
            check(store, request)
            now = tree_digest(hash_files(files, lambda one: store.hash(f"{folder}/{one}")))
            if now != source.digest:
                raise _changed(source, f"it has digest {now}, {source.digest} was recorded")
            raise AccessError(
                Reason.COPY_DAMAGED, f"a copy of {source.path} has digest {digest}, expected {source.digest}"
            )
        copied = PublishedCheckpoint(stage.folder, manifest, digest)
        how = {"attempt": done.attempt, "evidence": done.evidence, "method": "copy"}
        found, _ = publish(
            stage,
            hashlib.sha256(f"copy {digest}".encode()).hexdigest(),  # the link may have the digest's own name
            same=lambda: _copy_beside(store, name, digest),
            kept=str,
            note=lambda final: _note_files(store, copied, final, written, how),
        )
    pieces.record(store, found, manifest)
    return replace(done, path=store.path(found), method="copy")


def changed_pins(store: Store, owner: str) -> tuple[str, ...]:
    """Return the paths of an RLHFJob's pins whose files are not those that were noted with their digest.

    Sizes, times of writing and inodes are compared; the content is not read. Pins that cannot be read now
    are not among them.
    """
    found = []
    with suppress(Vanished, Damaged), suppress_unreadable():
        for folder in [folder for _, folders in _pins(store, owner) for folder in folders]:
            with suppress(Vanished, Damaged), suppress_unreadable():
                noted = _noted(store, folder)
                if noted is not None and noted["files"] != store.signatures(folder):
                    found.append(store.path(folder))
    return tuple(found)


def _source(request: Request) -> tuple[Source, str]:
    """Return the pin that a request is about, and its folder."""
    assert request.source is not None  # Request.parse saw to it
    return request.source, pin_folder(request.location, request.owner, request.source.path)


def _copy_beside(store: Store, name: str, digest: str) -> str | None:
    """Return the folder of a pin of that name and content that shares nothing; None: there is none."""
    for folder in store.published(name):
        with suppress(Vanished):
            noted = _noted(store, folder) or {}
            own = not is_linked(str(noted.get("method")))
            if own and noted.get("digest") == digest and noted["files"] == store.signatures(folder):
                return folder
    return None


def release(store: Store, request: Request, kept: str) -> None:
    """Let the pins go that the request names by their exact paths, except what lies at ``kept``.

    Raises:
        AccessError: INTERRUPTED, the request was given up and a newer one has been there.
    """
    source = request.source.path if request.source is not None else ""
    for path in request.release:
        if path not in (kept, source):
            folder = pin_folder(request.location, request.owner, path)
            fence.check(store, request)
            store.remove(folder)
            store.delete(f"{folder}{FILES_SUFFIX}")


def pins_by_step(store: Store, request: Request) -> dict[int, list[str]]:
    """Return the published pins of this RLHFJob by step, of the attempts whose checkpoints count."""
    found: dict[int, list[str]] = {}
    with suppress(Vanished):
        for pin, folders in _pins(store, request.owner):
            if _counts(request, pin.attempt, pin.step):
                found.setdefault(pin.step, []).extend(folders)
    return found


def _pins(store: Store, owner: str) -> Iterator[tuple[Pin, list[str]]]:
    """Yield what an RLHFJob's pins are of, with the folders published for each. Raises: Vanished."""
    names = store.folders(pins_folder(owner))
    for pin in sorted({pin for pin in map(parse_pin, names) if pin is not None}):
        yield pin, store.published(f"{pins_folder(owner)}/{pin_name(pin.attempt, pin.step)}")


def _counts(request: Request, attempt: str, step: int) -> bool:
    if not request.branch:
        return True
    if any(life.attempt == attempt for life in branch_lives(request.branch, step)):
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


def _try(survey: Survey, request: Request, step: int, pins: list[str], problems: list[str]) -> Pinned | None:
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
        problems.append(f"step {step}: {problem}")
    # Rotated away since: a pin of this step that is there already, by an earlier try, serves as well.
    for folder in pins:
        try:
            found = intact(survey.store, survey.layout, folder, step)
            if not _of_left_branch(survey, request, step, found):
                return found
            problems.append(f"pin of step {step}: it is not the checkpoint that the run went on from")
        except (Damaged, Vanished) as damage:
            problems.append(f"pin of step {step}: {damage}")
    return None


def _of_left_branch(survey: Survey, request: Request, step: int, pin: Pinned) -> bool:
    """Return whether a pin is of files that were saved over before a process started from that step. Of a
    copy nothing tells."""
    own = any(life.after == step and life.attempt == pin.attempt for life in request.branch)
    if own or not is_linked(pin.method):
        return False
    noted = _noted(survey.store, pin.kept.folder)
    return noted is not None and survey.went_on_from_others(step, noted["files"])


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
        how = {
            "attempt": verdict.attempt,
            "evidence": verdict.evidence,
            "method": "+".join(sorted(methods)),
        }
        made = Pinned(staged, **how, new=True)
        return publish(
            stage,
            staged.digest,
            same=lambda: _same(store, layout, target, step, staged.digest),
            kept=lambda folder: replace(made, kept=replace(staged, folder=folder)),
            note=lambda folder: _note_files(store, staged, folder, linked, how),
        )[0]


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
    return Pinned(kept, attempt, str(noted.get("evidence") or ""), str(noted.get("method") or ""))


def _same(store: Store, layout: Layout, target: str, step: int, digest: str) -> Pinned | None:
    for folder in store.published(target):
        with suppress(Damaged, Vanished):
            found = intact(store, layout, folder, step)
            if found.kept.digest == digest:
                return found
    return None


def _note_files(
    store: Store,
    staged: PublishedCheckpoint,
    folder: str,
    signatures: Mapping[str, str],
    how: Mapping[str, str],
) -> None:
    """Write down, before a pin is published as ``folder``, what its files were before its digest was taken.

    ``how``: its ``attempt``, ``evidence`` and ``method``.

    A pin that were there without it, its maker killed in between, could be written into by another process,
    and nothing would tell. The other way round, a note without a pin, is overwritten by the next try.

    Raises:
        Damaged: they were written to meanwhile.
    """
    now = store.signatures(staged.folder)
    if now != dict(signatures):
        raise Damaged("it was written to while it was being secured")
    document = {**how, "digest": staged.digest, "files": now}
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


def _nothing(survey: Survey, request: Request, lowest: int, problems: list[str]) -> AccessError:
    store = survey.store
    available = survey.complete_steps(AVAILABLE_LOOKED_AT)
    window = f"step {request.step}" if lowest == request.step else f"steps {lowest} to {request.step}"
    there = ", ".join(map(str, available)) if available else "none"
    if not problems and available and available[0] < lowest <= available[-1]:
        there += f"; {SKIPPED}"
    where = f"in {store.root} (layout {survey.layout.name}); complete ones there: {there}"
    if not available:
        where += _other_layout(survey)
        if problems and all("lay there" in problem for problem in problems):
            where += f"; {NONE_OF_THIS_RUN}"
    if problems:
        return AccessError(
            Reason.INCOMPLETE,
            f"no complete checkpoint of {window} {where}; {'; '.join(problems[:5])}",
            available,
        )
    return AccessError(
        Reason.MISSING, f"no checkpoint of {window} {where}", available, lowest=survey.lowest()
    )


def _other_layout(survey: Survey) -> str:
    """Return what else lies in a folder that has no whole checkpoint of its layout, a clause; "": it has
    begun ones."""
    others = [one for one in recognised(survey.store) if one.layout.name != survey.layout.name]
    if len(others) == 1:
        name, by = others[0].layout.name, others[0].by
        return f"; what lies there is of layout {name} (by {by}): {did_you_mean(name)}"
    if others:
        return f"; what lies there is {several(others)}"
    if survey.candidates:
        return ""
    return misnamed(survey.store) or f"; {NO_CHECKPOINT} lies there{_links(survey.store)}"


def _links(store: Store) -> str:
    """Return that a folder without checkpoints holds symbolic links, a clause; "": none."""
    names = store.names("")[:LINKS_LOOKED_AT] if isinstance(store, Volume) else []
    found = []
    for name in names:
        with suppress(Vanished, Damaged), suppress_unreadable():
            if isinstance(store, Volume) and stat.S_ISLNK(store.status(name).st_mode):
                found.append(name)
    if not found:
        return ""
    links = counted(len(found), "symbolic link")
    return f"; {links} {agreeing(len(found), 'does', 'do')}: {some(found, 3)}; {LINKS}"


def _note(found: Pinned, problems: list[str]) -> str:
    notes = list(problems[:3])
    if found.new and "copy" in found.method:
        notes.append("the store does not allow hard links here, so the pin is a copy")
    return "; ".join(notes)
