"""Save records: what a trainer's client says of a save once all ranks have finished it.

``<location>/.evalstop/saves/<attempt>-<step>.json``::

    {"attempt": "2-9f2c41d0", "step": 400, "name": "checkpoint-400", "files": {"model.safetensors": 2048, …},
     "uid": "…", "sequence": 7}

``uid`` and ``sequence`` (order of saving) are for people: the folder is one RLHFJob's, and a life's records
are told apart by step. The record is the strongest evidence there is: every file with its size, by the
process that wrote them. It is that trainer's word about its own checkpoint, checked for form here and against
the folder by the judge.
"""

from __future__ import annotations

from collections.abc import Mapping

from controller import names
from controller.checkpoints.errors import Damaged, Vanished
from controller.checkpoints.pins import ATTEMPT_PATTERN, parse_pin
from controller.checkpoints.store import Store, read_json
from controller.frozen import dataclass

SAVES_FOLDER = f"{names.PINS_FOLDER}/saves"
# The trainer may run under another user than access Jobs, and either may come first. Nobody takes away what
# lies in `.evalstop` but who wrote it; records are cleared by whichever process trains.
SHARED = ((names.PINS_FOLDER, 0o1777), (SAVES_FOLDER, 0o777))
RECORD_LIMIT = 32 << 20  # bytes; a checkpoint of 100,000 files has about 10 MB
SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class SaveRecord:
    attempt: str
    step: int
    name: str  # the trainer's own name of the checkpoint
    files: Mapping[str, int]  # name inside the checkpoint -> bytes
    written: int | None = None  # when the record itself was (ns), as its store says; None: it does not

    def difference(self, sizes: Mapping[str, int]) -> str | None:
        """Return where the checkpoint is not what was recorded; None: all recorded files are there, with
        their sizes."""
        for name, size in sorted(self.files.items()):
            if name not in sizes:
                return f"{name} is missing (the save record lists it)"
            if sizes[name] != size:
                return f"{name} has {sizes[name]} of the {size} bytes in the save record"
        return None


def save_records(store: Store) -> dict[int, dict[str, str]]:
    """Return the save records of a location by step: each one's name, and the process that it says it is of.
    They are read when they are asked for."""
    try:
        files = store.names(SAVES_FOLDER)  # no more: one entry that is odd, or gone, hides no other
    except (Vanished, Damaged):
        return {}
    found: dict[int, dict[str, str]] = {}
    for file in files:
        pin = parse_pin(file.removesuffix(SUFFIX)) if file.endswith(SUFFIX) else None
        if pin is not None:
            found.setdefault(pin.step, {})[file] = pin.attempt
    return found


def read_record(store: Store, file: str) -> SaveRecord | None:
    """Return a save record; None: it went meanwhile, or is of another form than agreed."""
    try:
        raw = read_json(store, f"{SAVES_FOLDER}/{file}", RECORD_LIMIT)
    except (Vanished, Damaged, ValueError):
        return None
    if not isinstance(raw, dict) or not isinstance(raw.get("files"), dict) or not raw["files"]:
        return None
    attempt, step, name, files = raw.get("attempt"), raw.get("step"), raw.get("name"), raw["files"]
    if not isinstance(step, int) or not isinstance(name, str) or not isinstance(attempt, str):
        return None
    if not ATTEMPT_PATTERN.match(attempt) or file != f"{attempt}-{step}{SUFFIX}":
        return None
    if not all(type(size) is int and size >= 0 for size in files.values()):
        return None
    return SaveRecord(attempt, step, name, files, _written(store, file))


def _written(store: Store, file: str) -> int | None:
    try:
        return store.written(f"{SAVES_FOLDER}/{file}")
    except (Vanished, Damaged):
        return None
