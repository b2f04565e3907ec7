"""`evalstop rules fleet`: the docs' tables of shared falls and of liars, for both scopes."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from controller.cli.main import app
from sim.rules import fleets


@pytest.mark.parametrize("as_json", [False, True])
def test_as_text_and_as_json(monkeypatch: pytest.MonkeyPatch, as_json: bool) -> None:
    monkeypatch.setattr(fleets, "FALLS", (("scan", 3, 1),))
    monkeypatch.setattr(fleets, "DROPS", (0,))
    monkeypatch.setattr(fleets, "LIARS", ((0, 1), (2, 1)))
    found = CliRunner().invoke(
        app, ["rules", "fleet", "--pools", "1", "--honest", "4", *(["--json"] if as_json else [])]
    )
    assert found.exit_code == 0, found.output
    if as_json:
        rows = json.loads(found.stdout)
        assert {row["scope"] for row in rows["falls"]} == {"", "Namespace", "Pool"}
        assert [row["liars"] for row in rows["liars"]] == [0, 2] * 4
    else:
        assert "| `scan`, 3 runs | Namespace |" in found.stdout
        assert "| `scan` | Pool |" in found.stdout
