"""While no operator is there nothing is watched: whatever shows how runs do says so."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from controller import names
from controller.api.values import timestamp
from controller.cli.main import app
from tests.support import cli_world as w
from tests.support.stub_api import stub_api

LOOKING = (["list"], ["get", "over"], ["why", "over"], ["top", "--once"])
AWAY = "no operator has renewed its Lease for "


def lease(age: float, holder: str = "operator-0") -> dict[str, Any]:
    spec = {"holderIdentity": holder, "renewTime": timestamp(time.time() - age)}
    return {"kind": "Lease", "metadata": {"name": names.OPERATOR, "namespace": names.NAMESPACE}, "spec": spec}


def printed(folder: Path, leases: list[dict[str, Any]]) -> list[Result]:
    jobs = [w.whole(name, record) for name, record in w.records().items()]
    with stub_api(folder, [*jobs, *leases]) as kubeconfig:
        environ = {"KUBECONFIG": str(kubeconfig), "COLUMNS": "200"}
        return [CliRunner().invoke(app, words, env=environ) for words in (*LOOKING, ["list", "-o", "json"])]


@pytest.mark.parametrize(("age", "holder"), [(400.0, "operator-0"), (90.0, "")], ids=["died", "ended"])
def test_an_operator_that_is_away_is_told_beside_what_it_left(
    tmp_path: Path, age: float, holder: str
) -> None:
    *looked, document = printed(tmp_path, [lease(age, holder)])
    for words, done in zip(LOOKING, looked, strict=True):
        assert done.exit_code == 0, done.output
        assert AWAY in (done.stdout if words[0] == "top" else done.stderr), words
        assert "over" in done.stdout
    assert AWAY not in document.output, "a program reads it"


@pytest.mark.parametrize(
    ("ages", "holder"),
    [((-3600.0,), "operator-0"), ((-3600.0,), ""), ((), "")],  # however slow this machine is
    ids=["renewed", "changes hands", "not to be read"],
)
def test_one_that_is_there_or_cannot_be_asked_for_is_not_spoken_of(
    tmp_path: Path, ages: tuple[float, ...], holder: str
) -> None:
    done = printed(tmp_path, [lease(age, holder) for age in ages])
    assert AWAY not in "".join(one.output for one in done)
