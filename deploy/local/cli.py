"""`python -m deploy.local up | down | status | env | tools`."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from deploy.local import nodelabels
from deploy.local.acquire import obtain
from deploy.local.components import Options
from deploy.local.console import Console
from deploy.local.errors import PlaneError
from deploy.local.kueue.manager import Kueue
from deploy.local.kueue.recipe import KUEUE
from deploy.local.plane import DEFAULT_WORK, Plane

DOWN = 3  # exit status of `status` when nothing runs, as service managers have it


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m deploy.local", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--work", type=Path, default=DEFAULT_WORK, help="work folder (default %(default)s)")
    up = commands.add_parser("up", parents=[shared], help="bring the control plane up and leave it running")
    up.add_argument("--fresh", action="store_true", help="with an empty cluster")
    up.add_argument("--scheduler-config", type=Path, help="a KubeSchedulerConfiguration file")
    up.add_argument("--fsync", action="store_true", help="make etcd sync to disk")
    up.add_argument("--nodes", type=int, default=0, help="with so many local GPU nodes (default none)")
    up.add_argument("--gpus", type=int, default=2, help="GPUs of each node (default %(default)s)")
    up.add_argument(
        "--label",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a label of those nodes, such as evalstop.dev/gpu-pool=research; repeat for more",
    )
    up.add_argument("--kueue", action="store_true", help="with Kueue's manager (deploy/local/kueue)")
    down = commands.add_parser("down", parents=[shared], help="end every process of it")
    down.add_argument("--wipe", action="store_true", help="and remove its files")
    commands.add_parser("status", parents=[shared], help=f"what runs (exit status {DOWN}: nothing)")
    commands.add_parser("env", parents=[shared], help='for a shell: eval "$(python -m deploy.local env)"')
    tools = commands.add_parser("tools", help="obtain the binaries and say which way each came")
    tools.add_argument("--kueue", action="store_true", help="and Kueue's")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit status."""
    given = parser().parse_args(arguments)
    with Console() as console:
        try:
            if given.command == "tools":
                obtain(console)
                if given.kueue:
                    obtain(console, recipe=KUEUE)
                return 0
            return _COMMANDS[given.command](given, console)
        except PlaneError as error:
            console(f"error: {error}")
            return 1
        except ValueError as error:  # an option out of its bounds
            console(f"error: {error}")
            return 2
        except KeyboardInterrupt:
            console("interrupted; nothing was left running")
            return 130


def _up(given: argparse.Namespace, console: Console) -> int:
    options = Options(scheduler_config=given.scheduler_config, fsync=given.fsync)
    labels = nodelabels.parse(given.label)
    if labels and not given.nodes:
        raise ValueError(f"--label {given.label[0]} without --nodes: there is no node to label")
    plane = Plane(given.work, options, console)
    plane.up(fresh=given.fresh)
    try:
        if given.kueue or Kueue.installed(plane):  # a cluster that knows it cannot do without it
            Kueue(plane).start()
        if given.nodes:
            from deploy.local.nodes import Nodes

            Nodes(plane, given.nodes, given.gpus, labels=labels).start()
        plane.detach()
    except BaseException:
        plane.__exit__(None, None, None)
        raise
    console(f'kubectl for this shell: eval "$({_call(given, "env")})"')
    console(f"to end it: {_call(given, 'down')}")
    return 0


def _down(given: argparse.Namespace, console: Console) -> int:
    plane = Plane(given.work, report=console)
    ran = plane.down()
    if given.wipe:
        plane.wipe()
    console("control plane is down" if ran else f"no control plane runs in {plane.work}")
    return 0


def _status(given: argparse.Namespace, console: Console) -> int:
    plane = Plane(given.work)
    status = plane.status()
    for part in status.processes:
        memory = f"{part.memory_bytes / 2**20:.0f} MiB" if part.memory_bytes else ""
        print(f"{part.name:26}{part.state:10}{f'pid {part.pid}' if part.pid else '':14}{memory:>10}")
    if status.up:
        print(f"ready at {status.url}; kubeconfig {plane.kubeconfig}")
        return 0
    if status.problem:
        print(f"not well: {status.problem}")
        return 1
    print(f"no control plane runs in {plane.work}")
    return DOWN


def _env(given: argparse.Namespace, console: Console) -> int:
    plane = Plane(given.work)
    if not plane.status().up:
        raise PlaneError(f"no control plane runs in {plane.work}: {_call(given, 'up')}")
    for name, value in {"KUBECONFIG": str(plane.kubeconfig), **plane.kubectl_environment}.items():
        print(f"export {name}={shlex.quote(value)}")
    print(f'export PATH={shlex.quote(str(plane.work / "bin"))}:"$PATH"')
    return 0


def _call(given: argparse.Namespace, command: str) -> str:
    """Return how to run another command for the same work folder."""
    work = "" if given.work == DEFAULT_WORK else f" --work {shlex.quote(str(given.work))}"
    return f"{Path(sys.executable).name} -m deploy.local {command}{work}"


_COMMANDS = {"up": _up, "down": _down, "status": _status, "env": _env}
