"""The command lines of the stories of jobs: what they refuse, by themselves and as all of them do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.local.demo.elastic.__main__ import main as elastic
from deploy.local.demo.shared.__main__ import main as shared
from deploy.local.plane import Plane
from deploy.local.status import Status

Main = Callable[[list[str]], int]


@pytest.mark.parametrize(
    ("main", "given", "said"),
    [
        (elastic, ["--runs", "0"], "--runs"),
        (elastic, ["--steps", "2"], "--steps"),
        (elastic, ["--steps", "9"], "--steps"),
        (elastic, ["--act", "four"], "--act"),
        (elastic, ["--queue", "kueue"], "a pool whose delegate is Kueue has no rollout actors"),
        (shared, ["--jobs", "1"], "--jobs: 1, expected 2 to 3"),
        (shared, ["--jobs", "4"], "--jobs: 4, expected 2 to 3"),
        (shared, ["--steps", "24"], "--steps: 24, expected at least 25"),
        (shared, ["--queue", "kueue"], "a pool whose delegate is Kueue has no worker groups"),
    ],
)
def test_what_cannot_be_played_is_refused(
    main: Main, given: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(given)
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(("main", "story"), [(elastic, "elastic"), (shared, "shared")])
def test_one_that_was_left_up_is_somebodys(
    main: Main,
    story: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "plane").mkdir()
    monkeypatch.setattr(Plane, "status", lambda self: Status(True, "https://127.0.0.1:1", None, ()))
    assert main(["--out", str(tmp_path)]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert f"make demo FRESH=1 STORY={story} ends it and begins anew" in said
