"""Checks of a family: does it keep what a worker group relies on, how much memory and time does it take.
Standard library only.

    python -m evalstop_client.conform /path/family.py --members 2        # `evalstop doctor --family` shows
    it nicely

It starts one worker process per member, as a group does (`worker`), and asks it what a group asks: load,
call, save, off-load, load again, and the same in new processes. States lie in a temporary folder; the
device is a file of shared memory, or the GPUs that the process sees. What is printed is JSON, one object.

The family's `examples` say which calls work. Without them functions are not called.
"""

from __future__ import annotations

import argparse
import contextlib
import filecmp
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from evalstop_client.arrays import array_of
from evalstop_client.envelope import Array
from evalstop_client.family import Call, Family
from evalstop_client.worker import family_of, receive, send

OK, NOTE, WRONG = "ok", "note", "WRONG"
PATIENCE = 300.0  # s for an answer of a worker's
RESIDENTS = 3  # `maxResidents`, as it is by default
CYCLES = 3  # off-loads whose memory and time are looked at
SLEEPER = 0.1  # of its state that a sleeping worker may keep for itself
_DEVICE = 64 << 30  # bytes of the device's file, which is sparse


class Finding(NamedTuple):
    level: str
    about: str
    text: str


class Broken(Exception):
    """A worker has ended or refused; nothing more can be found out."""


class Group:
    """Worker processes of one resident, one for each member.

    Args:
        family: ``package.module:Class`` or ``/path/file.py:Class``.
        members: how many.
        folder: for devices and log.
        local: whether devices are files; else GPUs.
    """

    def __init__(self, family: str, members: int, folder: Path, *, local: bool) -> None:
        self.members = members
        self._folder, self._port, self._processes = folder, _free_port(), list[subprocess.Popen[bytes]]()
        self._sockets: list[socket.socket] = []
        # Each member has a device of its own.
        self.devices = [folder / f"device-{rank}" for rank in range(members)] if local else []
        for device in self.devices:
            with device.open("wb") as file:
                file.truncate(_DEVICE)
        self.functions: dict[str, list[str] | None] = {}
        self.log = folder / "log"
        for rank in range(members):
            ours, theirs = socket.socketpair()
            environment = {
                **os.environ,
                "EVALSTOP_WORKER_SOCKET": str(theirs.fileno()),
                "EVALSTOP_WORKER_FAMILY": family,
                "EVALSTOP_WORKER_PLACE": json.dumps(self._place(rank)),
                "EVALSTOP_WORKER_PARENT": str(os.getpid()),
            }
            with self.log.open("ab") as log:
                self._processes.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "evalstop_client.worker"],
                        pass_fds=[theirs.fileno()],
                        env=environment,
                        stdout=log,
                        stderr=log,
                    )
                )
            theirs.close()
            ours.settimeout(PATIENCE)
            self._sockets.append(ours)
        for rank in range(members):
            hello, _ = self._received(rank)
            self.functions = hello["hello"]["functions"]

    def _place(self, rank: int) -> dict[str, Any]:
        device = {"device": str(self.devices[rank]), "deviceBytes": _DEVICE} if self.devices else {}
        return {
            "resident": "conform-1", "rank": rank, "size": self.members, "host": "127.0.0.1",
            "port": self._port,            "generation": 1, **device,
        }  # fmt: skip

    def ask(
        self, request: Mapping[str, Any], arrays: Mapping[str, Array] | None = None
    ) -> list[tuple[Any, Any]]:
        """Return the answers of all members. ``{folder}`` of a request's folders becomes the member's own."""
        for rank, connection in enumerate(self._sockets):
            own = {
                key: f"{value}/{rank}" if key in ("folder", "base") and value is not None else value
                for key, value in request.items()
            }
            if request["do"] == "save":
                Path(own["folder"]).mkdir(parents=True)
            if request["do"] == "load":
                own["place"] = self._place(rank)
            send(connection, own, arrays or {})
        return [self._received(rank) for rank in range(self.members)]

    def _received(self, rank: int) -> tuple[dict[str, Any], Mapping[str, Array]]:
        try:
            got = receive(self._sockets[rank])
        except (OSError, ValueError) as fault:
            raise Broken(f"member {rank}: {type(fault).__name__}: {fault}; {self._tail()}") from None
        if got is None:
            raise Broken(f"member {rank}: its process has ended; {self._tail()}")
        if "failed" in got[0] or "full" in got[0]:
            raise Broken(f"member {rank}: {got[0].get('failed') or got[0].get('full')}; {self._tail()}")
        return got

    def _tail(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()[-3:]
        return "its last lines: " + " | ".join(lines) if lines else "it has printed nothing"

    def private(self, rank: int) -> int:
        """Return bytes of memory that only this member's process has."""
        return _status(self._processes[rank].pid, "RssAnon")

    def on_device(self, rank: int) -> int:
        """Return bytes that this member's process has on the device."""
        pid = self._processes[rank].pid
        if not self.devices:
            return _on_gpus(pid)
        total = 0
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            if line.endswith(str(self.devices[rank])):
                first, last = (int(one, 16) for one in line.split()[0].split("-"))
                total += last - first
        return total

    def close(self) -> None:
        for connection in self._sockets:
            connection.close()
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)
            process.kill()
            process.wait()
        for device in self.devices:
            device.unlink()


