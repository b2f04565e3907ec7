"""What the pages say that commands print is what they print."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

from controller.cli.main import app
from tests.support import cli_docs


@pytest.fixture(scope="module")
def env() -> Iterator[dict[str, str]]:
    with cli_docs.stub() as found:
        yield found


@pytest.mark.parametrize("page", cli_docs.PAGES, ids=lambda page: page.stem)
def test_examples_are_what_the_commands_print(page: Path, env: dict[str, str]) -> None:
    """Write them anew by: python -m tests.support.cli_docs"""
    written = page.read_text()
    assert len(cli_docs.BLOCK.findall(written)) >= 2
    assert cli_docs.anew(written, env) == written


def test_every_command_is_on_the_page_of_the_cli() -> None:
    told = cli_docs.PAGES[0].read_text()
    for name in typer.main.get_command(app).commands:  # type: ignore[attr-defined]
        assert re.search(rf"`(evalstop )?{name}\b", told), f"docs/use/cli.md says nothing of {name}"
