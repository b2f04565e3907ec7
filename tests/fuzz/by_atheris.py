"""The same hunt with atheris, which is told by coverage which inputs are worth changing further.

It is no dependency: see README.md for how to get it. Its fuzzer ends the process that it runs in, so each
target has one of its own here, too, and what was found is known by the file that the child writes.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz import corpus, hostile
from tests.fuzz.hunt import Hunted
from tests.fuzz.limits import examine
from tests.fuzz.target import ROOT, Finding, Target

_ENDED = 77  # exit status of libFuzzer for an input that ended the process
_RUNS = "runs"
_KIND, _DATA = "kind", "data"


def hunt_by_atheris(target: Target, seconds: float, start: int) -> Hunted:
    """As `hunt.hunt`.

    Raises:
        SystemExit: atheris is not installed.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory(prefix="evalstop-atheris-") as name:
        folder = Path(name)
        seeds = [*target.seeds(), *(corpus.read(path) for path in corpus.load(target))]
        (folder / "seeds").mkdir()
        for number, data in enumerate(seeds):
            (folder / "seeds" / str(number)).write_bytes(data[: target.most])
        words = sorted({*hostile.WORDS, *target.words} - {b""})
        (folder / "words").write_text("".join(f'"{_escaped(word)}"\n' for word in words if len(word) <= 64))
        command = [sys.executable, "-m", "tests.fuzz.by_atheris", target.name, name, str(seconds), str(start)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if (folder / "missing").exists():
            sys.exit("atheris is not installed; tests/fuzz/README.md says how to get it")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        runs = int((folder / _RUNS).read_text()) if (folder / _RUNS).exists() else 0
        return Hunted(target.name, runs, cpu, _findings(target, folder, done))


def _findings(target: Target, folder: Path, done: subprocess.CompletedProcess[str]) -> tuple[Finding, ...]:
    if (folder / _KIND).exists():
        data = (folder / _DATA).read_bytes()
        return (Finding(target.name, (folder / _KIND).read_text(), done.stderr[-2000:], data),)
    for crash in folder.glob("crash-*"):  # what ended the process before a word could be said
        return (Finding(target.name, "death", done.stderr[-2000:], crash.read_bytes()),)
    if done.returncode not in (0, _ENDED):
        raise RuntimeError(f"{target.name}: atheris ended with {done.returncode}: {done.stderr[-2000:]}")
    return ()


def _escaped(word: bytes) -> str:
    return "".join(chr(c) if 32 < c < 127 and c not in b'"\\' else f"\\x{c:02x}" for c in word)


def main() -> None:
    name, place, seconds, start = sys.argv[1:]
    folder = Path(place)
    try:
        import atheris  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        (folder / "missing").touch()
        sys.exit(1)
    with atheris.instrument_imports(include=["controller", "sim"]):
        from tests.fuzz.targets import TARGETS
    from controller import log

    log.configure("CRITICAL", "json", sys.stderr)
    target = TARGETS[name]
    seeds = list(target.seeds())
    for data in seeds:
        examine(target, data, memory=False)
    until, runs = time.process_time() + float(seconds), 0

    def one(data: bytes) -> None:
        nonlocal runs
        runs += 1
        finding = examine(target, data)
        if finding is not None:
            (folder / _KIND).write_text(f"{finding.kind}\n{finding.told}")
            (folder / _DATA).write_bytes(data)
        if finding is not None or time.process_time() > until:
            (folder / _RUNS).write_text(str(runs))
            os._exit(0)

    options = [
        f"-max_len={target.most}",
        f"-seed={int(start) or 1}",
        f"-dict={folder / 'words'}",
        f"-artifact_prefix={folder}/",
        "-timeout=600",
        "-rss_limit_mb=4096",
        "-detect_leaks=0",
    ]
    atheris.Setup([sys.argv[0], *options, str(folder / "seeds")], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
