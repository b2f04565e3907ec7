"""One container's processes: started by the launcher `enter.py`, watched by pidfd."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.local import processes
from deploy.local.agent import enter
from deploy.local.agent.users import User

LAUNCHER = [sys.executable, "-I", "-S", "-E", str(Path(enter.__file__).resolve())]
_PIPE_PATIENCE = 2.0  # s, for output to end after the launcher did
_KILL_PATIENCE = 2.0  # s, for the launcher to kill what has no namespace


@dataclass(frozen=True)
class Mount:
    """A volume's place in a container. ``source`` None: only make the folder ``target``."""

    source: str | None
    target: str
    read_only: bool = False


@dataclass(frozen=True)
class Command:
    """A command to run, all resolved: absolute ``cwd``, whole environment, ``mounting`` in `enter.py`'s
    words."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    hostname: str
    mounts: Sequence[Mount]
    mounting: str
    user: User | None = None  # None: the agent's own
    image: Sequence[str] = ()  # folders that the user must be able to reach, as in an image


@dataclass(frozen=True)
class Ended:
    """End of a container's main process: by itself, by a signal, or never started (``error``)."""

    code: int = 0
    signal: int = 0
    error: str = ""

    @property
    def exit_code(self) -> int:
        """As container runtimes report it: 128 + signal; 128 when the command could not be started."""
        if self.error:
            return 128
        return 128 + self.signal if self.signal else self.code


class ContainerProcess:
    """A started container; ``started`` is False if the command could not run; ``ended`` always resolves."""

    def __init__(self, command: Command, folder: Path, on_output: Callable[[bytes], None]) -> None:
        """Start. `folder` (this run's own) gets the launcher's files; output goes to `on_output`."""
        loop = asyncio.get_running_loop()
        self.command = command
        self.folder = folder
        self.started: asyncio.Future[bool] = loop.create_future()
        self.ended: asyncio.Future[Ended] = loop.create_future()
        self.init_pid: int | None = None  # pid 1 of its namespace, as the machine counts
        self._ended = Ended(signal=signal.SIGKILL)  # what holds if the launcher dies without a word
        (folder / "root").mkdir(parents=True, exist_ok=True)
        _write_private(folder / "spec.json", json.dumps(_spec(command, folder)))
        report, report_end = os.pipe()
        output, output_end = os.pipe()
        try:
            self._launcher = subprocess.Popen(
                [*LAUNCHER, "run", str(folder / "spec.json"), str(report_end)],
                stdin=subprocess.DEVNULL,
                stdout=output_end,
                stderr=output_end,
                env={},
                pass_fds=[report_end],
                start_new_session=True,
            )
        except BaseException:
            os.close(report)
            os.close(output)
            raise
        finally:
            os.close(report_end)
            os.close(output_end)
        with contextlib.suppress(ProcessLookupError):
            me = processes.identify(self._launcher.pid)
            _write_private(folder / "pid.json", json.dumps({"pid": me.pid, "started": me.started}))
        self._pidfd = os.pidfd_open(self._launcher.pid)
        loop.add_reader(self._pidfd, self._launcher_left)
        self._report_rest = b""
        self._silent = asyncio.Event()  # both pipes have ended
        self._readers = {report: self._report, output: on_output}
        for descriptor in self._readers:
            os.set_blocking(descriptor, False)
            loop.add_reader(descriptor, self._read, descriptor)

    def signal(self, number: int) -> None:
        """Send a signal to the container's main process (through the launcher)."""
        with contextlib.suppress(ProcessLookupError, OSError):
            signal.pidfd_send_signal(self._pidfd, number)

    async def kill(self) -> Ended:
        """SIGKILL to everything in the container; returns when it is gone."""
        if self.command.mounting == "none":
            self.signal(enter.KILL_ALL)
            await asyncio.wait({self.ended}, timeout=_KILL_PATIENCE)
        self.signal(signal.SIGKILL)
        return await asyncio.shield(self.ended)

    async def join(
        self, argv: Sequence[str], stdin: int, stdout: int, stderr: int, terminal: bool = False
    ) -> asyncio.subprocess.Process:
        """Start a command inside the container, with its environment and working directory.

        `stdin`, `stdout`, `stderr` are descriptors or asyncio.subprocess's constants; with `terminal`
        standard input is a terminal that becomes the command's own. Raises ProcessLookupError if the
        container has ended.
        """
        if self.ended.done() or (self.init_pid is None and self.command.mounting != "none"):
            raise ProcessLookupError("the container is not running")
        spec = {
            "argv": list(argv),
            "env": {**({"TERM": "xterm"} if terminal else {}), **self.command.env},
            "cwd": self.command.cwd,
            "mounting": self.command.mounting,
            "terminal": terminal,
            "user": _user(self.command),
        }
        read, write = os.pipe()
        try:
            child = await asyncio.create_subprocess_exec(
                *LAUNCHER,
                "join",
                str(self.init_pid or 0),
                f"/dev/fd/{read}",
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                env={},
                pass_fds=[read],
                start_new_session=True,
            )
        except BaseException:
            os.close(write)
            raise
        finally:
            os.close(read)
        with os.fdopen(write, "wb") as pipe, contextlib.suppress(BrokenPipeError):
            pipe.write(json.dumps(spec).encode())
        return child

    async def execute(self, argv: Sequence[str], seconds: float) -> tuple[int, bytes]:
        """Run a command inside the container: (exit code, output). Raises TimeoutError once it is killed."""
        asked = asyncio.subprocess
        child = await self.join(argv, asked.DEVNULL, asked.PIPE, asked.STDOUT)
        try:
            output, _ = await asyncio.wait_for(child.communicate(), seconds)
        except (TimeoutError, asyncio.CancelledError):
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()
            raise
        return child.returncode or 0, output

    # What the launcher and the container say

    def _read(self, descriptor: int) -> None:
        try:
            chunk = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            return
        if chunk:
            self._readers[descriptor](chunk)
        else:
            self._close(descriptor)

    def _close(self, descriptor: int) -> None:
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)
        del self._readers[descriptor]
        if not self._readers:
            self._silent.set()

    def _report(self, chunk: bytes) -> None:
        *lines, self._report_rest = (self._report_rest + chunk).split(b"\n")
        for line in lines:
            match json.loads(line):
                case {"pid": int(pid)}:
                    self.init_pid = pid
                case {"started": True}:
                    self._settle_started(True)
                case {"exit": int(code)}:
                    self._ended = Ended(code=code)
                case {"signal": int(number)}:
                    self._ended = Ended(signal=number)
                case {"error": str(message)}:
                    self._ended = Ended(error=message)
                    self._settle_started(False)

    def _settle_started(self, value: bool) -> None:
        if not self.started.done():
            self.started.set_result(value)

    def _launcher_left(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._launcher.wait()
        self._finishing = loop.create_task(self._finish())

    async def _finish(self) -> None:
        """Wait until both output pipes end after the launcher and its init, then settle.

        Without namespaces a stranger may hold the output for ever, so the wait has an end.
        """
        if self._readers:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._silent.wait(), _PIPE_PATIENCE)
        for descriptor in list(self._readers):
            self._close(descriptor)
        (self.folder / "pid.json").unlink(missing_ok=True)
        (self.folder / "spec.json").unlink(missing_ok=True)  # it holds the secrets of the environment
        self._settle_started(False)
        self.ended.set_result(self._ended)


