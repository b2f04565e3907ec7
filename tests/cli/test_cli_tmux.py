"""`evalstop top` in a real terminal, by keys alone, on a real API server; and with that server cut off."""

from __future__ import annotations

import contextlib
import shlex
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from cli_shell import Shell

from tests.support import cli_world as w
from tests.support.replicas import api_address
from tests.support.tmux import Tmux, tmux

# Getting tmux may be part of it.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
NARROW, WIDE = (80, 24), (200, 50)


class Cable:
    """A way to the API server that can be cut: whoever is on it is thrown off, and nobody comes in."""

    def __init__(self, to: tuple[str, int]) -> None:
        self._to, self._ends = to, list[socket.socket]()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open()

    def cut(self) -> None:
        for one in (self._listener, *self._ends):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._ends.clear()

    def mend(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._open()

    def _open(self) -> None:
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection(self._to)
                self._ends += [near, far]
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=_carry, args=(one, other), daemon=True).start()


def _carry(near: socket.socket, far: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := near.recv(65536):
            far.sendall(data)
        far.shutdown(socket.SHUT_WR)


@pytest.fixture
def cable(shell: Shell, tmp_path: Path) -> Iterator[tuple[Cable, Path]]:
    made = Cable(api_address(shell.kubeconfig))
    config = yaml.safe_load(shell.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{made.port}"
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    yield made, path
    made.cut()


def test_top_by_keys_alone_and_with_the_api_server_cut(
    shell: Shell, cable: tuple[Cable, Path], tmp_path: Path
) -> None:
    wire, kubeconfig = cable
    w.write(shell.plane, shell.namespace, "fresh", w.running())
    with tmux(*NARROW) as pane:
        command = shlex.join(
            [sys.executable, "-m", "controller.cli", "top", "-n", shell.namespace, "--interval", "0.3"]
        )
        pane.start(f"{command}; echo it has ended; cat", {"KUBECONFIG": str(kubeconfig)}, Path.cwd())
        _shows_the_list(pane)
        # Enter says why; c copies the command that does the same; Escape goes back.
        pane.keys("Enter")
        pane.shows("there is no GPUPool 'b100'")
        pane.keys("c")
        pane.until(lambda _: "evalstop why refused" in pane.copied(), "the command is copied")
        pane.keys("Escape")
        pane.hides("there is no GPUPool 'b100'")
        # A filter, typed at once, and back.
        pane.keys("-l", "/stopped")
        pane.until(lambda seen: " over " in seen and "PoolNotFound" not in seen, "the rows are filtered")
        pane.keys("Enter")
        pane.hides("words that a row has")
        # What would be done is said and asked, and not done.
        pane.keys("m")
        pane.shows("How far may")
        pane.keys("Escape")
        pane.hides("How far may")  # a key at once after Escape would be one with Alt
        pane.keys("r")
        pane.shows("step 160")
        pane.keys("n")
        pane.hides("step 160")
        assert shell.spec("over").get("runState", "Run") == "Run"
        assert "resume" not in shell.spec("over")
        pane.keys("Escape")
        pane.shows("PoolNotFound")
        # Sort, move, tabs, the page of keys.
        pane.keys("o", "j", "j", "k")
        pane.keys("2")
        pane.shows(shell.pool)
        pane.keys("3")
        pane.shows("PRIORITY")
        # The same on a large screen: the queue says why, the list is whole.
        pane.resize(*WIDE)
        pane.shows("WHY")
        pane.keys("?")
        pane.shows("other way round")
        pane.keys("Escape")
        pane.hides("other way round")
        pane.keys("1")
        _shows_the_list(pane)
        # The cluster falls silent: one line says so on either screen, and what was seen stays.
        wire.cut()
        pane.shows("stale as of")
        pane.resize(*NARROW)
        pane.until(
            lambda seen: "stale as of" in seen and "Running" in seen, "what was seen, on the small one"
        )
        # Then it is back.
        wire.mend()
        pane.hides("stale as of")
        w.write(shell.plane, shell.namespace, "fresh", w.completed())
        pane.keys("-l", "/fresh")
        pane.until(lambda seen: "Completed" in seen and " over " not in seen, "the new state is shown")
        pane.keys("Enter")
        pane.until(lambda seen: "▔▔▔" not in seen, "the filter is left")
        pane.keys("C-c")
        pane.shows("it has ended")


def _shows_the_list(pane: Tmux) -> None:
    """Name, state and reason stay on the screen, and no line is longer than it."""

    def whole(seen: str) -> bool:
        head = next((line for line in seen.splitlines() if "STATE" in line), "")
        there = "PoolNotFound" in seen and all(name in head for name in ("NAME", "STATE", "REASON"))
        return there and all(len(line) <= pane.width for line in seen.splitlines())

    pane.until(whole, "the list")
