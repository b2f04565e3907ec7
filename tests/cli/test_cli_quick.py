"""What the quick way reads of a command, and what it offers, is what typer reads and offers."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from typer.testing import CliRunner

from controller.cli import complete, flags, main, quick
from controller.cli.app import app

PLAIN = [
    "list",
    "list -A",
    "list -A --no-headers -w -o wide",
    "list --watch --output=json",
    "list -n team -l stage!=test,team=x",
    "list --selector=team=x --namespace team -n other",
    "-n team list",
    "--namespace=team --context c --kubeconfig /k list --kubeconfig=/other -o name",
    "get over",
    "get over team/under -o yaml",
    "get -n team over --context=c under",
    "get over --no-headers over",
    "why over",
    "why over -o json --ascii",
    "why --namespace= over",
    "-n a --namespace b why --kubeconfig f over -o text",
    "why 7",
    "why \u00fcber/l\u00e4uft",
]
# Left to typer, which reads them or says what is wrong.
NOT_PLAIN = [
    "",
    "--help",
    "-h",
    "--version",
    "odd",
    "list --help",
    "list -h",
    "list one",
    "list -o odd",
    "list -o",
    "list -oJSON",
    "list -ojson",
    "list -Aw",
    "list --no-headers=yes",
    "list -nteam",
    "list -n",
    "list -n -A",
    "list -n=team",
    "list --json",
    "list --odd",
    "list --name team",
    "list --request-timeout 3",
    "--odd list",
    "-n list",
    "get",
    "get -- over",
    "why",
    "why over under",
    "why over -",
    "why over -o wide",
    "queue",
    "version",
]


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Calls of commands, with all that they are given; nothing else happens."""
    calls: list[Any] = []

    def note(self: Any, **given: Any) -> None:
        calls.append((self.__name__, given, dict(flags.BEFORE)))

    monkeypatch.setattr(flags.Connected, "__call__", note)
    monkeypatch.setattr(flags, "BEFORE", {"namespace": "of an earlier one"})
    return calls


@pytest.mark.parametrize("words", PLAIN)
def test_what_is_plain_is_read_as_typer_reads_it(words: str, called: list[Any]) -> None:
    given = words.split(" ")
    assert quick.run(given) == 0
    assert CliRunner().invoke(app, given).exit_code == 0
    by_quick, by_typer = called
    assert by_quick == by_typer
    types = [{name: type(value) for name, value in one[1].items()} for one in called]
    assert types[0] == types[1]


@pytest.mark.parametrize("words", NOT_PLAIN)
def test_what_is_not_plain_is_left_to_typer(words: str, called: list[Any]) -> None:
    assert quick.run(words.split(" ") if words else []) is None
    assert (called, flags.BEFORE) == ([], {"namespace": "of an earlier one"})


def test_a_failure_has_the_same_words_and_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["why", "over", "--kubeconfig", "/nowhere"]
    code = quick.run(words)
    out, err = capsys.readouterr()
    by_typer = CliRunner().invoke(app, words)
    assert (code, out, err) == (by_typer.exit_code, by_typer.stdout, by_typer.stderr)
    assert (code, "/nowhere: no such file" in err) == (5, True)


# Words before the cursor, the word at it, and whether the quick way answers.
OFFERED = [
    ("why", "o", True),
    ("why", "", True),
    ("why", "team/", True),
    ("-n team why --ascii", "o", True),
    ("why -n other --context c", "o", True),
    ("get over -o wide", "u", True),
    ("why over", "", False),
    ("list", "", False),
    ("why -n", "", False),
    ("why", "-", False),
    ("why", "--names", False),
    ("wh", "", False),
    ("", "wh", False),
    ("queue", "", False),
]


@pytest.mark.parametrize(("before", "word", "quickly"), OFFERED)
def test_what_is_offered_is_what_typer_offers(
    before: str,
    word: str,
    quickly: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked: list[Any] = []

    def names(ctx: Any, start: str, resource: Any, namespace: str = "") -> list[str]:
        above = ctx.parent.params if ctx.parent is not None else {}
        known = [{k: v for k, v in one.items() if v and k != "_"} for one in (ctx.params, above)]
        where = [[one.get(k) for k in ("namespace", "context", "kubeconfig")] for one in known]
        asked.append((where, start, str(resource), namespace))
        return [name for name in ("over", "other", "under") if name.startswith(start)]

    monkeypatch.setattr(complete, "_names", names)
    for variable in ("_EVALSTOP_COMPLETE", "COMP_WORDS", "COMP_CWORD"):
        monkeypatch.setenv(variable, "")  # the program sets them for itself; here they must go again
    words = before.split() if before else []
    monkeypatch.setattr(sys, "argv", ["kubectl_complete-rlhf", *words, word])
    found = quick.offered(words, word)
    assert (found is not None) is quickly
    by_quick = list(asked)
    asked.clear()
    by_typer = main._offered_by_typer()
    assert found is None or (found, by_quick) == (by_typer, asked)
    line = {"COMP_WORDS": " ".join(["evalstop", *words, word]), "COMP_CWORD": str(len(words) + 1)}
    capsys.readouterr()
    assert quick.complete({"_EVALSTOP_COMPLETE": "complete_bash", **line}) == (0 if quickly else None)
    assert not quickly or capsys.readouterr().out == "\n".join(by_typer) + "\n"
    assert quick.complete({"_EVALSTOP_COMPLETE": "complete_zsh", **line}) is None
