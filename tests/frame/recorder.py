"""Play histories of the fault machine by the code of one tree, and write down what was decided.

Run by path with `python -P`, with the tree as working directory and on `PYTHONPATH` (`decisions.py` does so):
the tree itself need not know this file, so it imports nothing of its own folder. It reads one JSON command a
line and answers each with one JSON line, on the standard output that it was started with:

    {"side": "before", "words": {…}, "root": "/dev/shm/…"}   first: what to translate, where a world may write
    {"play": 17}                     -> {"seed": 17, "digest": "…", "counts": {"job": 80, …}, "end": "…"}
    {"play": 17, "digests": true}    the same, and "digests": one a record, in their order
    {"play": 17, "show": 3}          the same, and "shown": the text of record 3
    {"version": true}                -> {"version": 5}, of the decision log that this tree writes
    {"replay": "…line of a log…", "version": 5}
                                     -> {"text": "…", "line": "…as a tree of that log version reads it…"}
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import inspect
import json
import math
import os
import re
import shutil
import sys
import tempfile
import time
import types
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from operator import attrgetter, itemgetter
from typing import Any

# Situations that say nothing of decisions: what the oracle of tests/faults has counted, and what happened in
# the middle of an access Job's work, that is at so many of its calls to the disk.
ORACLES = re.compile(r"S\d[ :]|trainer writes beside an access Job")
# Where each thing is decided or carried out, by tree: the first place that there is counts. With it, what of
# the arguments is written down; (): all, and the result.
Place = tuple[str, tuple[str, ...]]
HOOKS: dict[str, tuple[Place, ...]] = {
    "job": (("controller.policy.job.plan:plan_job", ()), ("controller.policy.lifecycle:plan", ())),
    "pool": (("controller.policy.pool.plan:plan_pool", ()), ("controller.policy.pool:plan", ())),
    "written": (("tests.faults.world:World.written", ("job.name", "after")),),
    "event": (("tests.faults.world:World.told", ("job.name", "event")),),
    "suspending": (("tests.faults.world:World.suspending", ("job.name", "reason")),),
    "starting": (("tests.faults.world:World.starting", ("job.name",)),),
    "admitting": (("tests.faults.world:World.admitting", ("thought.job.name", "admission")),),
}
# What only looks at the disk, to say more of a failure. In some histories something happens at an access
# Job's nth call to the disk. Calls made here are not counted, so it happens at the same moment in a tree that
# has none of these functions.
LOOKS = (
    "controller.checkpoints.ownership:is_gone",
    "controller.checkpoints.judge:Survey.left_by_none_of",
    "controller.checkpoints.recognition:misnamed",
    "controller.checkpoints.securing:_links",
)
DISK = "tests.faults.disk:Disk.operation"
DRIVERS = ("tests.faults.driver",)
LOGS = ("controller.policy.decision_log", "controller.policy.declog")
MOST = 300_000  # texts kept of values that come again


class Words:
    """The rename table for one side. The tree before is translated, the tree after is only reshaped."""

    def __init__(self, side: str, words: Mapping[str, Any]) -> None:
        before = side == "before"
        self.types: dict[str, str] = words.get("types", {}) if before else {}
        self.fields: dict[str, str] = words.get("fields", {}) if before else {}
        self.strings: dict[str, str] = words.get("strings", {}) if before else {}
        text = words.get("text", []) if before else []
        self.text = [(re.compile(row["before"]), row["after"]) for row in text]
        self.left_out = set(words.get("gone", {}) if before else ())
        self.added = set(() if before else words.get("added", {}))  # left out while it has its default
        self.bare: set[str] = set() if before else set(words.get("tuples", []))
        self.inlined: set[str] = set() if before else set(words.get("inlined", []))

    def type(self, name: str) -> str:
        return self.types.get(name, name)

    def field(self, type_name: str, field: str) -> str:
        return self.fields.get(f"{type_name}.{field}", self.fields.get(field, field))

    def string(self, value: str) -> str:
        if value in self.strings:
            return self.strings[value]
        for pattern, after in self.text:
            value = pattern.sub(after, value)
        return value

    @functools.lru_cache(maxsize=100_000)  # noqa: B019 one instance a process
    def quoted(self, value: str) -> str:
        return json.dumps(self.string(value), ensure_ascii=False)


class Text:
    """Canonical JSON of the brain's values: a dataclass by type and fields (sorted), an enum by its value."""

    def __init__(self, words: Words) -> None:
        self.words = words
        self._known: dict[int, tuple[Any, str]] = {}  # by id, with the value, so that no id comes again
        self._mutable = 0  # how many values were met that may change
        self._shapes: dict[type, tuple[tuple[str, str], ...]] = {}
        self._defaults: dict[type, dict[str, Any]] = {}  # of fields that only the tree after has

    def forget(self) -> None:
        self._known.clear()

    def of(self, value: Any) -> str:
        kind = type(value)
        if kind is str:
            return self.words.quoted(value)
        if value is None or kind is bool:
            return "null" if value is None else "true" if value else "false"
        if kind is int or kind is float:
            return repr(value)
        if isinstance(value, Enum):
            return self.of(value.value)
        known = self._known.get(id(value))
        if known is not None:
            return known[1]
        before = self._mutable
        text = self._compound(value)
        if self._mutable == before:
            if len(self._known) > MOST:
                self._known.clear()
            self._known[id(value)] = (value, text)
        return text

    def _compound(self, value: Any) -> str:
        kind = type(value)
        if isinstance(value, Mapping):
            self._mutable += 1
            pairs = sorted((self.of(key), self.of(inner)) for key, inner in value.items())
            return "{" + ",".join(f"{key}:{inner}" for key, inner in pairs) + "}"
        if isinstance(value, (set, frozenset)):
            self._mutable += not isinstance(value, frozenset)
            return '{"set":[' + ",".join(sorted(map(self.of, value))) + "]}"
        if isinstance(value, list) or kind is tuple:
            self._mutable += isinstance(value, list)
            return "[" + ",".join(map(self.of, value)) + "]"
        if dataclasses.is_dataclass(value):
            self._mutable += type(value).__setattr__ is object.__setattr__
        elif not hasattr(value, "_fields"):
            raise TypeError(f"{kind.__module__}.{kind.__qualname__} has no canonical text: {value!r}")
        if kind.__name__ in self.words.bare:
            return "[" + ",".join(self.of(inner) for _, inner in members(value)) + "]"
        shape = self._present(value)
        if all(key for _, key in shape):
            fields = ",".join([key + self.of(getattr(value, name)) for name, key in shape])
        else:
            fields = ",".join(key + text for key, text in sorted(self._fields(value)))
        return '{"type":"' + self.words.type(kind.__name__) + '"' + ("," + fields if fields else "") + "}"

    def _fields(self, value: Any) -> Iterator[tuple[str, str]]:
        for name, key in self._present(value):
            inner = getattr(value, name)
            if key:
                yield key, self.of(inner)
            elif inner is not None:  # its fields stood in this one
                yield from self._fields(inner)

    def _present(self, value: Any) -> tuple[tuple[str, str], ...]:
        """Return name and key of each field that is written of this value."""
        kind = type(value)
        shape = self._shapes.get(kind) or self._shape(value)
        new = self._defaults[kind]
        if not new:
            return shape
        return tuple((n, key) for n, key in shape if n not in new or getattr(value, n) != new[n])

    def _shape(self, value: Any) -> tuple[tuple[str, str], ...]:
        kind, words = type(value), self.words
        names = [n for n, _ in members(value) if f"{kind.__name__}.{n}" not in words.left_out]
        keys = (
            "" if f"{kind.__name__}.{n}" in words.inlined else f'"{words.field(kind.__name__, n)}":'
            for n in names
        )
        shape = tuple(sorted(zip(names, keys, strict=True), key=itemgetter(1)))
        self._shapes[kind] = shape
        self._defaults[kind] = {
            n: default for n, default in defaults(value) if f"{kind.__name__}.{n}" in words.added
        }
        return shape


