"""`evalstop queue --watch`: what changes is printed, and an operator that goes away is waited for."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from controller.cli import queue, queue_positions
from controller.cli.failure import Exit, Failure
from controller.cli.flags import Document
from controller.cli.main import app

Json = dict[str, Any]
GONE = Failure(Exit.UNREACHABLE, "no queue API")
FRESH = queue_positions.NotYet(Exit.REFUSED, "not planned yet")
REFUSED = Failure(Exit.NOT_FOUND, "there is no GPUPool")
ALL = queue_positions.Wanted("p", "", "", 50)


def place(job: str, position: int, waited: float = 1.0, reason: str = "WaitingForGPUs") -> Json:
    return {
        "job": job, "position": position, "state": "Queued", "reason": reason, "message": "",
        "overdue": False, "waitedSeconds": waited, "gpus": 2, "key": {},
    }  # fmt: skip


def answer(*items: Json) -> Json:
    return {"pool": "p", "policy": "fifo", "planned": 5.0, "total": len(items), "items": list(items)}


@pytest.fixture
def operator(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`operator(answers)`: what it says when it is asked, one after the other; gives the ways that were
    taken to it."""
    monkeypatch.setattr(queue_positions, "PAUSES", (0.0, 0.0))
    monkeypatch.setattr(queue_positions, "EVERY", 0.0)

    def start(*answers: Any) -> tuple[queue_positions.Connect, list[int]]:
        left, taken, number = list(answers), [], itertools.count(1)

        def ask(base: str, wanted: queue_positions.Wanted) -> Any:
            found = left.pop(0) if left else REFUSED
            if isinstance(found, Failure):
                raise found
            return found

        @contextlib.contextmanager
        def connect() -> Iterator[str]:
            taken.append(next(number))
            yield "base"

        monkeypatch.setattr(queue_positions, "ask", ask)
        return connect, taken

    return start


def heard(connect: queue_positions.Connect) -> tuple[list[Any], Failure]:
    """The answers, and what ended them."""
    found: list[Any] = []
    try:
        for one in queue_positions.poll(connect, ALL, watch=True):
            found.append(one)
    except Failure as failure:
        return found, failure
    raise AssertionError("it goes on until something ends it")


def test_one_answer_is_asked_for_without_watch(operator: Any) -> None:
    connect, taken = operator(answer(), answer())
    assert list(queue_positions.poll(connect, ALL, watch=False)) == [answer()]
    assert taken == [1]


def test_another_replica_is_asked_when_one_goes_away(operator: Any) -> None:
    connect, taken = operator(answer(), GONE, FRESH, answer(place("a/1", 1)), GONE, GONE, answer())
    found, ended = heard(connect)
    assert found == [answer(), answer(place("a/1", 1)), answer()]
    assert ended is REFUSED, "a pool that is gone is not waited for"
    assert taken == [1, 2, 3, 4, 5], "a new way each time, and none for a second question on the same"


def test_one_that_stays_away_ends_it(operator: Any) -> None:
    connect, _ = operator(answer(), GONE, GONE, GONE, answer())
    found, ended = heard(connect)
    assert (found, ended) == ([answer()], GONE)


def test_one_that_is_not_there_at_first_is_not_waited_for(operator: Any) -> None:
    connect, taken = operator(GONE, answer())
    assert heard(connect) == ([], GONE)
    assert taken == [1]


def test_how_long_they_wait_is_no_change(capsys: pytest.CaptureFixture[str]) -> None:
    show = queue._printer(ALL, Document.TEXT, watch=True)
    show(answer(place("a/1", 1), place("b/2", 2)))
    first = capsys.readouterr().out
    assert first.splitlines()[-1] == "2 waiting in pool p (fifo)"
    show(answer(place("a/1", 1, waited=60.0), place("b/2", 2, waited=60.0)) | {"planned": 60.0})
    assert capsys.readouterr().out == ""
    show(answer(place("b/2", 1, waited=61.0)))
    told = capsys.readouterr().out.splitlines()
    assert (told[0], told[1].split()[:2], told[2].split()[:2]) == ("", ["#", "JOB"], ["1", "b/2"])
    show(answer(place("b/2", 1, reason="QuotaSpent")))
    assert "QuotaSpent" in capsys.readouterr().out


@pytest.mark.parametrize("form", [Document.JSON, Document.YAML])
def test_each_change_is_a_whole_document(form: Document, capsys: pytest.CaptureFixture[str]) -> None:
    show = queue._printer(ALL, form, watch=True)
    for one in (answer(), answer(), answer(place("a/1", 1))):
        show(one)
    said = capsys.readouterr().out
    if form is Document.YAML:
        found = list(yaml.safe_load_all(said))
    else:
        found = json.loads("[" + said.replace("\n}\n{", "\n},\n{") + "]")
    assert found == [answer(), answer(place("a/1", 1))]


def test_the_command_goes_on_until_there_is_no_such_pool(operator: Any) -> None:
    operator(answer(place("a/1", 1)), answer(place("b/2", 1)))
    done = CliRunner().invoke(app, ["queue", "p", "-w", "--url", "http://here", "-o", "json"])
    assert (done.exit_code, "there is no GPUPool" in done.stderr) == (3, True)
    assert [job in done.stdout for job in ("a/1", "b/2")] == [True, True]


def test_a_plain_name_needs_to_know_where(tmp_path: Any) -> None:
    env = {"KUBECONFIG": str(tmp_path / "none")}
    done = CliRunner().invoke(app, ["queue", "p", "--job", "a", "--url", "http://here"], env=env)
    assert (done.exit_code, "no such file" in done.stderr) == (5, True)


@pytest.mark.parametrize("given", ["a/b/c", "/b", "a/"])
def test_wrong_usage_has_the_code_of_wrong_usage(given: str) -> None:
    done = CliRunner().invoke(app, ["queue", "p", "--job", given, "--url", "http://here"])
    assert (done.exit_code, "expected NAME or NAMESPACE/NAME" in done.stderr) == (2, True)
    done = CliRunner().invoke(app, ["queue", "p", "--url", given])
    assert (done.exit_code, "expected http://" in done.stderr) == (2, True)


def test_who_may_not_read_pools_is_told_that_the_name_may_be_wrong() -> None:
    for pool, told in ((None, True), ({"metadata": {"name": "p"}}, False)):
        said = queue_positions._without_operator(GONE, ALL, pool, ordered=False)
        assert ("it is not known whether p is one" in said) is told
