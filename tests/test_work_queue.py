"""Runs of pytest that share a queue run every test once, whatever they have in common together."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests import cpu_time, whole, work_queue
from tests.support.waiting import wait_until

TEST = """
import os, pathlib, time
import pytest

@pytest.mark.parametrize("number", range({tests}))
def test_it(number):
    with open("ran", "a") as ran:
        ran.write(f"{name} {{os.getpid()}}\\n")
    others = pathlib.Path("ran").read_text().split()[1::2]
    deadline = time.monotonic() + 20.0
    while {wait} and len(set(pathlib.Path("ran").read_text().split()[1::2])) < 2:
        assert time.monotonic() < deadline, "the other run took nothing"
        time.sleep(0.02)
"""
MODULES = ("tests/story/test_a.py", "tests/story/test_b.py", "tests/cli/test_c.py", "tests/policy/test_d.py")


def started(folder: Path, *options: str) -> subprocess.Popen[str]:
    """Runs in a folder of tests of its own, with this repository's plugin."""
    queue = folder / "queue"
    queue.mkdir(exist_ok=True)
    return subprocess.Popen(
        [*whole.pytest_command(queue), *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(whole.ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """Four modules of three tests; the first test of a run waits until another run has begun one, too."""
    for module in MODULES:
        path = tmp_path / module
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(TEST.format(name=module, tests=3, wait=True))
    (tmp_path / "ran").touch()
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = tests\naddopts = -q\n")
    return tmp_path


def ran(folder: Path) -> list[tuple[str, str]]:
    """Module and process of each test that ran, in this order."""
    lines = (folder / "ran").read_text().splitlines()
    return [(module, process) for module, process in map(str.split, lines)]


def test_two_runs_share_the_tests_and_leave_none(suite: Path) -> None:
    running = started(suite, "--runs=2")
    output, _ = running.communicate(timeout=120)
    assert running.returncode == 0, output
    first_run, second_run = output.split("beside it:")
    assert "passed in" in first_run
    assert "passed in" in second_run
    found = ran(suite)
    assert Counter(module for module, _ in found) == dict.fromkeys(MODULES, 3)
    assert len({process for _, process in found}) == 2
    assert len({process for module, process in found if "story" in module}) == 1, "one group, one run"
    assert work_queue.left(suite / "queue") == []
    groups = {line.split()[-1] for line in work_queue.dearest(suite / "queue")}
    assert groups == {"tests/story", "tests/cli/test_c.py", "tests/policy/test_d.py"}
    first = {process: module for module, process in reversed(found)}
    assert sorted(first.values()) == ["tests/policy/test_d.py", "tests/story/test_a.py"]


def test_a_run_beside_the_first_that_fails_says_why_and_gives_its_status(suite: Path) -> None:
    body = TEST.format(name=MODULES[-1], tests=1, wait=True)
    (suite / MODULES[-1]).write_text(f"{body}    print('only here')\n    assert number is None\n")
    running = started(suite, "--runs=2")
    output, _ = running.communicate(timeout=120)
    assert running.returncode == 1, output
    first_run, second_run = output.split("beside it:")
    assert "failed" not in first_run
    assert "FAILED tests/policy/test_d.py" in second_run
    assert output.count("\nonly here\n") == 1, "what a test prints is caught in its own run"


def test_an_interrupt_ends_all_runs(suite: Path) -> None:
    text = TEST.format(name="{name}", tests=1, wait=True) + "    time.sleep(60.0)\n"
    for module in MODULES:
        (suite / module).write_text(text.replace("{name}", module))
    running = started(suite, "--runs=2")
    wait_until(lambda: len(ran(suite)) == 2, "both runs to have begun a test")
    running.send_signal(signal.SIGINT)
    output, _ = running.communicate(timeout=50)
    assert running.returncode == pytest.ExitCode.INTERRUPTED, output
    assert output.count("! KeyboardInterrupt !") == 2
    assert len(ran(suite)) == 2


def test_cpu_is_counted_of_what_still_runs_and_of_what_has_ended() -> None:
    spin = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\n"
    before = cpu_time.used()
    with subprocess.Popen(
        [sys.executable, "-S", "-c", f"{spin}import sys; sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        running = cpu_time.used()
    assert running >= before + 0.27, "ticks are of 10 ms"
    assert running - 0.02 <= cpu_time.used() <= running + 5.0


def test_what_nobody_took_is_told(suite: Path) -> None:
    assert work_queue.left(suite / "queue") == ["the whole suite"]
    for module in MODULES:
        (suite / module).write_text("def test_it():\n    assert False\n")
    run = started(suite, "--exitfirst")
    output, _ = run.communicate(timeout=120)
    assert run.returncode == 1, output
    assert "stopping after 1 failures" in output
    # The first group, and what it had taken to tell its last test what comes next.
    assert work_queue.left(suite / "queue") == ["tests/cli/test_c.py", "tests/policy/test_d.py"]


@pytest.mark.parametrize("folder", work_queue.TOGETHER)
def test_what_a_folder_starts_ends_with_its_tests(folder: str) -> None:
    """Of the whole session's length it would idle beside all tests that come after: a twentieth of a core."""
    for path in (whole.ROOT / folder).glob("*.py"):
        for made in ast.walk(ast.parse(path.read_text())):
            if isinstance(made, ast.FunctionDef) and any(isinstance(n, ast.Yield) for n in ast.walk(made)):
                scopes = [ast.unparse(decorator) for decorator in made.decorator_list]
                assert "pytest.fixture(scope='session')" not in scopes, f"{path}: {made.name}"


def test_what_a_folder_shares_ends_before_the_next_folder_begins(tmp_path: Path) -> None:
    shared = """
import pathlib, pytest

@pytest.fixture(scope="package")
def shared():
    yield
    pathlib.Path("ended").touch()
"""
    first = "import pathlib\ndef test_it(shared): assert not pathlib.Path('ended').exists()\n"
    files = {
        "tests/a/conftest.py": shared,
        "tests/a/test_a.py": first,
        "tests/a/test_b.py": first,
        "tests/b/test_c.py": "import pathlib\ndef test_it(): assert pathlib.Path('ended').exists()\n",
        "pytest.ini": "[pytest]\ntestpaths = tests\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "tests.support.folders"]
    environment = {**os.environ, "PYTHONPATH": str(whole.ROOT)}
    ended = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout


def test_folders_of_the_order_are_there() -> None:
    """A folder that was renamed would lose its place."""
    for path in (*work_queue.WAITING, *work_queue.COMPUTING, *work_queue.TOGETHER):
        assert (whole.ROOT / path).exists(), path
