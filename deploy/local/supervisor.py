"""The supervisor: a small process that owns all the others of one work folder and ends them in order.

`python -m deploy.local.supervisor RUN_FOLDER` starts nothing by itself. It takes requests, one JSON line
each, from the socket `control.sock` in its run folder (see `control.py`), starts processes as its
children, and writes who runs to `state.json`. It ends them all, the last started first and each
gone before the next is told, when

- it gets SIGTERM, SIGINT or SIGHUP, or the request `down`;
- its standard input closes before a request `detach` came. Whoever started it holds the other end,
  so a launcher that crashes, is killed or is interrupted takes everything with it, in order.

If the supervisor itself is killed, the kernel kills its children (PR_SET_PDEATHSIG), and the next `up` or
`down` finds what that may have missed by the records in `state.json`.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, BinaryIO

from deploy.local import processes
from deploy.local.processes import Process

LOCK = "supervisor.lock"
SOCKET = "control.sock"
STATE = "state.json"
_REQUEST_LIMIT = 1 << 20  # bytes
_REQUEST_TIMEOUT_S = 5.0
_HELPLESS_GRACE_S = 1.0  # for a process whose own needs are gone, such as the API server without etcd
_STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclasses.dataclass
class SupervisedProcess:
    """One process that the supervisor started: how, and what became of it."""

    spec: dict[str, Any]  # name, argv, env, cwd, log, grace, needs: what control.Spec sends
    child: subprocess.Popen[bytes]
    process: Process
    exit_code: int | None = None
    stopped: bool = False  # on request, so that its absence is no fault

    def described(self) -> dict[str, Any]:
        return {
            "pid": self.process.pid,
            "started": self.process.started,
            "exitCode": self.exit_code,
            "stopped": self.stopped,
            "grace": self.spec["grace"],
        }


class Supervisor:
    """Starts, watches and ends the processes of one run folder."""

    def __init__(self, lifeline: BinaryIO) -> None:
        self.lifeline = lifeline
        self.kept: dict[str, SupervisedProcess] = {}  # in the order of their first start
        self.leaving = False
        self.selector = selectors.DefaultSelector()
        # A signal only has to end the wait in `run`: what it means is looked up there.
        self.wake_read, self.wake_write = socket.socketpair()
        self.wake_read.setblocking(False)
        self.wake_write.setblocking(False)
        signal.set_wakeup_fd(self.wake_write.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in _STOPPING:
            signal.signal(number, self._leave)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(SOCKET)  # ours alone: the lock is held
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(SOCKET)  # relative to the run folder: the path's length does not count
        self.listener.listen(16)

    def _leave(self, *_: object) -> None:
        self.leaving = True

    def run(self) -> None:
        """Serve until told to leave, then end everything."""
        self.selector.register(self.lifeline, selectors.EVENT_READ)
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.selector.register(self.wake_read, selectors.EVENT_READ)
        self.write_state()
        while not self.leaving:
            for key, _ in self.selector.select():
                if key.fileobj is self.listener:
                    self.serve()
                elif key.fileobj is self.lifeline:
                    if not os.read(self.lifeline.fileno(), 4096):
                        self.leaving = True
                else:
                    with contextlib.suppress(BlockingIOError):
                        self.wake_read.recv(4096)
            self.reap()
        self.listener.close()
        for name in reversed(list(self.kept)):
            self.stop(name)
        self.sweep()
        self.write_state()

    # Requests

    def serve(self) -> None:
        """Answer one request."""
        connection, _ = self.listener.accept()
        with connection:
            connection.settimeout(_REQUEST_TIMEOUT_S)
            try:
                line = connection.makefile("rb").readline(_REQUEST_LIMIT)
                answer = self.handle(json.loads(line))
            except Exception as error:  # whatever a request does, the supervisor lives and says so
                answer = {"ok": False, "error": f"{type(error).__name__}: {error}"}
            with contextlib.suppress(OSError):
                connection.sendall(json.dumps(answer).encode() + b"\n")

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        self.reap()
        match request["do"]:
            case "start":
                self.start(request["spec"])
            case "stop":
                self.stop(self.known(request["name"]))
            case "restart":
                name = self.known(request["name"])
                self.stop(name)
                self.start(self.kept[name].spec)
            case "detach":
                with contextlib.suppress(KeyError):
                    self.selector.unregister(self.lifeline)
            case "down":
                self.leaving = True
            case other:
                raise ValueError(f"unknown request {other!r}")
        self.write_state()
        return {"ok": True}

    def known(self, name: str) -> str:
        if name not in self.kept:
            raise ValueError(f"no process is called {name!r}; there are: {', '.join(self.kept) or 'none'}")
        return name

    # Processes

    def start(self, spec: dict[str, Any]) -> None:
        """Start one process in a process group of its own, its output appended to its log."""
        name = spec["name"]
        before = self.kept.get(name)
        if before is not None and before.exit_code is None:
            raise ValueError(f"{name} runs already (pid {before.process.pid})")
        supervisor = os.getpid()

        def prepare() -> None:  # in the child, before exec
            processes.die_with_parent()
            if os.getppid() != supervisor:  # the supervisor died before the line above took effect
                os._exit(1)

        with open(spec["log"], "ab") as log:
            child = subprocess.Popen(
                spec["argv"],
                env=spec["env"],
                cwd=spec["cwd"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
                preexec_fn=prepare,
            )
        started = processes.start_time(child.pid) or ""  # "": it has left already, `reap` will say how
        self.kept[name] = SupervisedProcess(spec, child, Process(child.pid, started))

    def stop(self, name: str) -> None:
        """End one process and wait until it is gone: SIGTERM, its grace, then SIGKILL to its group."""
        kept = self.kept[name]
        kept.stopped = True
        if kept.exit_code is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            kept.child.send_signal(signal.SIGTERM)
        try:
            kept.exit_code = kept.child.wait(self.grace(kept))
        except subprocess.TimeoutExpired:
            kept.exit_code = None
        # What it left behind in its group goes too, whether or not it was polite.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(kept.process.pid, signal.SIGKILL)
        if kept.exit_code is None:
            kept.exit_code = kept.child.wait()

    def grace(self, kept: SupervisedProcess) -> float:
        """Return seconds to wait for a process to leave by itself."""
        needed = self.kept.get(kept.spec["needs"] or "")
        helpless = needed is not None and needed.child.poll() is not None
        return min(kept.spec["grace"], _HELPLESS_GRACE_S) if helpless else float(kept.spec["grace"])

    def reap(self) -> None:
        """Note which processes have left, and take the exit codes of adopted orphans."""
        changed = False
        for kept in self.kept.values():
            if kept.exit_code is None and (code := kept.child.poll()) is not None:
                kept.exit_code = code
                changed = True
        ours = {kept.process.pid for kept in self.kept.values() if kept.exit_code is None}
        for pid in processes.children():
            if pid not in ours:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
        if changed:
            self.write_state()

    def sweep(self) -> None:
        """Kill the adopted orphans that are left: children of processes that were killed."""
        for _ in range(10):  # each round may bring the orphans of those killed in the last
            left = processes.children()
            if not left:
                return
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)

    def write_state(self) -> None:
        """Replace state.json by what is true now."""
        me = processes.identify(os.getpid())
        state = {
            "supervisor": {"pid": me.pid, "started": me.started},
            "processes": {name: kept.described() for name, kept in self.kept.items()},
        }
        temporary = Path(f"{STATE}.new")
        temporary.write_text(json.dumps(state, indent=1) + "\n")
        temporary.replace(STATE)


def main() -> None:
    """Serve the run folder named on the command line; exit 3 if it has a supervisor already."""
    os.chdir(sys.argv[1])
    lock = open(LOCK, "a")  # noqa: SIM115 - held as long as this process lives
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("this run folder has a supervisor already", file=sys.stderr)
        sys.exit(3)
    processes.adopt_orphans()
    Supervisor(sys.stdin.buffer).run()


if __name__ == "__main__":
    main()
