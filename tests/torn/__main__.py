"""``python -m tests.torn --layout L``: exit code 1 if a torn set passed for whole or a whole one did not."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tests.torn import environment, halves
from tests.torn.crash import Crash, crashes, finished, recording
from tests.torn.judge import Tally, tally
from tests.torn.real_names import REAL
from tests.torn.recorded import KINDS
from tests.torn.savers import VARIANTS, Variant

SHM = Path("/dev/shm")  # judging flushes every file it links: in memory that costs nothing
RESULTS = Path(__file__).parent / "results.json"
HALVES = "HuggingFace/halves"
HALVES_OF = {f"{HALVES}-{kind}": kind for kind in KINDS}  # what the libraries have written
PROGRESS = 50  # kills between two lines that say how many have been made


def folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(dir=SHM if SHM.is_dir() else None, prefix="evalstop-torn-")


def followed(variant: Variant, kills: int, seed: int, recorded: bool) -> Tally:
    """Crashes of a saver that follows the library's code."""
    client = recording if recorded else None
    with folder() as root:
        found = crashes(
            variant.saver,
            Path(root),
            kills,
            seed,
            world=variant.world,
            horizon=variant.horizon,
            client=client,
        )
        whole = partial(finished, variant.saver, Path(root), seed, world=variant.world)
        return tally(variant.layout, _cleared(found), whole=whole)


def of_libraries(name: str, kills: int, seed: int, recorded: bool) -> Tally:
    """Crashes of the library itself."""
    with folder() as root:
        found = environment.real(name, Path(root), kills, seed, recorded)
        return tally(name.partition("/")[0], _cleared(found))


def half_deleted(orders: int, seed: int, recorded: bool) -> Tally:
    with folder() as root:
        found = halves.states(Path(root), orders, seed, recorded)
        return tally("HuggingFace", found, only=halves.STEP)


def half_deleted_of(kind: str, orders: int, seed: int, recorded: bool) -> Tally:
    with folder() as root:
        found = halves.recorded_states(kind, Path(root), orders, seed, recorded)
        return tally("HuggingFace", found, only=halves.STEP_OF_RECORDED)


def _cleared(found: Iterable[Crash]) -> Iterator[Crash]:
    """Each folder goes when it has been judged."""
    for number, crash in enumerate(found, 1):
        yield crash
        if number % PROGRESS == 0:
            print(f"    {number} kills judged", file=sys.stderr, flush=True)
        shutil.rmtree(crash.folder)
        shutil.rmtree(crash.folder.with_suffix(".run"), ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torn", description=__doc__)
    parser.add_argument("--layout", action="append", help="HuggingFace, or HuggingFace/zero3; default: all")
    parser.add_argument("--kills", type=int, default=200, help="of each way of writing a layout")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--followed",
        action="store_true",
        help="savers that follow the code, also where the library runs here",
    )
    parser.add_argument("--write", action="store_true", help=f"keep the figures in {RESULTS.name}")
    parser.add_argument("--sums", action="store_true", help=f"only add up what {RESULTS.name} has")
    given = parser.parse_args()
    if given.sums:
        return sums_of(json.loads(RESULTS.read_text())["rows"])
    everything = sorted({*VARIANTS, *(() if given.followed else REAL), HALVES, *HALVES_OF})
    wanted = [
        name
        for name in everything
        if not given.layout or any(name == one or name.startswith(f"{one}/") for one in given.layout)
    ]
    if not wanted:
        parser.error(f"--layout: {given.layout}, expected some of {', '.join(everything)}")
    failed = False
    for name in wanted:
        for recorded in (True, False):
            began = time.monotonic()
            source = "code followed"
            if name == HALVES:
                sums = half_deleted(max(1, round(given.kills * halves.ORDERS / 200)), given.seed, recorded)
            elif name in HALVES_OF:
                source = "the library, recorded"
                orders = max(1, round(given.kills * halves.ORDERS_OF_RECORDED / 200))
                sums = half_deleted_of(HALVES_OF[name], orders, given.seed, recorded)
            elif name in REAL and not given.followed:
                source = "the library"
                sums = of_libraries(name, given.kills, given.seed, recorded)
            else:
                sums = followed(VARIANTS[name], given.kills, given.seed, recorded)
            failed |= bool(sums.blessed) or (recorded and sums.found < sums.whole)
            row = {"source": source, "save records": recorded, **sums.row()}
            print(f"{name}: {json.dumps(row)} ({time.monotonic() - began:.0f} s)", flush=True)
            for line in sums.blessed[:5]:
                print(f"    torn, judged whole: {line}", flush=True)
            if given.write:
                _write(name, row)
    return int(failed)


def sums_of(rows: Mapping[str, Mapping[str, Any]]) -> int:
    """Print a line for each layout, with save records and without; return 1 if a torn set passed for whole,
    or one that was recorded was not found."""
    fields = ("kills", "whole", "found", "torn", "judged whole though torn")
    sums: dict[tuple[str, bool], Counter[str]] = {}
    for name, row in rows.items():
        for layout in (name.partition("/")[0], "all"):
            of = sums.setdefault((layout, bool(row["save records"])), Counter())
            of.update({field: int(row[field]) for field in fields})
    for (layout, recorded), of in sorted(sums.items()):
        said = ", ".join(f"{field} {of[field]:,}" for field in fields)
        print(f"{layout}, {'with' if recorded else 'without'} save records: {said}")
    recorded_all = sums["all", True]
    failed = any(of[fields[-1]] for of in sums.values()) or recorded_all["found"] < recorded_all["whole"]
    return int(failed)


def _write(name: str, row: dict[str, Any]) -> None:
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"versions": {}, "rows": {}}
    kept["versions"] = environment.versions()
    key = f"{name}, {row['source']}, {'with' if row['save records'] else 'without'} save records"
    kept["rows"][key] = row
    kept["rows"] = dict(sorted(kept["rows"].items()))
    RESULTS.write_text(json.dumps(kept, indent=1, sort_keys=False) + "\n")


if __name__ == "__main__":
    sys.exit(main())