def examine(family: str, members: int, *, local: bool) -> dict[str, Any]:
    """Return what is found: ``findings``, ``measured``, and ``pool``, what to write into the pool."""
    found: list[Finding] = []
    measured: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="evalstop-conform-", dir=_memory()) as folder:
        try:
            for finding in _examine(family, members, Path(folder), measured, local):
                found.append(finding)
        except Broken as fault:
            found.append(Finding(WRONG, "worker", str(fault)))
    return {
        "family": family,
        "members": members,
        "findings": [finding._asdict() for finding in found],
        "measured": measured,
        "pool": _pool(family, members, measured) if "stateBytes" in measured else None,
    }


def _examine(
    name: str, members: int, folder: Path, measured: dict[str, Any], local: bool
) -> Iterator[Finding]:
    cls: type[Family] = family_of(name)
    turns = [[_call(call) for call in turn] for turn in cls.examples()]

    def group() -> Group:
        return Group(name, members, folder, local=local)

    first = group()
    try:
        if not first.functions:
            yield Finding(WRONG, "functions", "there are none, expected methods with @function")
            return
        yield Finding(OK, "functions", ", ".join(first.functions))
        before = [first.private(rank) for rank in range(members)]
        sizes = [answer["loaded"]["regions"] for answer, _ in first.ask({"do": "load", "folder": None})]
        state = max(sum(one.values()) for one in sizes)
        measured |= {"stateBytes": state, "regions": max(sizes, key=lambda one: sum(one.values()))}
        yield Finding(OK, "regions", ", ".join(f"{key} {_bytes(size)}" for key, size in sizes[0].items()))
        first.ask({"do": "save", "folder": str(folder / "fresh"), "base": None})
        answers = _turns(first, turns, folder, "a", measured, sizes)
        yield from answers.findings
        yield from _offloads(first, folder / "fresh", measured, before, state)
        # The same process from the same state, and new processes from it, and from nothing.
        again = _turns(first, turns, folder, "b", {}, sizes)
        yield from _same("in the same processes", answers, again, folder, "a", "b")
        first.ask({"do": "offload"})
    finally:
        first.close()
    second = group()
    try:
        newest = f"a{len(turns)}" if turns else "fresh"
        second.ask({"do": "load", "folder": str(folder / newest)})
        second.ask({"do": "save", "folder": str(folder / "restored"), "base": None})
        yield _equal(
            "restored", "a state that is loaded is the one that was written", folder, newest, "restored"
        )
        second.ask({"do": "offload"})
        second.ask({"do": "load", "folder": str(folder / "fresh")})
        anew = _turns(second, turns, folder, "c", {}, sizes)
        yield from _same("in new processes", answers, anew, folder, "a", "c")
    finally:
        second.close()
    third = group()
    try:
        third.ask({"do": "load", "folder": None})
        third.ask({"do": "save", "folder": str(folder / "anew"), "base": None})
        yield _equal("fresh", "a fresh state is the same each time", folder, "fresh", "anew")
    finally:
        third.close()
    uncalled = sorted(set(first.functions) - {call.function for turn in turns for call in turn})
    if uncalled:
        yield Finding(
            NOTE, "examples", f"not called: {', '.join(uncalled)}; name a call of each in examples()"
        )


class _Answers(NamedTuple):
    digests: list[str]  # of member 0's answers
    findings: list[Finding]
    calls: list[str]


