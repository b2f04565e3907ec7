"""The supervisor with small programs instead of a control plane: order, grace, nothing left behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from local_helpers import running_in, until

from deploy.local import processes
from deploy.local.control import Control, ControlError, Spec

# Says when it was told to leave, takes `pause` seconds over it, says that it is gone.
SERVER = """
import signal, sys, time
name, journal, pause = sys.argv[1], sys.argv[2], float(sys.argv[3])
def say(what):
    with open(journal, "a") as file:
        file.write(f"{what} {name}\\n")
def leave(*_):
    say("told")
    time.sleep(pause)
    say("gone")
    sys.exit(7)
signal.signal(signal.SIGTERM, leave)
say("up")
while True:
    time.sleep(0.05)  # not pause: a signal just before it would not be handled before the next one
"""


class Run:
    """A run folder with its supervisor and a journal of what the programs in it did."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.control = Control(folder / "run")
        self.journal = folder / "journal"
        self.supervisor = self.control.launch()

    def start(self, name: str, pause: float = 0.0, grace: float = 5.0, program: str = SERVER) -> None:
        argv = [sys.executable, "-S", "-c", program, name, str(self.journal), str(pause)]
        spec = Spec(name, argv, dict(os.environ), str(self.folder), str(self.folder / name), grace)
        self.control.start(spec)
        until(lambda: f"up {name}" in self.said())

    def said(self) -> list[str]:
        return self.journal.read_text().splitlines() if self.journal.exists() else []

    def pids(self) -> list[int]:
        state = self.control.state()
        assert state is not None
        return [kept.process.pid for kept in state.processes.values()]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    started = Run(tmp_path)
    yield started
    assert started.supervisor.stdin is not None
    started.supervisor.stdin.close()
    started.supervisor.wait(20)
    assert running_in(tmp_path) == []


def end_by_down(run: Run) -> None:
    run.control.down()


def end_by_closing_the_lifeline(run: Run) -> None:
    assert run.supervisor.stdin is not None
    run.supervisor.stdin.close()


def end_by_signal(run: Run) -> None:
    run.supervisor.send_signal(signal.SIGTERM)


@pytest.mark.parametrize("end", [end_by_down, end_by_closing_the_lifeline, end_by_signal])
def test_last_started_first_ended_and_each_gone_before_the_next_is_told(
    run: Run, end: Callable[[Run], None]
) -> None:
    for name, pause in (("etcd", 0.0), ("api", 0.2), ("agent", 0.1)):
        run.start(name, pause)
    end(run)
    run.supervisor.wait(10)
    assert run.said()[3:] == ["told agent", "gone agent", "told api", "gone api", "told etcd", "gone etcd"]
    state = run.control.state()
    assert state is not None
    assert not state.kept_up
    assert [kept.exit_code for kept in state.processes.values()] == [7, 7, 7]


def test_who_does_not_leave_within_its_grace_is_killed(run: Run) -> None:
    run.start("etcd")
    run.start("stubborn", pause=60, grace=2.0)  # long enough to say that it was told
    began = time.monotonic()
    run.control.down()
    assert time.monotonic() - began < 30
    assert run.said()[2:] == ["told stubborn", "told etcd", "gone etcd"]
    state = run.control.state()
    assert state is not None
    assert state.processes["stubborn"].exit_code == -signal.SIGKILL


def test_a_killed_supervisor_takes_its_processes_with_it(run: Run, tmp_path: Path) -> None:
    run.start("etcd")
    run.start("api", pause=60)
    pids = run.pids()
    run.supervisor.kill()
    run.supervisor.wait()
    until(lambda: running_in(tmp_path) == [])
    # A process that is ending loses its command line a moment before it is gone.
    until(lambda: all(processes.start_time(pid) is None for pid in pids))
    assert run.control.down() == []
    assert not run.control.kept_up()


def test_what_outlived_a_killed_supervisor_is_ended_by_its_record(run: Run, tmp_path: Path) -> None:
    """As where the kernel does not end the children: another process takes the place of one of them."""
    run.start("etcd")
    run.start("api")
    etcd, _ = run.pids()
    run.supervisor.kill()
    run.supervisor.wait()
    until(lambda: running_in(tmp_path) == [])
    argv = [sys.executable, "-S", "-c", SERVER, "etcd", str(run.journal), "0"]
    survivor = subprocess.Popen(argv, start_new_session=True)
    record = tmp_path / "run" / "state.json"
    before, now = f'"pid": {etcd},\n   "started": "', f'"pid": {survivor.pid},\n   "started": "'
    text = record.read_text()
    assert before in text
    head, tail = text.split(before)
    record.write_text(head + now + processes.identify(survivor.pid).started + tail[tail.index('"') :])
    until(lambda: run.said().count("up etcd") == 2)
    assert run.control.down() == ["etcd"]
    assert survivor.wait(5) == 7
    assert run.control.down() == []


