"""Recognise the layout of a location's checkpoints by what lies there (`spec.checkpoints.layout: Auto`).

Names alone do not tell: Plain and TorchDCP both call a folder ``step-<N>``. So a layout is found by a file
that only its trainer writes, in one of its newest checkpoints. Where two are found, none is chosen.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress

from controller import names
from controller.checkpoints.errors import Damaged, Vanished, suppress_unreadable
from controller.checkpoints.layouts import LAYOUTS, Candidate, Layout
from controller.checkpoints.layouts.base import Evidence, Numbered, Times
from controller.checkpoints.store import Store
from controller.checkpoints.weights import Content
from controller.frozen import dataclass
from controller.policy.wording import MISNAMED, NO_CHECKPOINT

LOOKED_AT = 8  # of each layout's newest checkpoints
FOLDERS_LOOKED_AT = 50  # of a location without checkpoints, for what is one in all but its name


@dataclass(frozen=True, slots=True)
class Recognised:
    """A layout, and the file that only its trainer writes, by its name in the store."""

    layout: Layout
    by: str


class _Every(Numbered):
    """All layouts at once, for what only asks which checkpoints lie somewhere, or nothing at all."""

    name = names.AUTO_LAYOUT

    def candidates(self, store: Store) -> list[Candidate]:
        found = [candidate for layout in LAYOUTS.values() for candidate in layout.candidates(store)]
        return list({candidate.name: candidate for candidate in found}.values())

    def problem(self, content: Content, step: int) -> str | None:
        return self._unknown

    def evidence(self, content: Content, step: int, times: Times | None) -> Evidence:
        return Evidence(self._unknown)

    def fits(self, names: Collection[str]) -> str | None:
        return None

    def loads(self, content: Content) -> str:
        return ""

    _unknown = "its layout is not known"


EVERY: Layout = _Every()


def recognised(store: Store) -> list[Recognised]:
    """Return each layout of which there is a checkpoint, begun or whole, in the order of `LAYOUTS`.

    Raises:
        AccessError: STORE_UNREACHABLE, the location itself cannot be read.
    """
    found = (_in_location(store, layout) for layout in LAYOUTS.values()) if store.exists() else ()
    return [one for one in found if one is not None]


def by_content(store: Store, folder: str) -> list[Recognised]:
    """Return each layout that the content of a pin or a retained copy fits.

    Raises:
        Vanished, Damaged.
    """
    names = store.files(folder)
    marks = ((layout, layout.fits(names)) for layout in LAYOUTS.values())
    return [Recognised(layout, f"{folder}/{mark}") for layout, mark in marks if mark is not None]


def several(found: Sequence[Recognised]) -> str:
    """Say which layouts fit, and by which files."""
    return " and ".join(f"{one.layout.name} (by {one.by})" for one in found)


def misnamed(store: Store) -> str:
    """Return that a folder of a location without checkpoints holds what one does, and which name is expected,
    a clause; "": there is none."""
    numbered = [layout for layout in LAYOUTS.values() if isinstance(layout, Numbered)]
    root = store.root.rstrip("/").rpartition("/")[2]
    folders = [name for name in store.folders() if name[:1] != "."] if store.exists() else []
    for folder in ("", *folders[:FOLDERS_LOOKED_AT]):
        there: list[str] = []
        with suppress_unreadable(), suppress(Vanished, Damaged):
            there = store.names(folder)
        for layout in numbered:
            mark = layout.fits(there)
            if mark is None or layout.pattern.search(folder):  # step-40.tmp: its save is not through
                continue
            what = f"{mark}, as a checkpoint of layout {layout.name} does"
            if not folder and layout.pattern.fullmatch(root):
                return (
                    f"; {NO_CHECKPOINT} lies there: it is one itself ({mark}), and is to lie in the location"
                )
            who, form = folder or f"the location itself, {root},", layout.form.format("<step>")
            return f"; {who} holds {what}, and {MISNAMED}: expected {form} in the location"
    return ""


def _in_location(store: Store, layout: Layout) -> Recognised | None:
    for candidate in layout.candidates(store)[:LOOKED_AT]:
        with suppress_unreadable(), suppress(Vanished, Damaged):
            content = candidate.content(store)
            mark = layout.fits(content.files())
            if mark is not None:
                return Recognised(layout, content.where(mark))
    return None
