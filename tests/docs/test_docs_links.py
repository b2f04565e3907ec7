"""Every link of a page leads to a file that is there and, after a `#`, to a heading of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHELVES = ("use", "operate", "understand", "reports")
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *(path for folder in ("deploy", "examples", "tests") for path in sorted((ROOT / folder).rglob("*.md"))),
]
_LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)")
_FENCED = re.compile(r"^```.*?^```$", re.M | re.S)
# How code, manifests and messages name a page: the path from the repository's root.
_NAMED = re.compile(r"(?<![\w/.-])docs/[\w/.-]+?\.(?:md|png|svg)\b")
# How a page names a file of the code.
_FILE = re.compile(
    r"(?<![\w/.-])(?:controller|sim|deploy|tests|examples|crds)/[\w/.-]*\.(?:py|yaml|json|md|txt)\b"
)
_SOURCES = (".py", ".yaml", ".json", ".txt", ".toml", ".html", ".md", ".tpl")


def links(text: str) -> list[str]:
    """Return the targets of the links in a Markdown text, without those in code."""
    prose = re.sub(r"`[^`\n]*`", "``", _FENCED.sub("", text))
    return [target for target in _LINK.findall(prose) if "://" not in target]


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    found: dict[str, int] = {}
    for heading in re.findall(r"^#{1,6} (.*)$", _FENCED.sub("", page.read_text()), re.M):
        anchor = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        found[anchor] = found.get(anchor, 0) + 1
    return {f"{a}-{n}" if n else a for a, times in found.items() for n in range(times)}


def broken(page: Path, text: str) -> list[str]:
    """Return the links of a page's text that lead nowhere."""
    found = []
    for target in links(text):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            found.append(target)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page, page.read_text()) == []


def test_a_broken_link_is_found() -> None:
    page = ROOT / "docs" / "README.md"
    assert broken(page, "[a](use/cli.md) [b](use/none.md) [c](use/cli.md#none) `[d](none.md)`") == [
        "use/none.md",
        "use/cli.md#none",
    ]
    assert broken(page, "[a](use/cli.md#exit-codes) [b](https://example.invalid/none)") == []


def test_pages_named_in_code_manifests_and_messages_are_there() -> None:
    missing = {
        f"{path.relative_to(ROOT)}: {name}"
        for folder in ("controller", "sim", "deploy", "crds", "examples", "tests", "docs")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in _SOURCES and path != Path(__file__)
        for name in _NAMED.findall(path.read_text())
        if not (ROOT / name).exists()
    }
    assert missing == set()


def test_files_of_this_repository_that_pages_name_are_there() -> None:
    missing = {
        f"{page.relative_to(ROOT)}: {name}"
        for page in PAGES
        for name in _FILE.findall(page.read_text())
        if not (ROOT / name).exists()
    }
    assert missing == set()


def test_every_page_is_on_a_shelf_and_in_the_list_of_pages() -> None:
    """Names are unique across the shelves, since messages and tests name pages by them."""
    contents = ROOT / "docs" / "README.md"
    listed = {(contents.parent / link).resolve() for link in links(contents.read_text())}
    pages = [path for path in (ROOT / "docs").rglob("*.md") if path != contents]
    assert {path for path in pages if path not in listed} == set()
    assert {path.parent.name for path in pages} == {*SHELVES, "docs"}
    above = {path.name for path in pages if path.parent.name == "docs"}
    assert above == {"architecture.md", "first-ten-minutes.md"}  # which come before any shelf
    assert len({path.name for path in pages}) == len(pages)
