"""The log of turns: each event of the coordinator as a line of JSON, so that all its decisions can be made
again from what it was told.

    python -m controller.group.turn_log FILE...

makes them again, and says how many there were and whether each state came out as it was. Lines are buffered:
the log is for people, what counts is on the disk volume already.
"""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TextIO

from controller import bounded
from controller.group.wire import packed, token_of, token_text, unpacked
from controller.policy.sharing import FromMember, Token
from controller.policy.sharing import coordinator as co

MOST_BYTES = 8 << 20  # of a file; the one before is kept
_MOST_LINE = 1 << 20
# Fields of a state, in their order, that a file begins with.
_SNAPSHOT = (
    "admission", "start", "random", "members", "versions", "cap", "sequence", "waiting", "loaded", "row",
)  # fmt: skip
_EVENTS: dict[str, Any] = {
    one.__name__: one
    for one in (co.join, co.leave, co.ask, co.call, co.release, co.recorded, co.expire, co.remind, co.receive)
}


class TurnLog:
    """Writes it.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: TextIO | None = None
        self._size = 0

    def write(
        self, now: int, before: co.Coordinator, name: str, given: tuple[Any, ...], after: co.Coordinator
    ) -> None:
        """Write what was told, and a checksum of the state that it led to."""
        if self._file is None or (self._size > MOST_BYTES and before.turn is None and not before.leaving):
            self._begin(now, before)
        self._line(
            {"at": now, "event": name, "given": [_value(one) for one in given], "state": checksum(after)}
        )

    def close(self) -> None:
        """Write what is buffered."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _begin(self, now: int, state: co.Coordinator) -> None:
        self.close()
        if self._path.exists():
            self._path.replace(self._path.with_suffix(".1" + self._path.suffix))
        self._file, self._size = self._path.open("w"), 0
        values = {name: getattr(state, name) for name in _SNAPSHOT}
        leaving = [[resident, sorted(members)] for resident, members in state.leaving]
        self._line(
            {"at": now, "event": "begin", "given": [values], "leaving": leaving, "state": checksum(state)}
        )

    def _line(self, values: dict[str, Any]) -> None:
        assert self._file is not None
        text = json.dumps(values, separators=(",", ":")) + "\n"
        self._size += len(text)
        self._file.write(text)


def checksum(state: co.Coordinator) -> int:
    """Return a checksum of a state; equal states have equal ones, in every process."""
    turn = state.turn
    plain = (
        state._replace(turn=None, leaving=()),
        None if turn is None else (turn._replace(awaited=frozenset()), sorted(turn.awaited)),
        [(resident, sorted(members)) for resident, members in state.leaving],
    )
    return zlib.crc32(repr(plain).encode())


def replay(lines: Iterable[str]) -> tuple[int, int]:
    """Make all decisions again and return how many events and how many grants there were.

    Raises:
        ValueError: a state came out otherwise, or a line is none of the log's.
    """
    state: co.Coordinator | None = None
    events = grants = 0
    for number, line in enumerate(lines, 1):
        values = bounded.load(line, f"line {number}", _MOST_LINE)
        name, given = values["event"], values["given"]
        if name == "begin":
            state = _snapshot(given[0], values["leaving"])
        else:
            if state is None or name not in _EVENTS:
                raise ValueError(f"line {number}: event {name!r} is not expected")
            before = state.sequence
            state, _ = _EVENTS[name](state, *(_given(one) for one in given))
            events += 1
            grants += state.sequence - before
        if checksum(state) != values["state"]:
            raise ValueError(f"line {number}: after {name} the state is not as it was")
    return events, grants


def _value(one: Any) -> Any:
    if isinstance(one, Token):
        return {"token": token_text(one)}
    if isinstance(one, tuple):
        return {"message": packed(one)}  # type: ignore[arg-type]
    return one


def _given(one: Any) -> Token | FromMember | str | int | bool | None:
    if isinstance(one, dict) and "token" in one:
        return token_of(one["token"])
    if isinstance(one, dict):
        return unpacked(one["message"])  # type: ignore[return-value]
    return one  # type: ignore[no-any-return]


def _snapshot(values: dict[str, Any], leaving: list[Any]) -> co.Coordinator:
    values = {
        **values,
        "members": tuple(values["members"]),
        "versions": tuple((name, version) for name, version in values["versions"]),
        "waiting": tuple(values["waiting"]),
        "leaving": tuple((resident, frozenset(members)) for resident, members in leaving),
    }
    return co.Coordinator(**values)


def main(paths: list[str]) -> int:
    """Replay files and return 0; 1: one of them came out otherwise."""
    code = 0
    for path in paths:
        try:
            with open(path) as file:
                events, grants = replay(file)
            print(f"{path}: {events} events, {grants} turns: every state as it was")
        except (OSError, ValueError, KeyError, TypeError) as error:
            print(f"{path}: {error}")
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
