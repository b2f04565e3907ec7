"""The launcher of one container: enters private namespaces, builds the container's root, runs its command.

`python -I -S -E enter.py run SPEC.json REPORT_FD` starts a container, `… join PID SPEC.json` runs a command
inside one that runs, `… probe` prints which way of mounting this machine allows: `root`, `user` or `none`.
Standard library only, and as little of it as may be: every container pays for its start.

Processes of a container, outside in:
- the launcher, a child of the agent. It dies with the agent (PR_SET_PDEATHSIG).
- init, pid 1 of a pid namespace of its own. It dies with the launcher, and the kernel then kills whatever
  else is in the namespace: nothing outlives a hard-killed agent.
- the command. init forwards signals to it, reaps orphans and reports how it ended.

The root is a tmpfs of bind mounts. Only folders in which a mount point is missing are rebuilt there, entry by
entry, so mount points that the machine does not have leave nothing behind on it.

With mounting `none` there are no namespaces: the command runs as it is, its orphans are adopted and killed
when it ends.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import signal
import stat
import sys
import termios
from typing import Any

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_UNBINDABLE, MS_PRIVATE = 4096, 16384, 1 << 17, 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36

KILL_ALL = signal.SIGRTMIN + 1  # to a launcher without namespaces: kill the command and all it started
FORWARDED = {signal.Signals(n) for n in (1, 2, 3, 10, 12, 15, 28)} | {signal.SIGRTMIN + 3}

libc = ctypes.CDLL(None, use_errno=True)
Spec = dict[str, Any]  # as deploy/local/agent/process.py writes it


class Refused(Exception):
    """The container cannot be started; the message goes to its status."""


def check(result: int, what: str) -> None:
    """Raise OSError naming `what` when a libc call failed."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    check(libc.unshare(flags), f"unshare({flags:#x})")


def die_with_parent(number: int = signal.SIGKILL) -> None:
    check(libc.prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    def raw(text: str | None) -> bytes | None:
        return None if text is None else os.fsencode(text)

    check(
        libc.mount(raw(source), raw(target), raw(kind), ctypes.c_ulong(flags), raw(data)),
        f"mount on {target}",
    )


def enter_user_namespace() -> None:
    """Enter a user namespace in which this process keeps its own ids and may mount."""
    uid, gid = os.geteuid(), os.getegid()
    unshare(CLONE_NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


# The root


def below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def real_targets(mounts: list[Spec]) -> list[Spec]:
    """Return the mounts, outer before inner, each with the `target` that symbolic links of the machine lead
    to."""
    found: list[Spec] = []
    for item in sorted(mounts, key=lambda m: m["target"].rstrip("/").count("/")):
        target = os.path.normpath("/" + item["target"].lstrip("/"))
        outer = [m for m in found if below(target, m["asked"]) and m["source"]]
        if outer:  # inside another mount: what the machine has at this path does not count
            parent = max(outer, key=lambda m: len(m["asked"]))
            real, inside = parent["target"] + target[len(parent["asked"]) :], True
        else:
            real, inside = os.path.realpath(target), False
        if real == "/":
            raise Refused(f"mount path {item['target']!r}: a volume cannot replace the root")
        if below(real, "/proc"):
            raise Refused(f"mount path {item['target']!r}: nothing can be mounted inside /proc")
        found.append({**item, "asked": target, "target": real, "inside": inside})
    return found


def shadowed(mounts: list[Spec]) -> set[str]:
    """Folders of the machine that must be rebuilt because a mount point is missing in them (or the root)."""
    folders = {"/"}
    for item in mounts:
        if item["inside"] or os.path.lexists(item["target"]):
            continue
        path = os.path.dirname(item["target"])
        while path != "/":
            if os.path.isdir(path):
                folders.add(path)
            elif os.path.lexists(path):
                raise Refused(f"mount path {item['asked']!r}: {path} is a file on this machine")
            path = os.path.dirname(path)
    return folders


def closed_on_the_way(image: list[str], mounts: list[Spec]) -> set[str]:
    """Folders of the machine that keep other users from what an image would hold, with all around them."""
    found: set[str] = set()
    for path in image:
        way = os.path.dirname(path)
        while way != "/":
            outside = not any(below(way, item["target"]) for item in mounts)
            if outside and (found or not os.stat(way).st_mode & stat.S_IXOTH):
                found.add(way)
            way = os.path.dirname(way)
    return found


def rebuild(root: str, folder: str, folders: set[str], opened: set[str]) -> None:
    """Fill `root + folder` with what the machine's `folder` holds, by bind mounts; of `folders` the entries,
    and all users may pass through those that are `opened`."""
    for entry in os.scandir(folder):
        path, target = entry.path, root + entry.path
        if path == "/proc":
            os.mkdir(target)
        elif entry.is_symlink():
            os.symlink(os.readlink(path), target)
        elif entry.is_dir():
            os.mkdir(target)
            if path in folders:
                info = entry.stat()
                rebuild(root, path, folders, opened)
                more = stat.S_IXGRP | stat.S_IXOTH if path in opened else 0
                os.chmod(target, stat.S_IMODE(info.st_mode) | more)
                if os.geteuid() == 0:
                    with contextlib.suppress(OSError):  # an id that the user namespace does not know
                        os.chown(target, info.st_uid, info.st_gid)
            else:
                bind_or_leave(path, target)
        else:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
            bind_or_leave(path, target)


def bind_or_leave(path: str, target: str) -> None:
    """Bind one of the machine's own entries; what cannot be bound (gone, not ours to see) stays empty."""
    with contextlib.suppress(OSError):
        mount(path, target, None, MS_BIND | MS_REC)


def bind_volume(item: Spec, root: str) -> None:
    """Bind one volume to its place below `root`, making the mount point."""
    source, target = item["source"], root + item["target"]
    try:
        if source is None:  # the working directory, when nothing has it
            os.makedirs(target, exist_ok=True)
            return
        if os.path.isdir(source):
            os.makedirs(target, exist_ok=True)
        elif not os.path.exists(target):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
        mount(source, target, None, MS_BIND | MS_REC)
        if item.get("read_only"):
            had = os.statvfs(target).f_flag & (
                MS_NOSUID | MS_NODEV | MS_NOEXEC
            )  # a user namespace must keep these
            mount(None, target, None, MS_REMOUNT | MS_BIND | MS_RDONLY | had)
    except OSError as error:
        raise Refused(f"mount path {item['asked']!r}: {error}") from error


def enter_root(root: str, mounts: list[Spec], image: list[str]) -> None:
    """Make `root` (an empty folder) the root: the machine's folders, and the mounts on top.

    `image`: folders that every user can reach there, however closed the machine keeps the way to them.
    Must run in mount and pid namespaces of its own. Raises Refused naming the mount path at fault.
    """
    mounts = real_targets(mounts)
    opened = closed_on_the_way(image, mounts)
    folders = shadowed(mounts) | opened
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    mount("tmpfs", root, "tmpfs", MS_NOSUID, "mode=755,size=256m")
    mount(None, root, None, MS_UNBINDABLE)  # else a bind of the folder that holds it would hold it again
    rebuild(root, "/", folders, opened)
    try:
        mount("proc", root + "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    except OSError:  # a masked /proc (we are in a container ourselves) may not be mounted anew
        mount("/proc", root + "/proc", None, MS_BIND | MS_REC)
    for item in mounts:
        bind_volume(item, root)
    mount(None, root, None, MS_PRIVATE)
    os.chdir(root)
    check(libc.pivot_root(b".", b"."), "pivot_root")
    check(libc.umount2(b".", MNT_DETACH), "umount2")
    os.chdir("/")


# The command


def become(user: Spec) -> None:
    """Give up root for this user and these groups alone; the kernel takes all capabilities from another
    user."""
    os.setgroups(user["groups"])
    os.setresgid(user["gid"], user["gid"], user["gid"])
    os.setresuid(user["uid"], user["uid"], user["uid"])
    die_with_parent()  # the kernel forgets it when credentials change


def execute(spec: Spec) -> None:
    """Become the command. Raises OSError when it cannot be found or run."""
    os.chdir(spec["cwd"])
    if spec["user"] is not None:
        become(spec["user"])
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)  # Python has set these
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.execvpe(spec["argv"][0], spec["argv"], spec["env"])


def spawn(spec: Spec) -> int:
    """Fork and run the command in a session of its own; its pid once it really runs. Raises Refused."""
    read, write = os.pipe()  # closed by exec: an end of file says that it worked
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read)
            os.setsid()
            if spec["mounting"] == "none":
                die_with_parent()
            execute(spec)
        except BaseException as error:  # whatever it is must be told, and no code of the parent may run here
            os.write(write, f"{spec['argv'][0]!r} in {spec['cwd']!r}: {error}".encode()[:4096])
        os._exit(127)
    os.close(write)
    with os.fdopen(read, "rb") as reader:
        message = reader.read().decode(errors="replace")
    if message:
        os.waitpid(pid, 0)
        raise Refused(message)
    return pid


def outcome(status: int) -> dict[str, int]:
    code = os.waitstatus_to_exitcode(status)
    return {"exit": code} if code >= 0 else {"signal": -code}


def serve(main: int, kill_all: bool) -> dict[str, int]:
    """Forward signals to the child `main` and reap, until it ends; how it ended."""
    watched = FORWARDED | {signal.SIGCHLD, KILL_ALL}
    while True:
        number = signal.sigwaitinfo(watched).si_signo
        if number == KILL_ALL:
            if kill_all:
                kill_descendants(main)
        elif number != signal.SIGCHLD:
            with contextlib.suppress(ProcessLookupError):
                os.kill(main, number)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if pid == main:
                return outcome(status)


def kill_descendants(main: int) -> None:
    """Without a pid namespace: kill the command's group, then orphans as they are adopted."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(main, signal.SIGKILL)
    for _ in range(100):
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            pids = [int(pid) for pid in file.read().split()]
        if pids in ([], [main]):
            return
        for pid in pids:
            if pid != main:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def send(report: int, **facts: object) -> None:
    with contextlib.suppress(BrokenPipeError):  # the agent is gone, and so are we in a moment
        os.write(report, json.dumps(facts).encode() + b"\n")


def guarded(spec: Spec, report: int) -> None:
    """As init (or as the launcher, without namespaces): run the command, tell how it started and ended."""
    try:
        if spec["mounting"] != "none":
            unshare(CLONE_NEWNS | CLONE_NEWUTS)
            name = spec["hostname"].encode()[:63]
            check(libc.sethostname(name, len(name)), "sethostname")
            enter_root(spec["root"], spec["mounts"], spec["image"])
        main = spawn(spec)
    except (Refused, OSError) as error:
        send(report, error=str(error))
        return
    send(report, started=True)
    ended = serve(main, kill_all=spec["mounting"] == "none")
    if spec["mounting"] == "none":
        kill_descendants(main)
    send(report, **ended)


def run(spec: Spec, report: int) -> None:
    """Run the launcher; it writes what it has to report to ``report``, one JSON object a line."""
    os.set_inheritable(report, False)
    namespaces = spec["mounting"] != "none"
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED | {signal.SIGCHLD, KILL_ALL})
    if spec["mounting"] == "user":
        enter_user_namespace()  # before the next line: the kernel forgets it when credentials change
    die_with_parent(signal.SIGKILL if namespaces else KILL_ALL)
    if os.getppid() != spec["parent"]:
        return
    if not namespaces:
        check(libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl(PR_SET_CHILD_SUBREAPER)")
        guarded(spec, report)
        return
    unshare(CLONE_NEWPID)
    armed, arm = os.pipe()
    go, send_go = os.pipe()
    init = os.fork()
    if init == 0:
        os.close(send_go)
        die_with_parent()
        os.write(arm, b"x")
        if os.read(go, 1):  # an end of file: the launcher died before the line before last took effect
            guarded(spec, report)
        os._exit(0)
    os.read(armed, 1)
    send(report, pid=init)
    os.write(send_go, b"x")
    serve(init, kill_all=False)


def join(pid: int, spec: Spec) -> int:
    """Run a command inside a container; its exit code (128 + signal when one ended it)."""
    if spec["mounting"] != "none":
        kinds = ("user", "pid", "mnt", "uts") if spec["mounting"] == "user" else ("pid", "mnt", "uts")
        for handle in [os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY) for kind in kinds]:
            check(libc.setns(handle, 0), "setns")
            os.close(handle)
    die_with_parent()
    child = os.fork()
    if child == 0:
        try:
            die_with_parent()
            if spec["terminal"]:
                os.setsid()
                fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            execute(spec)
        except BaseException as error:
            os.write(2, f"{spec['argv'][0]!r}: {error}\n".encode())
        os._exit(127)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if code >= 0 else 128 - code


def probe() -> str:
    """Return the best way of mounting that works here, found by doing it in a child."""
    for way in ("root", "user"):
        child = os.fork()
        if child == 0:
            try:
                if way == "user":
                    enter_user_namespace()
                unshare(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUTS)
                mount(None, "/", None, MS_REC | MS_PRIVATE)
                mount("tmpfs", "/tmp", "tmpfs", 0)
                os.mkdir("/tmp/x")
                mount("/usr", "/tmp/x", None, MS_BIND | MS_REC)
            except OSError:
                os._exit(1)
            os._exit(0)
        if os.waitpid(child, 0)[1] == 0:
            return way
    return "none"


def main() -> None:
    match sys.argv[1:]:
        case ["run", path, report]:
            with open(path) as file:
                spec = json.load(file)
            try:
                run(spec, int(report))
            except Exception as error:
                send(int(report), error=f"{type(error).__name__}: {error}")
        case ["join", pid, path]:
            with open(path) as file:
                spec = json.load(file)
            sys.exit(join(int(pid), spec))
        case ["probe"]:
            print(probe())
        case _:
            sys.exit("enter.py run SPEC.json REPORT_FD | join PID SPEC.json | probe")


if __name__ == "__main__":
    main()
