"""The launcher on its own: roots without traces, orphans, hard-killed agents. No control plane needed."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.agent.mounts import missing_folder
from deploy.local.agent.process import (
    Command,
    ContainerProcess,
    Ended,
    Mount,
    kill_left_behind,
    probe_mounting,
)
from deploy.local.agent.users import User
from tests.support.waiting import wait_until

PATH = {"PATH": "/usr/bin:/bin"}
BEST = asyncio.run(probe_mounting())
WAYS = {"root": ("root", "user", "none"), "user": ("user", "none"), "none": ("none",)}[BEST]
PRIVATE = [way for way in WAYS if way != "none"]


def command(script: str, mounting: str, mounts: list[Mount] | None = None, cwd: str = "/") -> Command:
    wanted = [*(mounts or []), *missing_folder(cwd, mounts or [])]
    return Command(["sh", "-c", script], PATH, cwd, "test-host", wanted, mounting)


def run(command: Command, folder: Path) -> tuple[bool, Ended, str]:
    async def go() -> tuple[bool, Ended, str]:
        output: list[bytes] = []
        process = ContainerProcess(command, folder, output.append)
        started = await process.started
        ended = await asyncio.wait_for(process.ended, 20)
        return started, ended, b"".join(output).decode()

    return asyncio.run(go())


@pytest.mark.parametrize("mounting", WAYS)
@pytest.mark.parametrize(
    ("script", "ended"),
    [
        ("exit 0", Ended(0)),
        ("exit 7", Ended(7)),
        ("kill -TERM $$", Ended(signal=15)),
        ("kill -9 $$", Ended(signal=9)),
    ],
)
def test_how_it_ended_is_told_exactly(tmp_path: Path, mounting: str, script: str, ended: Ended) -> None:
    assert run(command(script, mounting), tmp_path)[:2] == (True, ended)


@pytest.mark.parametrize("mounting", WAYS)
def test_a_command_that_is_not_there(tmp_path: Path, mounting: str) -> None:
    missing = Command(["no-such-program"], PATH, "/", "h", [], mounting)
    started, ended, _ = run(missing, tmp_path)
    assert not started
    assert "no-such-program" in ended.error
    assert ended.exit_code == 128


@pytest.mark.parametrize("mounting", PRIVATE)
def test_mount_points_that_the_machine_lacks_leave_nothing_behind(tmp_path: Path, mounting: str) -> None:
    volume, message = tmp_path / "volume", tmp_path / "message"
    (volume / "sub").mkdir(parents=True)
    message.touch()
    before = {folder: sorted(os.listdir(folder)) for folder in ("/", "/etc", "/dev", "/run", "/var")}
    mounts = [
        Mount(str(volume), "/ckpt-test/deep/er"),
        Mount(str(volume), "/etc/evalstop-test/run", read_only=True),
        Mount(str(volume), "/var/run/secrets-test/account"),
        Mount(str(volume / "sub"), "/ckpt-test/deep/er/inner"),
        Mount(str(message), "/dev/termination-log-test"),
    ]
    script = """
        echo 1 > /ckpt-test/deep/er/one; cat /run/secrets-test/account/one
        echo 2 > /ckpt-test/deep/er/inner/two
        echo 3 2>/dev/null > /etc/evalstop-test/run/x || echo readonly; echo said > /dev/termination-log-test
        echo ignored > /dev/null; touch /top; ls /etc/passwd; hostname; pwd"""
    _, ended, output = run(command(script, mounting, mounts, "/work-test/here"), tmp_path / "run")
    assert ended == Ended(0)
    assert output.split() == ["1", "readonly", "/etc/passwd", "test-host", "/work-test/here"]
    assert (volume / "one").read_text() == "1\n"
    assert (volume / "sub" / "two").read_text() == "2\n"
    assert message.read_text() == "said\n"
    assert {folder: sorted(os.listdir(folder)) for folder in before} == before


@pytest.mark.skipif(BEST != "root", reason="only root may give up being root")
def test_another_user_reaches_the_image_and_reads_nobody_elses_files(tmp_path: Path) -> None:
    """Its interpreter may lie in a folder that the machine keeps for root, as below /root."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as top:
        _another_user(Path(top), tmp_path)


def _another_user(top: Path, tmp_path: Path) -> None:
    volume, closed = top / "volume", top / "closed"
    image = closed / "image"
    for folder in (volume, image):
        folder.mkdir(parents=True)
    closed.chmod(0o700)
    (image / "program").write_text("#!/bin/sh\nid -u; id -g; id -G\n")
    (image / "program").chmod(0o755)
    (closed / "secret").write_text("x")
    (closed / "secret").chmod(0o600)
    (volume / "roots").write_text("x")
    (volume / "roots").chmod(0o600)
    volume.chmod(0o777)
    script = f"{image}/program; cat /volume/roots {closed}/secret || echo denied; touch /volume/own"
    mounts = [Mount(str(volume), "/volume")]
    user = User(12001, 12002, (12003,))
    asked = Command(["sh", "-c", script], PATH, "/", "h", mounts, "root", user, [str(image)])
    _, ended, output = run(asked, tmp_path / "run")
    assert ended == Ended(0)
    lines = output.splitlines()
    assert lines[:3] == ["12001", "12002", "12002 12003"]
    assert lines[-1] == "denied"
    made = (volume / "own").stat()
    assert (made.st_uid, made.st_gid) == (12001, 12002)
    assert closed.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("target", "words"),
    [("/", "cannot replace the root"), ("/proc/x", "inside /proc"), ("/etc/passwd/x", "is a file")],
)
@pytest.mark.parametrize("mounting", PRIVATE)
def test_impossible_mount_paths_are_named(tmp_path: Path, mounting: str, target: str, words: str) -> None:
    started, ended, _ = run(command("true", mounting, [Mount(str(tmp_path), target)]), tmp_path / "run")
    assert not started
    assert words in ended.error
    assert repr(target) in ended.error


