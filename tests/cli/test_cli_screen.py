"""Completion, the plugin of kubectl, and what stays on a screen until it is ended."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_shell import Shell

from controller.cli import complete
from controller.cli.main import complete_for_kubectl

pytestmark = pytest.mark.cluster


# -- the shell and kubectl ----------------------------------------------------------------------------------


@pytest.fixture
def completed(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., list[str]]:
    """What kubectl gets for `kubectl rlhf WORDS<TAB>`."""
    monkeypatch.setattr(complete, "PATIENCE", 45.0)  # a shell's is short; a busy machine's answer comes late
    for variable in ("_EVALSTOP_COMPLETE", "COMP_WORDS", "COMP_CWORD"):
        monkeypatch.setenv(variable, "")  # the program sets them for itself; here they must go again

    def ask(*words: str, kubeconfig: str = str(shell.kubeconfig)) -> list[str]:
        monkeypatch.setenv("KUBECONFIG", kubeconfig)
        monkeypatch.setattr(sys, "argv", ["kubectl_complete-rlhf", *words])
        complete_for_kubectl()
        *found, directive = capsys.readouterr().out.splitlines()
        assert directive == ":4"
        return found

    return ask


def test_completion(shell: Shell, completed: Callable[..., list[str]]) -> None:
    assert set(completed("wh")) == {"why", "what-if"}
    assert completed("why", "h") == ["healthy"]
    assert shell.pool in completed("pools", "")
    assert completed("list", "-n", shell.namespace[:-1]) == [shell.namespace]
    assert "glr" in completed("simulate", "over", "--rule", "g")
    assert completed("why", "h", kubeconfig="/nowhere") == [], "one that cannot look offers nothing"


def test_as_a_plugin_of_kubectl(shell: Shell) -> None:
    scripts = Path(sys.executable).parent
    environ = {
        **os.environ,
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
        "KUBECONFIG": str(shell.kubeconfig),
    }
    kubectl = [str(shell.plane.binaries["kubectl"]), "rlhf", "get", "over"]
    done = subprocess.run(kubectl, capture_output=True, text=True, env=environ, check=True)
    assert f"{shell.namespace}/over: Stopped" in done.stdout
    offered = subprocess.run(
        [str(scripts / "kubectl_complete-rlhf"), "po"],
        capture_output=True,
        text=True,
        env=environ,
        check=True,
    )
    assert offered.stdout == "pools\n:4\n"


# -- what stays until it is ended ---------------------------------------------------------------------------


class Screen:
    """A command on a pseudo-terminal: what it draws can be read, and Ctrl-C be pressed."""

    def __init__(self, shell: Shell, *arguments: str) -> None:
        self._reader, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
        environ = {**os.environ, "KUBECONFIG": str(shell.kubeconfig), "TERM": "xterm"}
        environ = {name: value for name, value in environ.items() if name not in ("COLUMNS", "NO_COLOR")}
        command = [sys.executable, "-m", "controller.cli", *arguments]
        self.process = subprocess.Popen(
            command,
            stdin=other,
            stdout=other,
            stderr=other,
            env=environ,
            start_new_session=True,
            close_fds=True,
        )
        os.close(other)
        self.before = ""  # what was drawn before the text that was shown last
        self.drawn = ""

    def shows(self, text: str, seconds: float = 60.0) -> bool:
        """Whether it comes to show a text; what was drawn until then is forgotten."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if text in self.drawn:
                self.before, _, self.drawn = self.drawn.partition(text)
                return True
            if select.select([self._reader], [], [], 0.5)[0]:
                try:
                    self.drawn += os.read(self._reader, 65536).decode("utf-8", "replace")
                except OSError:  # it has ended
                    return text in self.drawn
        return False

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        drain = threading.Thread(target=self._drain, daemon=True)
        drain.start()
        code = self.process.wait(timeout=60)
        drain.join(60)  # it must not read from whatever gets this number next
        os.close(self._reader)
        return code

    def _drain(self) -> None:
        with contextlib.suppress(OSError):
            while os.read(self._reader, 65536):
                pass


def test_the_dashboard_is_served_until_ctrl_c(shell: Shell) -> None:
    screen = Screen(
        shell, "dashboard", "--no-open", "-n", shell.namespace, "--queue-url", "http://127.0.0.1:9"
    )
    try:
        assert screen.shows("http://127.0.0.1:"), screen.drawn
        assert screen.shows("/#key="), screen.drawn  # a line may come in pieces: now the port is whole
        with urllib.request.urlopen(f"http://127.0.0.1:{int(screen.before)}/", timeout=30) as page:
            assert page.status == 200
    finally:
        code = screen.interrupt()
    assert code == 130
