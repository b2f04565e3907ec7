"""Commands of `evalstop` over the hostile scene, on screens of 80 and 200 columns."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import typer.main
import yaml
from typer.testing import CliRunner

from controller.api import convert
from controller.cli.failure import Exit
from controller.cli.main import app
from controller.cli.terminal import length
from controller.policy import decision_log
from controller.policy.job import JobRecord, Observed, plan_job
from tests.support.dashboard_queue import queue_api
from tests.support.dashboard_world import Object, healthy, job_object, over_optimising, pool_object
from tests.support.stub_api import stub_api
from tests.support.trainers_files import save
from tests.sweep.hostile import FAMILY, NAMESPACE, POOL, hostile, long_name
from tests.sweep.pages import RUNS
from tests.sweep.words import faults_of

COLUMNS = (80, 200)
NAMES = ("NAMESPACE", "NAME", "STATE", "REASON")  # which stay on any screen
# Lines that are there to be copied are never cut nor broken.
FOLDER, EVALS = "checkpoints-of-a-run", "evals.csv"
LOG, MANIFESTS = "decisions.jsonl", "manifests.yaml"
# Commands of which only the help is looked at here, and why.
ELSEWHERE = {
    "dashboard": "it serves until it is ended: the sweep of pages looks at it",
    "parity": "it starts clusters: tests/parity",
}
_COPIED = re.compile(
    r"^\s*(\$ |→ )?(evalstop|kubectl|helm|python|export|make) |^\s*'|apply -f -|^ {2,}.*\s#\s"
    r"|^rlhfjob\.evalstop\.dev/"  # what was done to which object, in one line as kubectl tells it
)


class Fault(NamedTuple):
    """Something wrong with what a command prints."""

    command: str
    columns: int
    what: str

    def __str__(self) -> str:
        return f"evalstop {self.command}, {self.columns} columns: {self.what}"


class Printed(NamedTuple):
    """What a command printed. ``out``: on its standard output. ``code``: its exit code."""

    out: str
    whole: str
    problem: str
    code: int = 0


class Shell:
    """Commands, in this process, against an API server of these objects."""

    def __init__(self, folder: Path, kubeconfig: Path, queue: str) -> None:
        self.folder, self._kubeconfig, self.queue = folder, kubeconfig, queue

    def __call__(self, *arguments: str, columns: int = 80) -> Printed:
        environ = {"KUBECONFIG": str(self._kubeconfig), "COLUMNS": str(columns)}
        done = CliRunner().invoke(app, list(arguments), env=environ)
        problem = ""
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            problem = f"raised {done.exception!r}"
        return Printed(done.stdout, f"{done.stdout}{done.stderr}", problem, done.exit_code)


@contextlib.contextmanager
def shell(folder: Path, objects: Sequence[Object] | None = None) -> Iterator[Shell]:
    """Give a shell whose current namespace is that of the hostile scene's jobs."""
    now = time.time()
    with (
        stub_api(folder, list(hostile(now) if objects is None else objects), NAMESPACE) as kubeconfig,
        queue_api(now) as way,
    ):
        _files(folder)
        yield Shell(folder, kubeconfig, way.address)


def _files(folder: Path) -> None:
    """Write what commands read that need no cluster: checkpoints, one of them torn, and evals."""
    for step in (10, 20, 300):
        save(folder / FOLDER, "Plain", step)
    (folder / FOLDER / "step-300" / "params.npz").unlink()
    rows = [
        f"{long_name(run)},{10 * step},{score},{label}"
        for run, label in ((1, "healthy"), (2, "declining"))
        for step, (score, _) in enumerate(healthy(run, 40) if run == 1 else over_optimising(2, 40))
    ]
    (folder / EVALS).write_text("\n".join(["series_id,step,eval,label", *rows]))
    (folder / LOG).write_text("".join(f"{line}\n" for line in _decided()))
    (folder / MANIFESTS).write_text(yaml.safe_dump_all(_manifests()))


