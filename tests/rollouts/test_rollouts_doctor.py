"""`evalstop doctor --engine`: real engines, measured and found out."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rollouts_world import environment
from typer.testing import CliRunner

from controller.cli.main import app
from examples.rollouts.task import INITIAL


def doctor(*args: str) -> tuple[int, dict[str, list[str]]]:
    result = CliRunner().invoke(app, ["doctor", *args, "-o", "json"])
    if result.exit_code == 2:
        return 2, {"error": [result.output]}
    found: dict[str, list[str]] = {}
    for finding in json.loads(result.stdout)["findings"]:
        found.setdefault(finding["level"], []).append(f"{finding['about']}: {finding['text']}")
    return result.exit_code, found


def test_the_engine_is_measured(tmp_path: Path) -> None:
    socket, weights = tmp_path / "e.sock", tmp_path / "weights"
    weights.write_bytes(INITIAL.dump())
    command = [
        "--socket",
        str(socket),
        "--slots",
        "6",
        "--iteration",
        "0.03",
        "--sequence",
        "0.004",
        "--prefill",
        "0.001",
    ]
    engine = subprocess.Popen(
        [sys.executable, "-m", "examples.engine", *command, "--start", "0.5"], env=environment()
    )
    try:
        code, found = doctor("--engine", f"unix:{socket}")
        assert code == 0
        assert any("nothing can be generated" in text for text in found["note"])
        code, found = doctor("--engine", f"unix:{socket}", "--engine-weights", str(weights))
    finally:
        engine.terminate()
        engine.wait()
    assert code == 0, found
    text = "\n".join(found["ok"])
    assert "wrong" not in found
    assert "same tokens" in text
    assert "goes on with the same tokens" in text
    assert "an aborted response ends" in text
    assert "other ones are refused (409)" in text
    assert "6 responses at a time" in text
    measured = re.search(r"a = ([\d.]+) ms, c = ([\d.]+) ms", text)
    assert measured
    assert float(measured[1]) > 25.0, "never faster than it is told to be"
    assert float(measured[2]) > 1.0
    prefill = re.search(r"prefill: ([\d.]+) ms", text)
    assert prefill
    assert float(prefill[1]) > 0.5


def test_an_engine_that_is_gone_is_wrong_and_an_address_on_the_network_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from controller.cli.doctor import engine

    monkeypatch.setattr(engine, "PATIENCE", 0.3)
    code, found = doctor("--engine", f"unix:{tmp_path / 'none.sock'}")
    assert code == 1
    assert "has not answered" in found["wrong"][0]
    for wrong in (["--engine", "http://host:1"], ["--engine", "unix:/x", "--engine-kind", "SGLang"],
                  ["--engine", "unix:/x", "--engine-weights", "/none"]):  # fmt: skip
        code, found = doctor(*wrong)
        assert code == 2, found