def _turns(
    group: Group,
    turns: Sequence[Sequence[Call]],
    folder: Path,
    run: str,
    measured: dict[str, Any],
    sizes: Sequence[Mapping[str, int]],
) -> _Answers:
    """Make the turns on the state that is on the device, each saved as a version of its own."""
    digests, findings, calls = [], list[Finding](), list[str]()
    base = folder / "fresh"
    times: dict[str, list[float]] = {}
    most = [group.on_device(rank) for rank in range(group.members)]
    saves = []
    for number, turn in enumerate(turns, 1):
        changed: set[str] = set()
        for call in turn:
            began = time.monotonic()
            request = {"do": "call", "function": call.function, "arguments": dict(call.arguments)}
            (answer, arrays), *_ = group.ask(request, call.arrays)
            times.setdefault(call.function, []).append(time.monotonic() - began)
            most = [max(had, group.on_device(rank)) for rank, had in enumerate(most)]
            if "refused" in answer:
                raise Broken(f"examples: {call.function} refuses its own example: {answer['refused']}")
            digests.append(_digest(answer, arrays))
            calls.append(call.function)
            changes = group.functions.get(call.function)
            changed |= set(sizes[0]) if changes is None else set(changes)
        target = folder / f"{run}{number}"
        began = time.monotonic()
        saved = group.ask({"do": "save", "folder": str(target), "base": str(base)})
        saves.append(time.monotonic() - began)
        for answer, _ in saved:
            if answer["saved"]["regions"] not in list(sizes):
                text = f"names or sizes change after {', '.join(c.function for c in turn)}, expected the same"
                findings.append(Finding(WRONG, "regions", text))
        findings += _unchanged(group, turn, changed, base, folder, sizes)
        base = target
    if turns:
        measured |= {
            "deviceBytes": max(most),
            "saveSeconds": max(saves),
            "functionSeconds": {name: max(seconds) for name, seconds in times.items()},
        }
    return _Answers(digests, findings, calls)


def _unchanged(
    group: Group,
    turn: Sequence[Call],
    changed: set[str],
    base: Path,
    folder: Path,
    sizes: Sequence[Mapping[str, int]],
) -> list[Finding]:
    """Return the regions that changed though no function says so. All of them are written, and compared."""
    check = folder / "check"
    group.ask({"do": "save", "folder": str(check), "base": None})
    try:
        false = sorted(
            name
            for rank, regions in enumerate(sizes)
            for name in regions
            if name not in changed and not _equal_files(base / str(rank) / name, check / str(rank) / name)
        )
    finally:
        shutil.rmtree(check)
    names = ", ".join(call.function for call in turn)
    return [
        Finding(
            WRONG, "changes", f"{names}: region {name} changed, and no function says so: it would be lost"
        )
        for name in dict.fromkeys(false)
    ]