def _decided() -> Iterator[str]:
    """Yield decisions about a run, of which the second one comes out otherwise when it is replayed."""
    desired = convert.desired(job_object(NAMESPACE, long_name(1), pool=POOL), None)
    record = JobRecord()
    for number in range(2):
        planned = plan_job(desired, Observed(), record, 1000.0 + number)
        line = decision_log.job_line(desired, Observed(), record, 1000.0 + number, planned)
        record = planned.record
        if number:
            entry = json.loads(line)
            entry["decision"]["record"]["conditions"] = [{"message": "x" * 300}]
            line = json.dumps(entry)
        yield line


def _manifests() -> list[Object]:
    """Return manifests with long names in which most is wrong that may be; and one of a pool."""
    sharing = {"family": FAMILY["name"], "stateBytes": 1 << 50}
    wrong: list[dict[str, Any]] = [
        {"pool": POOL},
        {"pool": POOL, "gpus": 16},
        {"pool": POOL, "replicas": 900, "stopRul": {}, "mode": "Shaddow"},
        {"pool": f"{POOL[:-1]}q"},
        {"pool": "empty", "metrics": [{"name": "perplexity-" + "of-a-test-set-" * 4}]},
        {"pool": "shares", "sharing": sharing},
        {"pool": "shares", "gpus": 0, "sharing": {**sharing, "stateBytes": 1}},
    ]
    found = [job_object(NAMESPACE, long_name(900 + number), **more) for number, more in enumerate(wrong)]
    sizes = {"nodeSizes": [{"gpus": 1, "nodes": 1}]}
    found.append(pool_object("shares", sizes, sharing={"families": [FAMILY]}))
    for one in found:
        one["metadata"] = {k: v for k, v in one["metadata"].items() if k in ("name", "namespace")}
    return found


def places(tree: Any = None) -> list[list[str]]:
    """Return the words of each command there is, and of each group of commands, from the program itself."""
    tree = tree or typer.main.get_command(app)
    found: list[list[str]] = [[]]
    for name, command in getattr(tree, "commands", {}).items():
        found += [[name, *path] for path in (places(command) if hasattr(command, "commands") else [[]])]
    return found


def acting(folder: Path) -> list[list[str]]:
    """Return commands that change a job (here none is changed), and those that look for what is wrong."""
    stopped, runs = long_name(6), long_name(3)
    return [
        ["mode", runs, "Shadow"], ["mode", runs, "Enforce"], ["mode", stopped, "Off", "--dry-run"],
        ["stop", runs], ["stop", stopped], ["stop", "by-its-user"],
        ["resume", stopped], ["resume", runs], ["resume", stopped, "--step", "7"],
        ["resume", stopped, "--from", "latest", "--for-evals", "1"],
        ["pin", runs], ["pin", runs, "10", "100000"], ["pin", runs, "best"],
        ["pin", stopped, "1", "--remove"],
        ["check", "-f", str(folder / MANIFESTS)],
        ["doctor"], *(["doctor", name] for name in (runs, stopped, "crashing", "unwatched", "refused")),
        ["replay", str(folder / LOG)],
        ["report", stopped, "--out", str(folder / "run.html")],
        ["report", POOL, "--pool", "--out", str(folder / "pool.html")],
    ]  # fmt: skip


def commands(queue: str, folder: Path) -> list[list[str]]:
    """Return the commands that are looked at. ``folder``: with the files of `_files`."""
    found = [
        ["list"], ["list", "-A"], ["list", "-A", "-o", "wide"], ["list", "-n", "nobody"],
        ["top", "--once", "-A"],
        ["pools"], ["pools", "-o", "wide"], ["pools", POOL], ["pools", "empty"],
        ["queue", "research", "--url", queue], ["groups", "--url", queue], ["version"],
        ["get", "deleted"], ["why", "deleted"],
        ["export", "--pool", POOL], ["export", "--pool", POOL, "--evals"],
        ["what-if", "--pool", POOL, "--nodes", "+1", "--no-plot"],
        ["checkpoints", str(folder / FOLDER)], ["checkpoints", str(folder / FOLDER), "--layout", "Plain"],
        ["rules", "evaluate", str(folder / EVALS), "--no-plot"],
        ["sim", "formats"], ["sim", "settings"], ["extender", "config"],
        *([*path, "--help"] for path in places()), *acting(folder),
    ]  # fmt: skip
    for name in RUNS:
        found += [["get", name], ["why", name], ["history", name]]
    for name in (long_name(3), "minimize", long_name(6)):
        found += [
            ["simulate", name, "--rule", "glr"],
            ["rollouts", name],
        ]
    return found


