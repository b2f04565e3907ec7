"""`python -m tests.frame`: what must not change while code moves, recorded and compared (README.md).

Exit codes: 0 nothing differs, 1 something does, 2 it could not be told.
"""

from __future__ import annotations

import argparse
import lzma
import os
import sys
from pathlib import Path

from tests.frame import decisions, inventory, words

RECORDED = Path(__file__).parent / "f6ce8f5.json.xz"  # before the first move


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.frame", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    play = commands.add_parser("decisions", help="play the same histories by two trees, compare each pass")
    play.add_argument("--before", type=Path, required=True, help="root of the tree before")
    play.add_argument(
        "--after", type=Path, default=decisions.ROOT, help="of the tree after; default: this one"
    )
    play.add_argument("--histories", type=int, default=100, help="how many; 0: none")
    play.add_argument("--seed", type=int, default=1, help="of the first")
    play.add_argument(
        "--each",
        type=int,
        default=decisions.EACH,
        help="of so many is told by which change that was meant they differ; default: %(default)s",
    )
    play.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="cores")
    play.add_argument(
        "--words", type=Path, help="the rename table; default: by the commit of the tree before"
    )
    play.add_argument(
        "--logs", type=Path, nargs="*", help="replay these decision logs too; none given: logs/"
    )
    play.add_argument("--out", type=Path, default=Path("build/frame"), help="for differences in full")

    see = commands.add_parser("inventory", help="print what others see of this tree, as sorted JSON")
    see.add_argument("--out", type=Path, help="write it to this file (.json or .json.xz)")

    compare = commands.add_parser(
        "compare", help="what differs between two inventories beyond the rename table"
    )
    compare.add_argument(
        "old", type=Path, nargs="?", default=RECORDED, help="default: as recorded of f6ce8f5"
    )
    compare.add_argument("new", type=Path, nargs="?", help="default: of this tree")
    compare.add_argument("--words", type=Path, default=words.TABLE, help="the rename table")

    given = parser.parse_args(arguments)
    try:
        if given.command == "inventory":
            return _inventory(given.out)
        if given.command == "compare":
            return _compare(given, words.load(given.words)["inventory"])
        path = given.words or words.of_commit(decisions.commit_of(given.before))
        return _decisions(given, words.load(path)["decisions"])
    except (decisions.Failed, ValueError, OSError) as error:
        print(f"python -m tests.frame {given.command}: {error}", file=sys.stderr)
        return 2


def _inventory(out: Path | None) -> int:
    text = inventory.dumps(inventory.inventory())
    if out is None:
        print(text, end="")
    elif out.suffix == ".xz":
        out.write_bytes(lzma.compress(text.encode(), preset=9))
    else:
        out.write_text(text)
    return 0


def _compare(given: argparse.Namespace, table: dict[str, dict[str, dict[str, str]]]) -> int:
    new = inventory.inventory() if given.new is None else inventory.load(given.new)
    old = inventory.load(given.old)
    registered = inventory.rows_of_new_members(old) if given.new is None else {}
    lines = inventory.differences(old, new, words.with_added(table, registered))
    entries = sum(map(len, new.values()))
    print(*lines, f"{entries} entries of {len(new)} sections: {len(lines) or 'none'} differ", sep="\n")
    return 1 if lines else 0


def _decisions(given: argparse.Namespace, table: dict[str, object]) -> int:
    before, after = given.before.resolve(), given.after.resolve()
    status = 0
    if given.logs is not None:
        paths = given.logs or sorted(decisions.LOGS.glob("*.jsonl.xz"))
        status |= decisions.report(
            "decisions of logs", decisions.logs(before, after, table, paths), given.out
        )
    if given.histories:
        seeds = range(given.seed, given.seed + given.histories)
        played = decisions.histories(before, after, table, seeds, given.jobs, given.each)
        status |= decisions.report("histories", played, given.out)
    return status


if __name__ == "__main__":
    sys.exit(main())
