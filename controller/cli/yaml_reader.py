"""The reader of YAML that users hand to a command: how long, how deep and how large it may be.

PyYAML's own gives up on deep nesting with an error of Python's, builds what a few lines of aliases and merges
multiply to billions of values, and makes dates, sets and bytes, which JSON does not have. Here each limit is
named in the error, and what comes out is what kubectl would send: JSON values, dates as they were written,
keys as texts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import yaml

from controller.bounded import DEPTH, DIGITS, shown
from controller.policy.wording import counted

BYTES = 3 << 20  # of one file: as much as the API server takes in a request
VALUES = 100_000  # keys, values and members of lists of one file; an alias counts as all that it stands for

_TAG = "tag:yaml.org,2002:"
_TEXTS = frozenset(_TAG + kind for kind in ("str", "timestamp", "value", "merge"))
_BOOLS = yaml.SafeLoader.bool_values


class Refused(yaml.YAMLError):
    """A text is not read; the message says why, and where."""


def documents(text: str) -> Iterator[Any]:
    """Yield the documents of a YAML text, as JSON values; no two of them share a list or an object.

    Raises:
        yaml.YAMLError: it is no YAML; `Refused`: it is over a limit, or holds what JSON has not.
    """
    # A text with more characters than bytes are allowed need not be encoded to be refused.
    size = len(text) if len(text) > BYTES else len(text.encode("utf-8", "surrogatepass"))
    if size > BYTES:
        raise Refused(f"{counted(size, 'byte')}, at most {BYTES} are read")
    composer = _Composer(text)
    try:
        while (node := composer.next_document()) is not None:
            yield _value(node)
    finally:
        composer.dispose()


class _Composer(yaml.SafeLoader):
    """PyYAML's, which counts what it composes before anything is made of it."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._values = self._depth = self._deepest = 0
        self._anchored: dict[int, tuple[int, int]] = {}  # id of a whole node -> its values, its levels

    def next_document(self) -> yaml.Node | None:
        """Return the next document's node; None: there are no more."""
        self._anchored = {}  # nodes of an earlier document are gone, and others may have their ids
        try:
            found: yaml.Node | None = self.get_node() if self.check_node() else None
            return found
        except (ValueError, OverflowError) as error:  # of Python's: an escape beyond Unicode, a long version
            raise Refused(f"{shown(str(error))}{_at(self.get_mark())}") from None

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            node = super().compose_node(parent, index)
            if id(node) not in self._anchored:
                raise Refused(
                    f"alias {shown(event.anchor)} is within what it stands for{_at(event.start_mark)}"
                )
            self._count(*self._anchored[id(node)], event)
            return node
        before, above, self._deepest = self._values, self._deepest, self._depth
        self._count(1, 1, event)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        if event.anchor is not None:
            self._anchored[id(node)] = (self._values - before, self._deepest - self._depth)
        self._deepest = max(above, self._deepest)
        return node

    def _count(self, values: int, levels: int, event: Any) -> None:
        self._values += values
        self._deepest = max(self._deepest, self._depth + levels)
        if self._values > VALUES:
            raise Refused(f"more than {VALUES} values, aliases counted in full{_at(event.start_mark)}")
        if self._deepest > DEPTH:
            raise Refused(f"nested deeper than {DEPTH} levels{_at(event.start_mark)}")


def _value(node: yaml.Node) -> Any:
    """Return what a node stands for. Raises: Refused."""
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node)
    if isinstance(node, yaml.SequenceNode) and node.tag == f"{_TAG}seq":
        return [_value(one) for one in node.value]
    if isinstance(node, yaml.MappingNode) and node.tag == f"{_TAG}map":
        return _object(node)
    raise _no_json(node, f"tag {shown(node.tag)}")


def _object(node: yaml.MappingNode) -> dict[str, Any]:
    """Return a mapping with what is merged into it, which its own keys go before."""
    found: dict[str, Any] = {}
    for key, value in node.value:
        if key.tag == f"{_TAG}merge":
            several = value.value if isinstance(value, yaml.SequenceNode) else [value]
            for one in reversed(several):  # the first of them goes before the others
                if not isinstance(one, yaml.MappingNode):
                    raise Refused(f"<< merges mappings alone{_at(one.start_mark)}")
                found |= _object(one)
    return found | {_key(key): _value(value) for key, value in node.value if key.tag != f"{_TAG}merge"}


def _key(node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise _no_json(node, "a key that is no text")
    value = _scalar(node)
    if isinstance(value, bool | None):
        return {True: "true", False: "false", None: "null"}[value]
    return str(value)


def _scalar(node: yaml.ScalarNode) -> Any:
    text = node.value
    if node.tag in _TEXTS:
        if any("\ud800" <= c <= "\udfff" for c in text):
            raise _no_json(node, "half of a character")
        return text
    if node.tag == f"{_TAG}null":
        return None
    if node.tag == f"{_TAG}bool" and text.lower() in _BOOLS:
        return _BOOLS[text.lower()]
    if node.tag in (f"{_TAG}int", f"{_TAG}float"):
        return _number(node)
    raise _no_json(node, f"tag {shown(node.tag)}")


def _number(node: yaml.ScalarNode) -> Any:
    text = node.value.replace("_", "")
    if ":" in text:  # base 60, which kubectl does not know
        return node.value
    whole = node.tag == f"{_TAG}int"
    if whole and len(text) > 3 * DIGITS:
        raise _no_json(node, f"a number of {counted(len(text), 'digit')}")
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    try:
        if whole:
            base = {"0b": 2, "0x": 16}.get(
                digits[:2].lower(), 8 if len(digits) > 1 and digits[0] == "0" else 10
            )
            found: float = sign * int(digits, base)
        else:
            found = float(text)
    except ValueError:
        raise _no_json(node, f"number {shown(node.value)}") from None
    if (whole and abs(found) >= 10**DIGITS) or not math.isfinite(found):
        raise _no_json(node, f"number {shown(node.value)}")
    return found


def _no_json(node: yaml.Node, what: str) -> Refused:
    return Refused(f"{what} is nothing that a resource can hold{_at(node.start_mark)}")


def _at(mark: Any) -> str:
    return f", in line {mark.line + 1}, column {mark.column + 1}"
