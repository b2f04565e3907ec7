"""A group of commands each of which is loaded when it is asked for: a command loads no other."""

from __future__ import annotations

import functools
import importlib
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import typer
import typer.main
from typer._coercion import RuntimeParam, TypeDescriptor, build_runtime_param
from typer.core import TyperCommand, TyperGroup

from controller.cli import examples
from controller.cli.places import Place


class Commands(dict[str, Any]):
    """Commands by name, in order. What is looked up is loaded; names alone load nothing."""

    def __init__(self, places: Mapping[str, Place]) -> None:
        super().__init__(dict.fromkeys(places))
        self._places = places

    def __getitem__(self, name: str) -> Any:
        found = super().__getitem__(name)
        if found is None:
            found = self[name] = _load(name, self._places[name])
        return found

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default  # noqa: SIM401 -- it is what `get` does

    def items(self) -> Any:
        for name in self:
            self[name]
        return super().items()

    def values(self) -> Any:
        for name in self:
            self[name]
        return super().values()


def group(places: Mapping[str, Place]) -> type[TyperGroup]:
    """Return the class of a group with these commands, for `typer.Typer` as ``cls``."""

    class Lazy(TyperGroup):
        """Commands that are loaded when they are asked for."""

        def __init__(self, **given: Any) -> None:
            super().__init__(**given)
            self.commands = Commands(places)

        def get_params(self, ctx: Any) -> list[Any]:
            return _plain(super().get_params(ctx))

        def list_commands(self, ctx: Any) -> list[str]:
            return list(self.commands)

    return Lazy


class Command(TyperCommand):
    """A command whose plain values are taken as they are.

    Typer has pydantic check each, which takes as long to load as all else that a short command does. A text
    is a text, and a default is right; anything else goes the long way.
    """

    def get_params(self, ctx: Any) -> list[Any]:
        return _plain(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, even(args, {flag for param in self.params for flag in param.opts}))


def _plain(params: list[Any]) -> list[Any]:
    for param in params:
        if (
            descriptor := getattr(param, "type_descriptor", None)
        ) is not None and param._runtime_param is None:
            param._runtime_param = _Plain(descriptor.parameter_info, descriptor.annotation, descriptor)
    return params


@dataclass(frozen=True)
class _Plain(RuntimeParam):
    """Checks what is no plain text and no default."""

    descriptor: TypeDescriptor

    def _coerce_value(self, value: Any, param: Any, ctx: Any) -> Any:
        if self.annotation is str and type(value) is str:
            return value
        if self.annotation == list[str] and all(type(text) is str for text in value):
            return list(value)
        if value is param.default and type(value) is not str:
            return value
        try:
            return build_runtime_param(self.descriptor)._coerce_value(value, param, ctx)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")  # pydantic's word, not the user's
            if words := _words(self.annotation):
                error.message = _not_among(str(value), words)
            raise


def _words(annotation: Any) -> list[str]:
    """Return the values that an option of fixed words takes; []: it takes others."""
    for kind in (annotation, *typing.get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, Enum):
            return [str(one.value) for one in kind]
    return []


def _not_among(value: str, words: Sequence[str]) -> str:
    """Return that a value is none of some words, and which of them may be meant."""
    from controller.policy.wording import did_you_mean, nearest

    close = nearest(value, words) or nearest(value.capitalize(), words)
    question = f"; {did_you_mean(close)}" if close else ""
    return f"{value!r} is not allowed, expected {', '.join(words[:-1])} or {words[-1]}{question}"


def _load(name: str, place: Place) -> Any:
    found = getattr(importlib.import_module(place.module), place.attribute)
    if not isinstance(found, typer.Typer):
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        alone.command(name, cls=Command, rich_help_panel=place.panel, epilog=examples.epilog(name))(found)
        return typer.main.get_command(alone)
    loaded: Any = typer.main.get_group(found)
    loaded.name, loaded.rich_help_panel, loaded.epilog = name, place.panel, examples.epilog(name)
    _make_even(loaded)
    return loaded


def _make_even(group: Any) -> None:
    """Let the commands of a group take both ways to ask for JSON."""
    for command in group.commands.values():
        if hasattr(command, "commands"):
            _make_even(command)
        else:
            command.parse_args = functools.partial(_parse, command.parse_args, command.params)


def _parse(
    parse: Callable[[Any, list[str]], list[str]], params: Sequence[Any], ctx: Any, args: list[str]
) -> Any:
    return parse(ctx, even(args, {flag for param in params for flag in param.opts}))


def even(args: Sequence[str], known: Collection[str]) -> list[str]:
    """Return a command's words as it knows them: of ``--json`` and ``-o json`` each stands for the other.

    Args:
        args: the words.
        known: the command's own flags.
    """
    asked: list[str] = []
    given = list(args)
    while given:
        word = given.pop(0)
        if word == "--":
            return [*asked, word, *given]
        if word == "--json" and "--json" not in known and "-o" in known:
            asked += ["-o", "json"]
        elif (
            "--json" in known
            and "-o" not in known
            and "--output" not in known
            and (
                word in ("-ojson", "-o=json", "--output=json")
                or (word in ("-o", "--output") and given[:1] == ["json"])
            )
        ):
            given = given[1:] if word in ("-o", "--output") else given
            asked.append("--json")
        else:
            asked.append(word)
    return asked