def members(value: Any) -> Iterator[tuple[str, Any]]:
    """Fields of a dataclass or NamedTuple in their order."""
    names = value._fields if hasattr(value, "_fields") else [f.name for f in dataclasses.fields(value)]
    return ((name, getattr(value, name)) for name in names)


def defaults(value: Any) -> Iterator[tuple[str, Any]]:
    """Return the defaults of a dataclass's or NamedTuple's fields, by name; not those that are made anew."""
    if hasattr(value, "_fields"):
        return iter(value._field_defaults.items())
    return ((f.name, f.default) for f in dataclasses.fields(value) if f.default is not dataclasses.MISSING)


class Recorder:
    """What is decided between `begin` and the next one.

    Attributes:
        digests: of each record, in their order. shown: the text of number ``show``.
        calls: what the plans were called with, newest last (only with ``keep``).
    """

    def __init__(self, text: Text) -> None:
        self.text = text
        self.keep = False
        self.begin()

    def begin(self, show: int | None = None) -> None:
        self.text.forget()
        self.whole = hashlib.blake2b(digest_size=16)
        self.digests: list[str] = []
        self.counts: Counter[str] = Counter()
        self.show, self.shown = show, ""
        self.calls: list[tuple[str, dict[str, Any], Any]] = []

    def note(self, name: str, arguments: Mapping[str, Any], result: str) -> None:
        """``result``: canonical text."""
        words = self.text.words
        named = ((words.field(name, key), value) for key, value in arguments.items())
        given = ",".join(f'"{key}":{self.text.of(value)}' for key, value in sorted(named, key=itemgetter(0)))
        record = f'{{"of":"{name}","arguments":{{{given}}},"result":{result}}}'
        if len(self.digests) == self.show:
            self.shown = record
        encoded = record.encode()
        self.whole.update(encoded)
        self.digests.append(hashlib.blake2b(encoded, digest_size=8).hexdigest())
        self.counts[name] += 1

    def wrap(self, name: str, function: Callable[..., Any], picked: tuple[str, ...]) -> Callable[..., Any]:
        """``function`` that notes each call."""
        signature = inspect.signature(function)
        parts = [(pick, pick.partition(".")) for pick in picked]

        @functools.wraps(function)
        def noted(*given: Any, **named: Any) -> Any:
            bound = signature.bind(*given, **named)
            bound.apply_defaults()
            arguments = bound.arguments
            if picked:
                values = {
                    whole: attrgetter(rest)(arguments[first]) if rest else arguments[first]
                    for whole, (first, _, rest) in parts
                }
                self.note(name, values, "null")
                return function(*given, **named)
            try:
                result = function(*given, **named)
            except Exception as error:
                self.note(name, arguments, self.text.of(f"raised {type(error).__name__}: {error}"))
                raise
            self.note(name, arguments, self.text.of(result))
            if self.keep:
                self.calls.append((name, dict(arguments), result))
            return result

        return noted


