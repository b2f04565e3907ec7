"""How processes begin and end: usage, settings, errors that are mended by whoever starts them, signals."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest

from controller.actor.__main__ import main as actor
from controller.environ import SettingsError
from controller.extender.main import main as extender
from controller.operator.main import main as operator
from controller.program import Program, stop_signal
from controller.web.dashboard.process import main as dashboard


class Mended(Exception):
    """An error that is mended by whoever starts the process."""


@dataclass(frozen=True)
class Given:
    log_level: str = "INFO"
    log_format: str = "json"


def program(ends: Exception | int) -> Program[Given]:
    def read(environ: Mapping[str, str]) -> Given:
        if "WRONG" in environ:
            raise SettingsError("WRONG: no such setting")
        return Given()

    async def run(settings: Given, environ: Mapping[str, str]) -> int:
        if isinstance(ends, Exception):
            raise ends
        return ends

    return Program("controller.example", read, lambda: [("SIZE", "3", "how large")], run, (Mended,))


@pytest.mark.parametrize(
    ("ends", "environ", "code", "said"),
    [
        (0, {}, 0, ""),
        (1, {}, 1, ""),
        (0, {"WRONG": "1"}, 2, "evalstop example: WRONG: no such setting\n"),
        (Mended("no way to the API server"), {}, 2, "evalstop example: no way to the API server\n"),
        (KeyError("lost"), {}, 1, '"the example ends"'),
    ],
)
def test_exit_codes(
    ends: Exception | int, environ: dict[str, str], code: int, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert program(ends).main([], environ) == code
    told = capfd.readouterr().err
    assert said in told
    assert ("Traceback" in told) is (code == 1 and bool(said))


@pytest.mark.parametrize(("argument", "code"), [("--help", 0), ("-h", 0), ("serve", 2)])
def test_any_argument_shows_the_usage(argument: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert program(0).main([argument], {}) == code
    assert "usage: python -m controller.example\n" in (told := capsys.readouterr().out)
    assert "SIZE\n      how large (default 3)" in told


@pytest.mark.parametrize(
    ("module", "main", "prefix"),
    [
        ("controller.actor", actor, "EVALSTOP_ACTOR_"),
        ("controller.web.dashboard", dashboard, "EVALSTOP_DASHBOARD_"),
        ("controller.extender", extender, "EVALSTOP_EXTENDER_"),
        ("controller.operator", operator, "EVALSTOP_"),
    ],
)
def test_each_process_of_ours_tells_its_settings_and_refuses_wrong_ones(
    module: str, main: Callable[..., int], prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--help"], {}) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"usage: python -m {module}\n")
    assert f"{prefix}LOG_LEVEL\n" in told
    assert main([], {f"{prefix}LOG_LEVEL": "LOUD"}) == 2
    assert f"evalstop {module.rpartition('.')[2]}: " in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_either_signal_asks_to_end(number: signal.Signals) -> None:
    async def wait() -> None:
        stop = stop_signal()
        os.kill(os.getpid(), number)
        async with asyncio.timeout(5):
            await stop.wait()

    asyncio.run(wait())