def _offloads(
    group: Group, fresh: Path, measured: dict[str, Any], before: Sequence[int], state: int
) -> Iterator[Finding]:
    """Off-load and load, several times: what stays on the device and in the process, and how long it
    takes."""
    loads, offloads, kept, private = [], [], 0, 0
    for _ in range(CYCLES):
        began = time.monotonic()
        group.ask({"do": "offload"})
        offloads.append(time.monotonic() - began)
        kept = max(group.on_device(rank) for rank in range(group.members))
        private = max(group.private(rank) - before[rank] for rank in range(group.members))
        began = time.monotonic()
        group.ask({"do": "load", "folder": str(fresh)})
        loads.append(time.monotonic() - began)
        measured["deviceBytes"] = max(
            measured.get("deviceBytes", 0), *(group.on_device(rank) for rank in range(group.members))
        )
    measured |= {"residualBytes": kept, "loadSeconds": max(loads), "offloadSeconds": max(offloads)}
    if group.devices and kept:
        yield Finding(WRONG, "offload", f"{_bytes(kept)} stay on the device after an off-load, expected none")
    elif kept >= max(1, measured["deviceBytes"] // 2):
        yield Finding(
            WRONG, "offload", f"{_bytes(kept)} of {_bytes(measured['deviceBytes'])} stay on the device"
        )
    else:
        yield Finding(
            OK, "offload", f"{_bytes(kept)} stay on the device, of {_bytes(measured['deviceBytes'])}"
        )
    # A process grows by some MB for its libraries, whatever the state.
    if private > SLEEPER * state + (64 << 20):
        text = f"{_bytes(private)} of its own memory after {CYCLES} off-loads, more than a tenth of the state"
        yield Finding(WRONG, "sleeper", text)
    else:
        yield Finding(OK, "sleeper", f"{_bytes(max(0, private))} of its own memory while it sleeps")


def _same(
    where: str, ours: _Answers, theirs: _Answers, folder: Path, one: str, other: str
) -> Iterator[Finding]:
    different = sorted({call for call, a, b in zip(ours.calls, ours.digests, theirs.digests) if a != b})
    if different:
        yield Finding(WRONG, "repeatable", f"{', '.join(different)}: another answer to the same call {where}")
    elif ours.calls:
        yield Finding(OK, "repeatable", f"{len(ours.calls)} calls have the same answers {where}")
    number = 1
    while (folder / f"{one}{number}").exists():
        regions = _differing(folder / f"{one}{number}", folder / f"{other}{number}")
        if regions:
            text = f"turn {number} leaves another state {where}: {', '.join(regions)} differ"
            yield Finding(WRONG, "repeatable", text)
            return
        number += 1
    if number > 1:
        yield Finding(OK, "repeatable", f"{number - 1} turns leave the same state {where}")


def _equal(about: str, text: str, folder: Path, one: str, other: str) -> Finding:
    regions = _differing(folder / one, folder / other)
    if regions:
        return Finding(WRONG, about, f"{', '.join(regions)} differ, expected: {text}")
    return Finding(OK, about, text)


def _differing(one: Path, other: Path) -> list[str]:
    names = sorted(path.relative_to(one) for path in one.rglob("*") if path.is_file())
    return list(dict.fromkeys(name.name for name in names if not _equal_files(one / name, other / name)))


def _equal_files(one: Path, other: Path) -> bool:
    return filecmp.cmp(one, other, shallow=False)


def _call(call: Call) -> Call:
    return Call(call.function, call.arguments, {name: array_of(one) for name, one in call.arrays.items()})


def _digest(answer: Mapping[str, Any], arrays: Mapping[str, Array]) -> str:
    digest = hashlib.sha256(json.dumps(answer.get("result"), sort_keys=True).encode())
    for name, one in sorted(arrays.items()):
        digest.update(f"{name} {one.dtype} {one.shape}".encode())
        digest.update(one.data)
    return digest.hexdigest()


def _pool(family: str, members: int, measured: Mapping[str, Any]) -> dict[str, Any]:
    """Return the family's entry in ``GPUPool.spec.sharing.families[]``, without its pod template."""
    state = measured["stateBytes"]
    name = "".join(c if c.isalnum() else "-" for c in Path(family.rpartition(":")[0]).stem.lower()).strip("-")
    return {
        "name": name.replace("-family", "") or "family",
        "replicas": members,
        # A family may have its state elsewhere than on a local device, which then has none of it.
        "deviceBytes": max(measured.get("deviceBytes", 0), state),
        "residualBytes": measured.get("residualBytes", 0),
        # One state for each resident, and a spare: a turn's result lies beside what it began with.
        "hostBytes": (RESIDENTS + 1) * state,
    }


def _bytes(count: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if abs(count) >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} bytes"


def _status(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) << 10
    return 0


def _on_gpus(pid: int) -> int:
    """Return bytes of all GPUs that a process has, as the driver says."""
    ask = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    listed = subprocess.run(ask, capture_output=True, text=True, timeout=60).stdout
    pairs = [line.split(",") for line in listed.splitlines() if line.count(",") == 1]
    return sum(int(used) << 20 for owner, used in pairs if int(owner) == pid and used.strip().isdigit())


def _memory() -> str | None:
    """Return a folder in memory, if there is one: as states lie in a group."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def named(text: str) -> str:
    """Return a family's whole name: of a file without a class its ``FAMILY``, or the one family that it
    defines.

    Raises:
        ValueError: there is none, or there are several.
        OSError: there is no such file.
    """
    where, _, cls = text.rpartition(":")
    if where and cls:
        return f"{Path(where).resolve()}:{cls}" if where.endswith(".py") else text
    path = Path(text).resolve()
    if not path.is_file():
        raise FileNotFoundError(
            f"{text}: no such file, expected FILE.py, FILE.py:Class or package.module:Class"
        )
    import runpy

    made = runpy.run_path(str(path))
    own = [
        name
        for name, one in made.items()
        if isinstance(one, type) and issubclass(one, Family) and one.__module__ == "<run_path>"
    ]
    if "FAMILY" in made:
        own = ["FAMILY"]
    if len(own) != 1:
        raise ValueError(
            f"{text}: {', '.join(own) or 'no class'} from evalstop_client.family.Family, "
            f"expected one, or {text}:Class"
        )
    return f"{path}:{own[0]}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what is found as JSON. Return 1 if something is wrong, 2 if there is no such family."""
    parser = argparse.ArgumentParser(
        prog="python -m evalstop_client.conform", description=__doc__.splitlines()[0]
    )
    parser.add_argument("family", help="FILE.py, FILE.py:Class or package.module:Class")
    parser.add_argument("--members", type=int, default=1, help="processes that work together")
    parser.add_argument("--gpu", action="store_true", help="measure GPUs; else a file of shared memory")
    given = parser.parse_args(arguments)
    if not 1 <= given.members <= 64:
        parser.error(f"--members: {given.members}, expected 1 to 64")
    try:
        name = named(given.family)
        family_of(name)
    except Exception as fault:  # whatever the family's own code raises
        print(json.dumps({"error": f"{type(fault).__name__}: {fault}"}))
        return 2
    found = examine(name, given.members, local=not given.gpu)
    print(json.dumps(found))
    return 1 if any(finding["level"] == WRONG for finding in found["findings"]) else 0


if __name__ == "__main__":
    sys.exit(main())
