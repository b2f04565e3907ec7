"""Secure: put the best checkpoint beside the trainer's own, where its rotation does not look.

On a volume the pin is a tree of hard links, so it costs no space and no copying. It is linked first and
judged afterwards: once linked, rotation cannot take a file away any more, so what was judged is what stays.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from controller.checkpoints import pieces
from controller.checkpoints.digest import Manifest, hash_files, tree_digest
from controller.checkpoints.errors import AccessError, Damaged, Reason, Vanished
from controller.checkpoints.layouts import Candidate, Folder, Layout, judge
from controller.checkpoints.pins import NOBODY, parse_pin, pin_folder, pin_name, pins_folder
from controller.checkpoints.progress import METER
from controller.checkpoints.request import Request, Result
from controller.checkpoints.store import Store, publish

AVAILABLE_LOOKED_AT = 20  # checkpoints judged to tell a person which steps there are


@dataclass(frozen=True, slots=True)
class Kept:
    """A published folder and what is in it."""

    folder: str  # relative to its store
    manifest: Manifest
    digest: str

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.manifest.values())


def secure(store: Store, layout: Layout, request: Request) -> Result:
    """Pin the checkpoint of ``request.step``, else the nearest earlier complete one within the lag.

    Repeating it is safe: what is pinned already and still sound is answered again.

    Raises:
        AccessError: MISSING (nothing in the window), INCOMPLETE (something, but nothing complete),
            STORE_UNREACHABLE, OUT_OF_SPACE, INTERRUPTED.
    """
    lowest = max(0, request.step - request.max_step_lag)
    told: list[str] = []
    if not store.exists():
        raise AccessError(Reason.MISSING, f"checkpoint folder {store.root} does not exist")
    candidates = {c.step: c for c in layout.candidates(store)}
    pinned = {step for step in _pinned_steps(store, request) if lowest <= step <= request.step}
    window = {step for step in candidates if lowest <= step <= request.step} | pinned
    for step in sorted(window, reverse=True):
        kept, method = _try(store, layout, request, step, candidates.get(step), told)
        if kept is not None:
            break
    else:
        raise _nothing(store, layout, request, lowest, list(candidates.values()), told)
    pieces.record(store, kept.folder, kept.manifest)
    return Result(
        step=step,
        path=store.path(kept.folder),
        digest=kept.digest,
        source_digest=kept.digest,
        bytes=kept.bytes,
        files=len(kept.manifest),
        method=method,
        note=_note(method, told),
        attempt=attempt_of(request, step),
    )


def release(store: Store, request: Request, kept: str) -> None:
    """Let the pins go that the request names by their exact paths, except what lies at ``kept``."""
    source = request.source.path if request.source is not None else ""
    for path in request.release:
        if path not in (kept, source):
            store.remove(pin_folder(request.location, request.owner, path))


def attempt_of(request: Request, step: int) -> str:
    """The life whose checkpoint of a step counts."""
    return next((life.attempt for life in request.branch if step > life.after), NOBODY)


def pins_of_step(store: Store, request: Request, step: int) -> list[str]:
    """Published pins of a step, of the life whose checkpoint of it counts."""
    return store.published(f"{pins_folder(request.owner)}/{pin_name(attempt_of(request, step), step)}")


def inspect(store: Store, layout: Layout, folder: str, step: int) -> Kept:
    """Read a published or staged folder whole and judge it as a checkpoint of ``step``.

    Raises:
        Damaged: it is not a complete checkpoint, or its content is not what it says of itself.
        Vanished: it, or a part of it, is not there.
    """
    content = Folder(store, (("", folder),))
    problem = layout.problem(content, step)
    if problem:
        raise Damaged(problem)
    METER.begin("Reading", sum(content.files().values()))
    manifest = hash_files(content.files(), lambda name: store.hash(content.where(name)))
    problem = layout.mismatch(content, manifest)
    if problem:
        raise Damaged(problem)
    return Kept(folder, manifest, tree_digest(manifest))


def _try(
    store: Store,
    layout: Layout,
    request: Request,
    step: int,
    candidate: Candidate | None,
    told: list[str],
) -> tuple[Kept | None, str]:
    """Pin one step. ``told`` gathers why it did not work."""
    target = f"{pins_folder(request.owner)}/{pin_name(attempt_of(request, step), step)}"
    if candidate is not None:
        problem = judge(layout, store, candidate)
        if problem is None:
            try:
                return _pin(store, layout, candidate, target)
            except Vanished:
                problem = "removed by the trainer's rotation while it was being secured"
            except Damaged as damage:
                problem = str(damage)
        told.append(f"step {step}: {problem}")
    # Rotated away since: a pin of this step that is there already, by an earlier try, serves as well.
    for folder in store.published(target):
        try:
            return inspect(store, layout, folder, step), ""
        except (Damaged, Vanished) as damage:
            told.append(f"pin of step {step}: {damage}")
    return None, ""


def _pin(store: Store, layout: Layout, candidate: Candidate, target: str) -> tuple[Kept, str]:
    content = candidate.content(store)
    key = store.fingerprint(content.where(name) for name in content.files())
    METER.begin("Copying", sum(content.files().values()))
    with store.staging(target, key) as stage:
        methods = {
            store.duplicate(content.where(name), f"{stage.folder}/{name}") for name in sorted(content.files())
        }
        staged = inspect(store, layout, stage.folder, candidate.step)
        kept, new = publish(
            stage,
            staged.digest,
            same=lambda: _same(store, layout, target, candidate.step, staged.digest),
            kept=lambda folder: Kept(folder, staged.manifest, staged.digest),
        )
        return kept, "+".join(sorted(methods)) if new else ""


def _same(store: Store, layout: Layout, target: str, step: int, digest: str) -> Kept | None:
    for folder in store.published(target):
        with suppress(Damaged, Vanished):
            found = inspect(store, layout, folder, step)
            if found.digest == digest:
                return found
    return None


def _pinned_steps(store: Store, request: Request) -> set[int]:
    try:
        folders = store.folders(pins_folder(request.owner))
    except Vanished:
        return set()
    pins = [pin for pin in map(parse_pin, folders) if pin is not None]
    return {pin.step for pin in pins if pin.attempt == attempt_of(request, pin.step)}


def available_steps(store: Store, layout: Layout, candidates: list[Candidate]) -> list[int]:
    """Steps of complete checkpoints among the newest, ascending: what a person is told is there."""
    newest = sorted(candidates, key=lambda c: -c.step)[:AVAILABLE_LOOKED_AT]
    return sorted(c.step for c in newest if judge(layout, store, c) is None)


def _nothing(
    store: Store, layout: Layout, request: Request, lowest: int, candidates: list[Candidate], told: list[str]
) -> AccessError:
    available = available_steps(store, layout, candidates)
    window = f"step {request.step}" if lowest == request.step else f"steps {lowest} to {request.step}"
    there = ", ".join(map(str, available)) if available else "none"
    where = f"in {store.root} (layout {layout.name}); complete ones there: {there}"
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