def looked_at(printed: Printed, command: Sequence[str], columns: int) -> list[Fault]:
    """Return what is wrong with what a command printed."""
    said = " ".join(command)
    found = [Fault(said, columns, printed.problem)] if printed.problem else []
    lines = printed.whole.splitlines()
    if printed.code == Exit.USAGE:
        found.append(Fault(said, columns, f"is no command that can be run: {lines[-1:]}"))
    if not lines:
        found.append(Fault(said, columns, "nothing is said"))
    wide = "wide" in command or "export" in command
    exact = bool({"export", "replay", "--help"} & set(command)) or command[:2] == ["extender", "config"]
    if not wide:  # what goes to stderr are sentences, and commands to copy: a terminal folds them
        long = [one for one in printed.out.splitlines() if length(one) > columns and not _COPIED.search(one)]
        found += [Fault(said, columns, f"{length(one)} columns wide: {one[:100]!r}") for one in long]
    texts = [re.sub(r"\b(True|False|None)\b", "", one) if "get" in command else one for one in lines]
    if not exact:  # what is written for programs, or is to be typed, is as it is
        found += [Fault(said, columns, fault) for fault in faults_of(texts)]
    found += [Fault(said, columns, f"escape sequence in {one!r}") for one in lines if "\x1b" in one]
    return found


def facts(run: Shell) -> list[Fault]:
    """Return which facts that everybody looks for are not shown as they are (rows 6 and 9)."""
    found = []

    def check(command: Sequence[str], columns: int, holds: object, what: str) -> None:
        if not holds:
            found.append(Fault(" ".join(command), columns, what))

    narrow = run("list", "-A", columns=80).out.splitlines()
    check(["list", "-A"], 80, narrow[0].split()[:4] == list(NAMES), f"columns {narrow[0].split()}")
    cells = [line.split()[1] for line in narrow[1:]]
    check(["list", "-A"], 80, len(set(cells)) == len(cells), "names that are cut are no longer told apart")
    wide = [run("list", "-A", "-o", "wide", columns=n).out.splitlines()[0].split() for n in (80, 200)]
    check(["list", "-A", "-o", "wide"], 80, wide[0] == wide[1], "a column was dropped")
    check(["list", "-A", "-o", "wide"], 80, "CHECKPOINT" in wide[0], "no CHECKPOINT")
    top = run("top", "--once", "-A").out
    check(["top", "--once", "-A"], 80, "█" in top and "#" not in top, "a bar in ASCII")
    for name in ("by-its-user", long_name(6), long_name(5)):
        lines = run("history", name, "--no-evals", columns=200).out.splitlines()[1:]
        times = [line[:20] for line in lines]
        check(["history", name], 200, times == sorted(times), "out of order")
        check(["history", name], 200, len(set(lines)) == len(lines), "the same twice")
    pages = [run("get", name, columns=200).out for name in RUNS]
    for name, page in zip(RUNS, pages, strict=True):
        for nodes in re.findall(r"\bon ((?:[\w.-]+, )+[\w.-]+)", page):
            each = nodes.split(", ")
            check(["get", name], 200, len(set(each)) == len(each), f"a node twice: on {nodes}")
    queue = run("queue", "research", "--url", run.queue).out.splitlines()
    places = [line.split()[0] for line in queue[1:-1]]
    check(["queue"], 80, places == [str(n) for n in range(1, len(places) + 1)] and places, f"places {places}")
    return found