def found(places: tuple[str, ...]) -> types.ModuleType:
    """The first of these modules that there is."""
    for place in places:
        module = imported(place)
        if module is not None:
            return module
    raise LookupError(f"none of these modules is in {os.getcwd()}: {', '.join(places)}")


def imported(place: str) -> types.ModuleType | None:
    """The module of that name; None: there is none. What it imports itself has to be there."""
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if not error.name or not f"{place}.".startswith(f"{error.name}."):
            raise
        return None


def install(recorder: Recorder) -> dict[str, str]:
    """Put a noting function in place of each hooked one, wherever its name is bound; where each was found."""
    at = {}
    for name, places in HOOKS.items():
        for place, picked in places:
            if replaced(place, lambda original, name=name, of=picked: recorder.wrap(name, original, of)):
                at[name] = place
                break
        else:
            raise LookupError(f"hook {name!r}: none of these functions is in {os.getcwd()}: {places}")
    return at


def leave_uncounted(looks: tuple[str, ...] = LOOKS, disk: str = DISK) -> list[str]:
    """Count no call to the disk that is made within one of these functions; return those that there are.

    A tree without that disk counts nothing.
    """
    depth = 0

    def look(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def looking(*given: Any, **named: Any) -> Any:
            nonlocal depth
            depth += 1
            try:
                return original(*given, **named)
            finally:
                depth -= 1

        return looking

    def counting(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def operation(self: Any, path: Callable[[], str], counted: bool = True) -> None:
            original(self, path, counted and not depth)

        return operation

    if imported(disk.partition(":")[0]) is None:
        return []
    if not replaced(disk, counting):
        raise LookupError(f"{disk} is not in {os.getcwd()}")
    return [place for place in looks if replaced(place, look)]


def replaced(place: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> bool:
    """Put what `wrap` makes of a function in its place, wherever its name is bound.

    ``place``: ``module:name`` or ``module:Class.name``. Return whether there is that function.
    """
    module, _, path = place.partition(":")
    *inner, last = path.split(".")
    holder: Any = imported(module)
    for part in inner:
        holder = getattr(holder, part, None)
    original = None if holder is None else vars(holder).get(last)
    if not inspect.isfunction(original):
        return False
    instead = wrap(original)
    setattr(holder, last, instead)
    if isinstance(holder, types.ModuleType):
        _bind(original, instead)
    return True


def _bind(original: object, noted: object) -> None:
    for module in list(sys.modules.values()):
        if (module.__name__ if module else "").partition(".")[0] in ("controller", "tests", "sim"):
            for name, value in list(vars(module).items()):
                if value is original:
                    setattr(module, name, noted)


class Player:
    """Answer the commands of one line each."""

    def __init__(self, side: str, words: Mapping[str, Any], root: str) -> None:
        self.driver = found(DRIVERS)
        self.words, self.root = Words(side, words), root
        self.recorder = Recorder(Text(self.words))
        self.at = install(self.recorder)
        leave_uncounted()
        made = tempfile.mkdtemp

        def mkdtemp(suffix: str | None = None, prefix: str | None = None, dir: str | None = None) -> str:
            if not (prefix or "").startswith("evalstop-faults"):
                return made(suffix, prefix, dir)
            shutil.rmtree(
                self.root, ignore_errors=True
            )  # the same path in both trees: it stands in what is decided
            os.makedirs(self.root, mode=0o700)
            return self.root

        tempfile.mkdtemp = mkdtemp  # type: ignore[assignment]
        # Archives hold the time at which they were written, and so do digests of checkpoints.
        fixed = time.struct_time((2026, 11, 23, 0, 0, 0, 0, 327, 0))
        time.localtime = time.gmtime = lambda *given: fixed  # type: ignore[assignment]

    def answer(self, command: Mapping[str, Any]) -> dict[str, Any]:
        if "play" in command:
            return self.play(command["play"], command.get("show"), digests=command.get("digests", False))
        if "replay" in command:
            return self.replay(command["replay"], command.get("version"))
        return {"version": found(LOGS).VERSION}

    def play(self, seed: int, show: int | None, *, digests: bool) -> dict[str, Any]:
        recorder = self.recorder
        recorder.begin(show)
        outcome = self.driver.play(*self.driver.drawn(seed))
        counts = {
            self.words.string(what): number
            for what, number in outcome.counts.items()
            if not ORACLES.match(what)  # what the tree's own tests ask is none of its decisions
        }
        violation = "" if ORACLES.match(outcome.violation) else self.words.string(outcome.violation)
        end = [violation, outcome.at, dict(sorted(counts.items()))]
        recorder.note("end", {"violation": end[0], "at": end[1], "counts": end[2]}, "null")
        said: dict[str, Any] = {
            "seed": seed,
            "digest": recorder.whole.hexdigest(),
            "counts": dict(recorder.counts),
            "end": outcome.violation,
        }
        if digests:
            said["digests"] = recorder.digests
        if show is not None:
            said["shown"] = recorder.shown
        return said

    def replay(self, line: str, version: int | None) -> dict[str, Any]:
        """Decide a log's line anew. ``version``: of logs that the other tree reads; None: no line for it."""
        log, recorder = found(LOGS), self.recorder
        recorder.begin(show=0)
        recorder.keep = True
        again = next(log.replay([line]))
        if len(recorder.calls) != 1:
            raise LookupError(f"{len(recorder.calls)} plans were made of one line of a decision log")
        ((name, arguments, result),) = recorder.calls
        said: dict[str, Any] = {"text": recorder.shown, "same": again.same, "kind": name}
        if version is not None:
            given = {self.words.field(name, key): self._stored(value) for key, value in arguments.items()}
            now = given.pop("now")
            (alone,) = given.values() if len(given) == 1 else (given,)
            said["line"] = json.dumps(
                {"v": version, "kind": name, "now": now, "input": alone, "decision": self._stored(result)}
            )
        return said

    def _stored(self, value: Any, tagged: bool = False) -> Any:
        """As a decision log holds it (controller/policy/codec.py), in the words of the tree after."""
        words = self.words
        if dataclasses.is_dataclass(value):
            kind = type(value).__name__
            fields = {
                words.field(kind, name): self._stored(inner, name == "actions")
                for name, inner in members(value)
                if f"{kind}.{name}" not in words.left_out
            }
            return {"is": words.type(kind), **fields} if tagged else fields
        if isinstance(value, Enum):
            value = value.value
        if isinstance(value, str):
            return words.string(value)
        if isinstance(value, float) and not math.isfinite(value):
            return {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}[repr(value)]
        if isinstance(value, Mapping):
            return {words.string(key): self._stored(inner) for key, inner in value.items()}
        if isinstance(value, (tuple, list)):
            return [self._stored(inner, tagged) for inner in value]
        return value


def main() -> int:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the product prints is not an answer
    player: Player | None = None
    for line in sys.stdin:
        command = json.loads(line)
        try:
            if player is None:
                player = Player(command["side"], command["words"], command["root"])
                said: dict[str, Any] = {"at": player.at}
            else:
                said = player.answer(command)
        except Exception as error:
            said = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(said), file=out, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
