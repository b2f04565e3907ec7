"""Commands that one waits for, called plainly: read by the declarations of their flags, without typer.

Loading typer takes as long as all that `list` does. What is not plain is left to typer: a flag that is not
declared in `controller.cli.flags`, several letters at a time, a number, ``--help``, anything that is wrong.
Then None is returned, and nothing has happened. tests/cli/test_cli_quick.py holds both against each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from importlib import import_module
from typing import Any, NamedTuple

from controller.cli import flags
from controller.cli.flags import FLAGS, Flag
from controller.cli.places import COMMANDS
from controller.cli.terminal import say

QUICK = frozenset(("list", "get", "why"))
_CONNECTS = ("kubeconfig", "context")
_BEFORE = ("namespace", *_CONNECTS)


class _NotPlainError(Exception):
    """It is typer's to read this."""


class Call(NamedTuple):
    """A command as it is called.

    Attributes:
        function: of the command.
        known: its parameters.
        given: what is said of them.
        before: what stands before the command's name.
    """

    function: Callable[..., Any]
    known: Mapping[str, Flag]
    given: dict[str, Any]
    before: dict[str, Any]


class Words(NamedTuple):
    """Parts of a typer.Context that `controller.cli.complete` reads."""

    params: Mapping[str, Any]
    parent: Words | None = None


def run(words: Sequence[str]) -> int | None:
    """Run a command and return its exit code; None: it is not plain.

    Args:
        words: all after the program's name.
    """
    try:
        call = read(words)
        wanted = {**_defaults(call.function), **call.given}
    except _NotPlainError:
        return None
    if call.known.keys() - wanted.keys():
        return None
    flags.BEFORE.update({**dict.fromkeys(_BEFORE, ""), **call.before})
    try:
        call.function(**wanted)
    except RuntimeError as error:
        import typer

        if not isinstance(error, typer.Exit):
            raise
        return int(error.exit_code)
    return 0


def complete(environ: Mapping[str, str]) -> int | None:
    """Print what bash is to offer, as typer does, and return the exit code; None: it is not plain."""
    import shlex

    if environ["_EVALSTOP_COMPLETE"] != "complete_bash":
        return None
    try:
        words, at = shlex.split(environ["COMP_WORDS"]), int(environ["COMP_CWORD"])
    except (KeyError, ValueError):
        return None
    found = offered(words[1:at], words[at] if at < len(words) else "")
    if found is None:
        return None
    say("\n".join(found))
    return 0


def offered(words: Sequence[str], incomplete: str) -> list[str] | None:
    """Return what a shell is to offer for a command's argument; None: it is not plain.

    Args:
        words: complete ones before it, after the program's name.
        incomplete: its beginning.
    """
    if incomplete.startswith("-") or "=" in incomplete:
        return None
    try:
        call = read(words)
    except _NotPlainError:
        return None
    name, flag = next((one for one in call.known.items() if not one[1].names), ("", None))
    if flag is None or flag.completed is None or (name in call.given and flag.kind is str):
        return None
    found = flag.completed(Words(call.given, Words(call.before)), incomplete)
    return [one for one in found if one.startswith(incomplete)]


def read(words: Sequence[str]) -> Call:
    """Return the call that some words stand for. Raises _NotPlainError."""
    rest = list(words)
    before = _read(rest, _flags(_BEFORE), ends=True)
    if not rest or rest[0] not in QUICK:
        raise _NotPlainError
    place = COMMANDS[rest.pop(0)]
    function = getattr(import_module(place.module), place.attribute)
    known = _known(function)
    return Call(function, known, _read(rest, known), before)


def _read(rest: list[str], known: Mapping[str, Flag], *, ends: bool = False) -> dict[str, Any]:
    """Take words as values of flags and arguments. ``ends``: the first argument ends it, and is left."""
    by_word = {word: name for name, flag in known.items() for word in flag.names}
    argument = next((name for name, flag in known.items() if not flag.names), "")
    given: dict[str, Any] = {}
    while rest:
        word = rest[0]
        if not word.startswith("-"):
            if ends:
                break
            _add(given, argument, known, rest.pop(0))
            continue
        word, joined, value = rest.pop(0).partition("=")
        name = by_word.get(word, "")
        if not name or (joined and not word.startswith("--")):
            raise _NotPlainError
        kind = known[name].kind
        if kind is bool:
            if joined:
                raise _NotPlainError
            given[name] = True
            continue
        if not joined:
            if not rest or rest[0].startswith("-"):
                raise _NotPlainError
            value = rest.pop(0)
        given[name] = _value(kind, value)
    return given


def _add(given: dict[str, Any], name: str, known: Mapping[str, Flag], word: str) -> None:
    """Take a word as an argument."""
    if not name or (name in given and known[name].kind is str):
        raise _NotPlainError
    if known[name].kind is str:
        given[name] = word
    else:
        given.setdefault(name, []).append(word)


def _value(kind: Any, text: str) -> Any:
    if kind is str:
        return text
    if isinstance(kind, type) and issubclass(kind, StrEnum) and text in list(kind):
        return kind(text)
    raise _NotPlainError


def _known(function: Any) -> dict[str, Flag]:
    """Return a command's parameters: what their annotations name, in order."""
    found: dict[str, Flag] = {}
    for name, annotation in _plain(function).__annotations__.items():
        if name == "connection":
            found |= _flags(_CONNECTS)
        elif name != "return":
            found[name] = FLAGS[annotation.removeprefix("flags.")]
    return found


def _flags(names: Iterable[str]) -> dict[str, Flag]:
    return {name: FLAGS[name.capitalize()] for name in names}


def _defaults(function: Any) -> dict[str, Any]:
    plain = _plain(function)
    names = plain.__code__.co_varnames[: plain.__code__.co_argcount]
    own = dict(zip(reversed(names), reversed(plain.__defaults__ or ()), strict=False))
    usual = own.pop("connection")
    return {**own, **usual._asdict()}


def _plain(function: Any) -> Any:
    """Return a command's function as it was written."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function
