"""``python -m tests.torn --layout L``: exit code 1 if a torn set passed for whole or a whole one did not."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.torn.crash import Crash, crashes, recording
from tests.torn.judge import Tally, tally
from tests.torn.savers import VARIANTS, Variant

SHM = Path("/dev/shm")  # judging flushes every file it links: in memory that costs nothing


def scripted(variant: Variant, root: Path, kills: int, seed: int, recorded: bool) -> Iterator[Crash]:
    """Crashes of a followed saver; each folder goes when it has been judged."""
    client = recording if recorded else None
    found = crashes(
        variant.saver, root, kills, seed, world=variant.world, horizon=variant.horizon, client=client
    )
    for crash in found:
        yield crash
        shutil.rmtree(crash.folder)
        shutil.rmtree(crash.folder.with_suffix(".run"), ignore_errors=True)


def run(variant: Variant, kills: int, seed: int, recorded: bool) -> Tally:
    with tempfile.TemporaryDirectory(dir=SHM if SHM.is_dir() else None, prefix="evalstop-torn-") as root:
        return tally(variant.layout, scripted(variant, Path(root), kills, seed, recorded))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torn", description=__doc__)
    parser.add_argument("--layout", action="append", help="HuggingFace, or HuggingFace/zero3; default: all")
    parser.add_argument("--kills", type=int, default=200, help="of each way of writing a layout")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    wanted = [
        variant
        for name, variant in VARIANTS.items()
        if not given.layout or any(name == one or name.startswith(f"{one}/") for one in given.layout)
    ]
    if not wanted:
        parser.error(f"--layout: {given.layout}, expected some of {', '.join(VARIANTS)}")
    failed = False
    for variant in wanted:
        for recorded in (True, False):
            sums = run(variant, given.kills, given.seed, recorded)
            failed |= bool(sums.blessed) or (recorded and sums.found < sums.whole)
            how = "save records" if recorded else "no save records"
            print(f"{variant.layout}/{variant.name}, {how}: {json.dumps(sums.row())}", flush=True)
            for line in sums.blessed[:5]:
                print(f"    torn, judged whole: {line}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