async def kill_left_behind(folder: Path) -> int:
    """Kill the containers that a dead agent has left running below `folder`; how many there were."""
    killed = 0
    for record in await asyncio.to_thread(lambda: list(folder.glob("**/pid.json"))):
        try:
            raw = json.loads(record.read_text())
            process = processes.Process(int(raw["pid"]), str(raw["started"]))
        except (OSError, ValueError, KeyError):
            continue
        if processes.send(process, signal.SIGKILL, group=True):
            killed += 1
            await asyncio.to_thread(processes.wait_ended, process, 5.0)
        record.unlink(missing_ok=True)
    return killed


async def probe_mounting() -> str:
    """Return which way of mounting this machine allows: `root`, `user` or `none`."""
    child = await asyncio.create_subprocess_exec(
        *LAUNCHER, "probe", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    output, _ = await child.communicate()
    return output.decode().strip() or "none"


def _spec(command: Command, folder: Path) -> dict[str, object]:
    return {
        "parent": os.getpid(),
        "mounting": command.mounting,
        "root": str(folder / "root"),
        "hostname": command.hostname,
        "cwd": command.cwd,
        "argv": list(command.argv),
        "env": dict(command.env),
        "user": _user(command),
        "image": list(command.image),
        "mounts": [
            {"source": mount.source, "target": mount.target, "read_only": mount.read_only}
            for mount in command.mounts
        ],
    }


def _user(command: Command) -> dict[str, object] | None:
    return None if command.user is None else dataclasses.asdict(command.user)


def _write_private(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
