"""Forms of all that travels: tokens as text, envelopes, frames between members, refusals.

Arrays are passed on as they came: only headers are read here, by the bounded reader.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from typing import Any, get_type_hints

from controller import bounded
from controller.bounded import shown, whole
from controller.policy.sharing import FromMember, Token, ToMember, messages

ENVELOPE = "application/vnd.evalstop.envelope"
MOST_JSON = 64 << 10  # bytes of a body that is no envelope
MOST_HEADER = 4 << 20  # bytes
MOST_VALUES = 1_000_000  # in a header
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")  # of a resident
_RANDOM = re.compile(r"[0-9a-f]{1,32}")


class Refused(Exception):
    """An answer instead of the one that was asked for; ``reason`` is a code word, ``more`` further fields."""

    def __init__(self, status: int, reason: str, message: str, **more: Any) -> None:
        super().__init__(message)
        self.status, self.reason, self.more = status, reason, more

    def document(self) -> dict[str, Any]:
        """Return the answer's body."""
        return {"reason": self.reason, "message": str(self), **self.more}


def token_text(token: Token) -> str:
    """Return a token as clients have it."""
    return f"{token.admission}.{token.start}.{token.random}.{token.sequence}"


def token_of(text: object) -> Token:
    """Return the token of a text.

    Raises:
        Refused: 400.
    """
    parts = text.split(".") if isinstance(text, str) and len(text) <= 120 else []
    if len(parts) == 4 and _RANDOM.fullmatch(parts[2]):
        admission, start, sequence = (whole(parts[i]) for i in (0, 1, 3))
        if admission is not None and start is not None and sequence is not None:
            return Token(admission, start, parts[2], sequence)
    raise Refused(400, "BadRequest", f"token: {bounded.quoted(text)} is no token of a turn")


def document(text: bytes) -> dict[str, Any]:
    """Return a request's JSON object; nothing sent is an empty one.

    Raises:
        Refused: 400: it is none.
    """
    try:
        found = bounded.load(text, "body", MOST_JSON) if text else {}
    except bounded.Unbounded as error:
        raise Refused(400, "BadRequest", str(error)) from None
    if not isinstance(found, dict):
        raise Refused(400, "BadRequest", "body: expected a JSON object")
    return found


def header_of(body: bytes | memoryview, what: str = "body") -> dict[str, Any]:
    """Return the header of an envelope, with ``arrays`` as they are listed.

    Raises:
        Refused: 400: it is no envelope.
    """
    view = memoryview(body)
    size = struct.unpack(">I", view[:4])[0] if view.nbytes >= 4 else -1
    if not 0 <= size <= min(MOST_HEADER, view.nbytes - 4):
        raise Refused(400, "BadRequest", f"{what}: no envelope, expected {ENVELOPE}")
    try:
        header = bounded.load(bytes(view[4 : 4 + size]), what, MOST_HEADER, values=MOST_VALUES)
    except bounded.Unbounded as error:
        raise Refused(400, "BadRequest", str(error)) from None
    if not isinstance(header, dict):
        raise Refused(400, "BadRequest", f"{what}: header: expected a JSON object")
    return header


def call_of(body: bytes, most: int) -> str:
    """Return the function that a job's call names, after checking what passes on to workers unread.

    Raises:
        Refused: 400.
    """
    header = header_of(body)
    if unknown := sorted(set(header) - {"function", "arguments", "arrays"}):
        raise Refused(400, "BadRequest", f"header: {shown(unknown[0])} is no field of a call")
    function, arguments = header.get("function"), header.get("arguments", {})
    if not isinstance(function, str) or not 0 < len(function) <= 100:
        raise Refused(400, "BadRequest", "function: expected a name")
    if not isinstance(arguments, dict):
        raise Refused(400, "BadRequest", "arguments: expected a JSON object")
    arrays = header.get("arrays", [])
    if not isinstance(arrays, list) or not all(
        isinstance(one, dict) and whole(one.get("bytes")) is not None for one in arrays
    ):
        raise Refused(400, "BadRequest", "arrays: expected a list with name, dtype, shape and bytes")
    size = 4 + struct.unpack(">I", body[:4])[0] + sum(one["bytes"] for one in arrays)
    if size != len(body) or size > most:
        raise Refused(400, "BadRequest", f"body: {len(body)} bytes, its header says {size}")
    return function


def envelope(header: Mapping[str, Any], body: bytes | memoryview | None = None) -> list[bytes | memoryview]:
    """Return the parts of an envelope; ``body``: its one array."""
    listed = []
    if body is not None:
        size = memoryview(body).nbytes
        listed.append({"name": "body", "dtype": "|u1", "shape": [size], "bytes": size})
    text = json.dumps({**header, "arrays": listed}, separators=(",", ":")).encode()
    head = struct.pack(">I", len(text)) + text
    return [head] if body is None else [head, body]


def framed(parts: list[bytes | memoryview]) -> list[bytes | memoryview]:
    """Return an envelope's parts with their length before them."""
    size = sum(memoryview(part).nbytes for part in parts)
    return [struct.pack(">Q", size) + bytes(parts[0]), *parts[1:]]


def body_of(envelope: bytes | memoryview) -> memoryview:
    """Return the bytes after an envelope's header."""
    view = memoryview(envelope)
    return view[4 + struct.unpack(">I", view[:4])[0] :]


class Frames:
    """Cuts a stream into frames.

    Args:
        most: bytes of a frame.
    """

    def __init__(self, most: int) -> None:
        self._most, self._held = most, bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the envelopes that are complete now.

        Raises:
            ValueError: a frame is too large.
        """
        self._held += data
        found = []
        while len(self._held) >= 8:
            size = struct.unpack(">Q", self._held[:8])[0]
            if size > self._most:
                raise ValueError(f"a frame of {size} bytes, at most {self._most} are read")
            if len(self._held) < 8 + size:
                break
            found.append(bytes(self._held[8 : 8 + size]))
            del self._held[: 8 + size]
        return found


_KINDS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        messages.Load, messages.Run, messages.Write, messages.Kill, messages.Forget, messages.Loaded,
        messages.Missing, messages.Ran, messages.Written, messages.Died, messages.Gone,
    )
}  # fmt: skip
_FIELDS = {name: get_type_hints(kind) for name, kind in _KINDS.items()}


def packed(message: ToMember | FromMember) -> dict[str, Any]:
    """Return a message between members as JSON values."""
    values = message._asdict()
    if "token" in values:
        values["token"] = token_text(values["token"])
    return {"is": type(message).__name__, **values}


def _counting(value: object) -> tuple[tuple[str, int], ...]:
    if not isinstance(value, list | tuple) or not all(
        isinstance(one, list | tuple) and len(one) == 2 and type(one[0]) is str and type(one[1]) is int
        for one in value
    ):
        raise Refused(400, "BadRequest", "Load.counting: expected pairs of a resident and a version")
    return tuple((name, version) for name, version in value)


def unpacked(values: Mapping[str, Any]) -> ToMember | FromMember:
    """Return the message of `packed`; fields beside its own are not read.

    Raises:
        Refused: 400: it is none.
    """
    name = values.get("is")
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise Refused(400, "BadRequest", f"is: {bounded.quoted(name)} is no message between members")
    found = {}
    for field, wanted in _FIELDS[str(name)].items():
        value = values.get(field)
        if wanted is Token:
            value = token_of(value)
        elif field == "counting":
            value = _counting(value)
        elif type(value) is not wanted:
            raise Refused(400, "BadRequest", f"{name}.{field}: expected {wanted.__name__}")
        found[field] = value
    message: ToMember | FromMember = kind(**found)
    return message
