"""Client of a run folder's supervisor."""

import contextlib
import dataclasses
import fcntl
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deploy.local.processes import Process, end, wait_ended
from deploy.local.supervisor import LOCK, SOCKET, STATE

REPOSITORY = Path(__file__).resolve().parents[2]
_DOWN_TIMEOUT_S = 120.0  # more than all graces together: after it the supervisor is taken for hung


class ControlError(RuntimeError):
    """The supervisor is not there, or refused a request; the message says why."""


@dataclasses.dataclass(frozen=True)
class Spec:
    """A process for the supervisor to start.

    `env` is the whole environment; `grace` is the seconds between SIGTERM and SIGKILL; `needs` names
    the process without which this one cannot leave politely, so that it is not waited for in vain.
    """

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    log: str
    grace: float
    needs: str | None = None


@dataclasses.dataclass(frozen=True)
class ProcessReport:
    """State of one process, as the supervisor last wrote it."""

    name: str
    process: Process
    exit_code: int | None  # negative: the signal that ended it
    stopped: bool  # on request
    grace: float

    @property
    def running(self) -> bool:
        return self.exit_code is None and self.process.alive


@dataclasses.dataclass(frozen=True)
class State:
    """The run folder's record: the supervisor and its processes in the order in which they started."""

    supervisor: Process
    processes: Mapping[str, ProcessReport]

    @property
    def kept_up(self) -> bool:
        return self.supervisor.alive


class Control:
    """One run folder, seen from outside the supervisor."""

    def __init__(self, run: Path) -> None:
        self.run = run

    def launch(self, pass_fds: Sequence[int] = ()) -> subprocess.Popen[bytes]:
        """Start the supervisor, which leaves when the returned object's `stdin` closes (until `detach`).

        `pass_fds`: open files that the supervisor holds as long as it lives (reserved ports).
        Errors: ControlError if the folder has a supervisor, or it does not come up within ten seconds.
        """
        self.run.mkdir(parents=True, exist_ok=True, mode=0o700)
        log = self.run / "supervisor.log"
        with open(log, "ab") as output:
            supervisor = subprocess.Popen(
                [sys.executable, "-S", "-m", "deploy.local.supervisor", str(self.run)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                cwd=self.run,
                env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1"},
                start_new_session=True,  # a Ctrl-C meant for the launcher must not reach it
                pass_fds=pass_fds,
            )
        deadline = time.monotonic() + 10
        try:
            while True:
                state = self.state()
                if state is not None and state.supervisor.pid == supervisor.pid:
                    return supervisor
                if supervisor.poll() is not None or time.monotonic() > deadline:
                    raise ControlError(f"the supervisor did not come up: {_tail(log)} ({log})")
                time.sleep(0.01)
        except BaseException:  # Ctrl-C among them: it has started nothing yet, and nobody would wait for it
            supervisor.kill()
            supervisor.wait()
            raise

    def state(self) -> State | None:
        """Return what the supervisor wrote last; None if there never was one. Errors: ControlError if
        unreadable."""
        path = self.run / STATE
        try:
            raw = json.loads(path.read_text())
            supervisor = Process(int(raw["supervisor"]["pid"]), str(raw["supervisor"]["started"]))
            kept = {name: _kept(name, written) for name, written in raw["processes"].items()}
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ControlError(f"{path} is not what the supervisor writes ({error})") from error
        return State(supervisor, kept)

    def kept_up(self) -> bool:
        """Return whether a supervisor lives: it holds the lock as long as it does."""
        try:
            with open(self.run / LOCK) as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def ask(self, do: str, timeout_s: float = 60.0, **arguments: Any) -> None:
        """Send one request and wait until it is carried out. Errors: ControlError."""
        request = json.dumps({"do": do, **arguments}).encode() + b"\n"
        folder = None
        try:
            folder = os.open(self.run, os.O_RDONLY)
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(timeout_s)
                # A socket's path may have 107 bytes; through the folder's descriptor it has few.
                short = f"/proc/self/fd/{folder}/{SOCKET}" if sys.platform == "linux" else self.run / SOCKET
                connection.connect(str(short))
                connection.sendall(request)
                answer = json.loads(connection.makefile("rb").readline() or b'{"ok": false}')
        except (OSError, ValueError) as error:
            raise ControlError(f"no supervisor answers in {self.run} ({error})") from error
        finally:
            if folder is not None:
                os.close(folder)
        if not answer["ok"]:
            raise ControlError(f"{do}: {answer.get('error', 'the supervisor left without an answer')}")

    def start(self, spec: Spec) -> None:
        """Have the supervisor start a process. Errors: ControlError if it runs already or cannot start."""
        self.ask("start", spec=dataclasses.asdict(spec))

    def down(self) -> list[str]:
        """End everything that this folder's records name, in order; names of what a dead supervisor had left.

        Safe to call at any time, also twice and after crashes.
        """
        state = self.state()
        if state is None:
            return []
        if state.supervisor.alive:
            with contextlib.suppress(ControlError):
                self.ask("down")
            wait_ended(state.supervisor, _DOWN_TIMEOUT_S)
            end(state.supervisor, grace_s=0.0, group=False)
            state = self.state() or state
        left = [kept for kept in state.processes.values() if kept.running]
        for kept in reversed(left):
            end(kept.process, kept.grace)
        return [kept.name for kept in left]


def _kept(name: str, written: Mapping[str, Any]) -> ProcessReport:
    process = Process(int(written["pid"]), str(written["started"]))
    return ProcessReport(
        name, process, written["exitCode"], bool(written["stopped"]), float(written["grace"])
    )


def _tail(path: Path) -> str:
    with contextlib.suppress(OSError):
        lines = path.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"
    return "it said nothing"