@pytest.mark.parametrize("mounting", WAYS)
def test_orphans_end_with_the_command(tmp_path: Path, mounting: str) -> None:
    mark = f"31{os.getpid()}"
    began = time.monotonic()
    _, ended, _ = run(command(f"(setsid sleep {mark} &); sleep {mark} & exit 5", mounting), tmp_path)
    assert ended == Ended(5)
    assert time.monotonic() - began < 15
    assert not running(mark)


@pytest.mark.parametrize("mounting", WAYS)
def test_kill_reaches_everything(tmp_path: Path, mounting: str) -> None:
    mark = f"32{os.getpid()}"

    async def go() -> Ended:
        script = f"trap '' TERM; (setsid sleep {mark} &); echo up; sleep {mark}"
        up = asyncio.Event()
        process = ContainerProcess(command(script, mounting), tmp_path, lambda chunk: up.set())
        await process.started
        await asyncio.wait_for(up.wait(), 20)  # from here on it has its trap
        process.signal(signal.SIGTERM)
        await asyncio.sleep(0.2)
        assert not process.ended.done()
        return await process.kill()

    assert asyncio.run(go()) == Ended(signal=9)
    assert_soon_gone(mark)


@pytest.mark.parametrize("mounting", WAYS)
def test_execute_runs_inside(tmp_path: Path, mounting: str) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()

    async def go() -> tuple[tuple[int, bytes], tuple[int, bytes]]:
        mounts = [Mount(str(volume), "/seen-test")] if mounting != "none" else []
        process = ContainerProcess(
            command("sleep 30", mounting, mounts), tmp_path / "run", lambda chunk: None
        )
        await process.started
        look = "test -d /seen-test && hostname" if mounting != "none" else "echo test-host"
        good = await process.execute(["sh", "-c", look], 5)
        bad = await process.execute(["sh", "-c", "exit 9"], 5)
        with pytest.raises(TimeoutError):
            await process.execute(["sleep", "20"], 0.2)
        await process.kill()
        return good, bad

    assert asyncio.run(go()) == ((0, b"test-host\n"), (9, b""))


@pytest.fixture
def doomed_agent(tmp_path: Path) -> Iterator[list[str]]:
    """A program that starts one container per way of mounting and then waits to be killed."""
    program = tmp_path / "agent.py"
    program.write_text(
        textwrap.dedent(
            """
            import asyncio, json, sys
            from pathlib import Path
            from deploy.local.agent.process import Command, ContainerProcess
            async def main():
                for way in sys.argv[3:]:
                    script = f"(setsid sleep {sys.argv[2]} &); sleep {sys.argv[2]}"
                    command = Command(["sh", "-c", script], {"PATH": "/usr/bin:/bin"}, "/", "h", [], way)
                    await ContainerProcess(command, Path(sys.argv[1]) / way, lambda chunk: None).started
                print("up", flush=True)
                await asyncio.sleep(60)
            asyncio.run(main())
            """
        )
    )
    return [sys.executable, str(program)]


def test_a_hard_killed_agent_leaves_no_process(tmp_path: Path, doomed_agent: list[str]) -> None:
    mark = f"33{os.getpid()}"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    agent = subprocess.Popen(
        [*doomed_agent, str(tmp_path), mark, *WAYS], stdout=subprocess.PIPE, env=environment
    )
    assert agent.stdout is not None
    assert agent.stdout.readline() == b"up\n"
    wait_until(lambda: len(running(mark)) >= 2 * len(WAYS), "the containers' processes to start", 20)
    agent.kill()
    agent.wait()
    agent.stdout.close()
    assert_soon_gone(mark)


def test_what_a_former_agent_left_is_killed_by_its_record_only(tmp_path: Path) -> None:
    left = subprocess.Popen(["sleep", "60"], start_new_session=True)
    other = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        from deploy.local import processes

        me = processes.identify(left.pid)
        (tmp_path / "a").mkdir()
        (tmp_path / "b").mkdir()
        (tmp_path / "a" / "pid.json").write_text(json.dumps({"pid": me.pid, "started": me.started}))
        (tmp_path / "b" / "pid.json").write_text(
            json.dumps({"pid": other.pid, "started": "1"})
        )  # a reused pid
        assert asyncio.run(kill_left_behind(tmp_path)) == 1
        assert left.wait(5) == -9
        assert other.poll() is None
        assert not list(tmp_path.glob("**/pid.json"))
    finally:
        for process in (left, other):
            process.kill()
            process.wait()


def running(mark: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[:2] == [b"sleep", mark.encode()]:
                found.append(int(entry.name))
    return found


def assert_soon_gone(mark: str) -> None:
    deadline = time.monotonic() + 5
    while left := running(mark):
        assert time.monotonic() < deadline, f"processes {left} outlived their container"
        time.sleep(0.02)
