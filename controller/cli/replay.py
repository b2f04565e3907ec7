"""`evalstop replay LOG`: decide everything in a decision log anew, and compare byte for byte.

Exit codes: 0 every decision came out the same, 1 some did not, 2 the log cannot be read, or holds none.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from controller.policy.wording import counted

if TYPE_CHECKING:
    from controller.policy import decision_log

DIFFERENT, UNREADABLE = 1, 2

Log = Annotated[
    Path,
    typer.Argument(
        help="Decision log as the operator wrote it (JSON lines).", exists=True, dir_okay=False, readable=True
    ),
]


def replay(log: Log) -> None:
    """Decide everything in a decision LOG anew; report the first decision that comes out otherwise."""
    from controller.policy import decision_log  # loads the whole brain, which other commands do without

    kinds: Counter[str] = Counter()
    different = 0
    first: decision_log.Replayed | None = None
    try:
        with log.open(encoding="utf-8") as lines:
            for entry in decision_log.replay(lines):
                kinds[entry.kind] += 1
                if not entry.same:
                    different += 1
                    first = first or entry
    except (decision_log.LogError, UnicodeDecodeError, OSError) as error:
        packed = isinstance(error, UnicodeDecodeError)
        why = "it is no UTF-8 text; is it packed? gunzip -c FILE.gz > FILE unpacks it" if packed else error
        typer.echo(f"{log}: {why}", err=True)
        typer.echo(f"stopped there, after {_counted(kinds)}, {different} different", err=True)
        raise typer.Exit(UNREADABLE) from None
    if first is not None:
        when = datetime.fromtimestamp(first.now, UTC).isoformat(timespec="milliseconds")
        _say(f"first difference: line {first.line}, {first.kind} {first.subject}, {when}")
        for where, recorded, replayed in differences(json.loads(first.recorded), json.loads(first.replayed)):
            _say(where, 2)
            _say(f"recorded {recorded}", 4)
            _say(f"replayed {replayed}", 4)
    if not kinds:
        typer.echo(f"{log}: no decision in it: is it a decision log?", err=True)
        raise typer.Exit(UNREADABLE)
    _say(f"{log}: {_counted(kinds)} replayed, {different or 'none'} different")
    if different:
        raise typer.Exit(DIFFERENT)


def _say(text: str, margin: int = 0) -> None:
    """Print a text in lines that fit the screen, beside a margin."""
    from controller.cli import output
    from controller.cli.terminal import terminal
    from controller.cli.why import wrapped

    output.lines(" " * margin + line for line in wrapped(text, terminal(), margin))


def _counted(kinds: Counter[str]) -> str:
    parts = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    return counted(kinds.total(), "decision") + (f" ({parts})" if parts else "")


_ABSENT = object()


def differences(recorded: Any, replayed: Any, path: str = "$", limit: int = 5) -> list[tuple[str, str, str]]:
    """Return the first places where two JSON values differ: (JSON path, recorded, replayed), long
    values cut."""
    walk = itertools.islice(_walk(recorded, replayed, path), limit)
    return [(where, _shown(a), _shown(b)) for where, a, b in walk]


def _walk(a: Any, b: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted(a.keys() | b.keys()):
            yield from _walk(a.get(key, _ABSENT), b.get(key, _ABSENT), f"{path}.{key}")
    elif isinstance(a, list) and isinstance(b, list):
        for i in range(max(len(a), len(b))):
            left = a[i] if i < len(a) else _ABSENT
            right = b[i] if i < len(b) else _ABSENT
            yield from _walk(left, right, f"{path}[{i}]")
    elif a is _ABSENT or b is _ABSENT or json.dumps(a) != json.dumps(b):
        yield path, a, b


def _shown(value: Any, limit: int = 160) -> str:
    if value is _ABSENT:
        return "(absent)"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= limit else text[: limit - 1] + "…"
