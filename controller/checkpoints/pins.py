"""Names of pins on disk: ``<location>/.evalstop/<uid>/<attempt>-<step>``, as in ``…/2-9f2c41d0-400``.

``attempt`` is the trainer process that wrote the checkpoint: the operator's attempt number and, where it is
known, the id that the process gave itself. ``0`` stands for what lay there before the RLHFJob started.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from controller import names
from controller.checkpoints.errors import AccessError, Reason
from controller.checkpoints.store import clean, relative

NOBODY = "0"  # the attempt of what lay there before the RLHFJob's first start, or whose writer is not known

ATTEMPT_PATTERN = re.compile(r"(?P<number>\d{1,9})(?:-(?P<life>[0-9a-z]{1,16}))?\Z")
_PIN = re.compile(r"(?P<attempt>\d{1,9}(?:-[0-9a-z]{1,16})?)-(?P<step>\d{1,15})(?:\.[0-9a-f]{8})?\Z")
_TOKEN = re.compile(r"[0-9a-f]{8,32}\Z")  # object stores: each copy has a folder of its own in the pin's


class Pin(NamedTuple):
    """A pin's attempt and step, as its folder's name gives them."""

    attempt: str
    step: int


def pins_folder(owner: str) -> str:
    """Folder of an RLHFJob's pins, relative to its location."""
    return f"{names.PINS_FOLDER}/{owner}"


def pin_name(attempt: str, step: int) -> str:
    """Return the name of a pin; the text of ``attempt`` is ``3-9f2c41d0``, or ``3`` where its life is not
    known."""
    return f"{attempt}-{step}"


def parse_pin(name: str) -> Pin | None:
    """Return what the name of a folder among the pins says; None: it is no pin's."""
    match = _PIN.match(name)
    return Pin(match["attempt"], int(match["step"])) if match else None


def pin_folder(location: str, owner: str, path: str) -> str:
    """Return the folder, relative to the location, of a pin given by its exact path.

    Raises:
        AccessError: BAD_REQUEST, it is not the path of a pin of this owner.
    """
    inside = f"{location.rstrip('/')}/{pins_folder(owner)}"
    try:
        parts = relative(inside, path).split("/")
    except AccessError:
        parts = []
    known = parts and parse_pin(parts[0]) and all(_TOKEN.match(token) for token in parts[1:])
    if not known or len(parts) > 2:
        raise AccessError(
            Reason.BAD_REQUEST, f"path {path!r}: expected the exact path of a pin below {inside}"
        )
    return clean(f"{pins_folder(owner)}/{'/'.join(parts)}")
