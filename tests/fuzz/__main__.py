"""`python -m tests.fuzz`: hunts for inputs that a parser of tenants' text does not survive.

What is found is made smaller, written to build/fuzz/TARGET/, and printed with how to replay it. An input that
was mended goes into tests/fuzz/corpus/TARGET/. Exit status 1: something was found.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from pathlib import Path

from tests.fuzz import corpus
from tests.fuzz.hunt import Hunted, hunt
from tests.fuzz.limits import examine
from tests.fuzz.target import ROOT, Target
from tests.fuzz.targets import TARGETS

OUT = ROOT / "build" / "fuzz"
ENGINES = ("hypothesis", "atheris")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--target", action="append", choices=sorted(TARGETS), metavar="T", help="of --list")
    seconds = "of CPU for all targets together, seeds not counted; default %(default)g"
    parser.add_argument("--seconds", type=float, default=600.0, help=seconds)
    parser.add_argument("--engine", choices=ENGINES, default="hypothesis", help="default %(default)s")
    parser.add_argument("--seed", type=int, help="the same inputs for the same number; default: another one")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="read one input; needs one --target")
    parser.add_argument("--list", action="store_true", help="the targets")
    parser.add_argument("--out", type=Path, default=OUT, help="where findings go; default build/fuzz")
    given = parser.parse_args(arguments)
    if given.list:
        for target in TARGETS.values():
            print(f"{target.name:28} {target.most:>8} bytes, {target.cpu:g} s, {target.memory >> 20} MiB")
        return 0
    targets = [TARGETS[name] for name in given.target or TARGETS]
    if given.replay is not None:
        if given.target is None and given.replay.parent.name in TARGETS:
            targets = [TARGETS[given.replay.parent.name]]
        if len(targets) != 1:
            parser.error(f"--replay {given.replay}: of which target? Name it by --target, one of --list")
        return _replay(targets[0], given.replay)
    start = given.seed if given.seed is not None else secrets.randbits(31)
    if given.engine == "atheris":
        from tests.fuzz.by_atheris import hunt_by_atheris

        return _all(targets, given.seconds, given.out, start, hunt_by_atheris)
    return _all(targets, given.seconds, given.out, start, hunt)


def _all(targets: list[Target], seconds: float, out: Path, start: int, by: object) -> int:
    assert callable(by)
    print(f"{len(targets)} targets, {seconds:g} s of CPU in all, --seed {start}", flush=True)
    begun, findings, used = time.monotonic(), 0, 0.0
    for place, target in enumerate(targets):
        found: Hunted = by(target, seconds / len(targets), start)
        used += found.cpu
        rate = found.inputs / found.cpu if found.cpu else 0.0
        state = "FOUND" if found.findings else "ok"
        print(
            f"[{place + 1:>2}/{len(targets)}] {target.name:28} {state:5} {found.inputs:>8} inputs "
            f"{found.cpu:7.1f} s of CPU {rate:8.0f}/s",
            flush=True,
        )
        for finding in found.findings:
            findings += 1
            path = corpus.save(finding, out)
            shown = repr(finding.data[:300]) + (
                f"… ({len(finding.data)} bytes)" if len(finding.data) > 300 else ""
            )
            print(f"\n{target.name}: {finding.kind}\n{finding.told}\ninput: {shown}")
            print(f"replay: python -m tests.fuzz --target {target.name} --replay {path}\n", flush=True)
    print(f"{findings} findings; {used:.1f} s of CPU, {time.monotonic() - begun:.1f} s in all")
    return 1 if findings else 0


def _replay(target: Target, file: Path) -> int:
    for seed in target.seeds():  # what is imported on the first call is not the input's
        examine(target, seed, memory=False)
    finding = examine(target, corpus.read(file))
    if finding is None:
        print(f"{target.name} reads {file} as it should")
        return 0
    print(f"{target.name}: {finding.kind}\n{finding.told}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