def test_a_pid_that_somebody_else_has_now_is_left_alone() -> None:
    stranger = subprocess.Popen(["sleep", "60"])
    try:
        recorded = processes.Process(stranger.pid, "another start")
        assert not recorded.alive
        assert not processes.send(recorded, signal.SIGKILL)
        assert processes.end(recorded, 1.0)
        assert stranger.poll() is None
        assert processes.identify(stranger.pid).alive
    finally:
        stranger.kill()
        stranger.wait()


def test_a_zombie_counts_as_gone() -> None:
    child = subprocess.Popen(["true"])
    until(lambda: processes.start_time(child.pid) is None)
    child.wait()


ORPHAN_MAKER = """
import subprocess, sys
subprocess.Popen(["sleep", "61.5", ], start_new_session=True)
with open(sys.argv[2], "a") as file:
    file.write(f"up {sys.argv[1]}\\n")
import signal
signal.pause()
"""


def test_children_that_a_process_left_behind_are_swept_up(run: Run, tmp_path: Path) -> None:
    run.start("maker", program=ORPHAN_MAKER)
    (maker,) = run.pids()
    children = Path(f"/proc/{maker}/task/{maker}/children").read_text().split()
    assert len(children) == 1
    orphan = processes.identify(int(children[0]))
    os.kill(maker, signal.SIGKILL)
    until(lambda: Path(f"/proc/{orphan.pid}/stat").read_text().split()[3] == str(run.supervisor.pid))
    assert orphan.alive  # as long as the plane is up it may be adopted again by its own program
    run.control.down()
    assert not orphan.alive


def test_exit_of_a_process_is_noted_at_once_and_the_others_go_on(run: Run) -> None:
    run.start("etcd")
    run.start("api")
    _, api = run.pids()
    os.kill(api, signal.SIGKILL)

    def noted() -> bool:
        state = run.control.state()
        return state is not None and state.processes["api"].exit_code == -signal.SIGKILL

    until(noted)
    state = run.control.state()
    assert state is not None
    assert state.processes["etcd"].running
    assert not state.processes["api"].stopped


def test_stop_and_restart(run: Run) -> None:
    run.start("api", pause=0.1)
    (first,) = run.pids()
    run.control.ask("stop", name="api")
    state = run.control.state()
    assert state is not None
    assert (state.processes["api"].exit_code, state.processes["api"].stopped) == (7, True)
    run.control.ask("restart", name="api")
    until(lambda: run.said() == ["up api", "told api", "gone api", "up api"])
    (second,) = run.pids()
    assert second != first


@pytest.mark.parametrize(
    ("do", "arguments", "said"),
    [
        ("stop", {"name": "nobody"}, "no process is called 'nobody'; there are: api"),
        ("restart", {"name": "nobody"}, "no process is called 'nobody'; there are: api"),
        ("dance", {}, "unknown request 'dance'"),
        ("stop", {}, "KeyError: 'name'"),
    ],
)
def test_requests_that_make_no_sense_are_answered(
    run: Run, do: str, arguments: dict[str, Any], said: str
) -> None:
    run.start("api")
    with pytest.raises(ControlError, match=said):
        run.control.ask(do, **arguments)


def test_start_of_what_runs_or_cannot_run_is_refused(run: Run, tmp_path: Path) -> None:
    run.start("api")
    with pytest.raises(ControlError, match=r"api runs already \(pid \d+\)"):
        run.start("api")
    missing = Spec("none", ["/no/such/program"], {}, str(tmp_path), str(tmp_path / "log"), 1.0)
    with pytest.raises(ControlError, match="No such file or directory: '/no/such/program'"):
        run.control.start(missing)


def test_detached_it_outlives_the_launcher(run: Run, tmp_path: Path) -> None:
    run.start("api")
    run.control.ask("detach")
    assert run.supervisor.stdin is not None
    run.supervisor.stdin.close()
    time.sleep(0.2)
    assert run.supervisor.poll() is None
    assert run.control.kept_up()
    run.control.down()
    assert running_in(tmp_path) == []


def test_a_folder_has_one_supervisor(run: Run) -> None:
    with pytest.raises(ControlError, match="this run folder has a supervisor already"):
        Control(run.control.run).launch()
    assert run.supervisor.poll() is None


def test_requests_without_a_supervisor(tmp_path: Path) -> None:
    control = Control(tmp_path / "run")
    assert control.state() is None
    assert control.down() == []
    assert not control.kept_up()
    with pytest.raises(ControlError, match="no supervisor answers"):
        control.ask("detach")


def test_records_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text('{"supervisor": 3}')
    with pytest.raises(ControlError, match=r"state.json is not what the supervisor writes"):
        Control(tmp_path).state()


def test_a_run_folder_with_a_very_long_path(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 40)
    folder.mkdir()
    run = Run(folder)
    run.start("api")
    run.control.down()
    run.supervisor.wait(10)
    assert run.said() == ["up api", "told api", "gone api"]
    assert run.supervisor.stdin is not None
    run.supervisor.stdin.close()
