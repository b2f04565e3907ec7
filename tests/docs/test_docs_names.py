"""Objects that somebody is told to make are theirs: an upgrade of the chart does not take them away again."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
SHOWN = [
    ROOT / "README.md",
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "controller").rglob("*.py"),
    *(ROOT / "controller").rglob("*.html"),
    *(ROOT / "deploy").rglob("NOTES.txt"),
]
CREATE = re.compile(r"kubectl create ((?:cluster)?role(?:binding)?) ([a-z][a-z0-9.-]*)([^\n`]*)")


def told() -> list[tuple[str, str, str, Path]]:
    """(kind, name, the rest of the command, where) of each role and binding that is to be made."""
    return [(*found, path) for path in SHOWN for found in CREATE.findall(path.read_text())]


def test_nobody_is_told_to_make_an_object_of_the_charts() -> None:
    """Objects of a Helm hook are deleted when it has succeeded, whoever made them."""
    rendered = yaml.safe_load_all((ROOT / "tests" / "chart" / "snapshots" / "full.yaml").read_text())
    ours = {(o["kind"].lower(), o["metadata"]["name"]) for o in rendered if o}
    assert ("clusterrole", "evalstop-pools") in ours, "hooks are among them"
    assert len(told()) >= 5
    assert [(kind, name, path) for kind, name, _, path in told() if (kind, name) in ours] == []


def test_the_dashboard_says_what_the_page_on_security_says() -> None:
    def to_read_pools(path: Path) -> list[tuple[str, str, str]]:
        """Without for whom."""
        return [
            (kind, name, re.sub(r"--(user|group)=.*", "", rest))
            for kind, name, rest, where in told()
            if where == path and kind.startswith("clusterrole")
        ]

    page = to_read_pools(ROOT / "docs" / "operate" / "security.md")
    assert [kind for kind, *_ in page] == ["clusterrole", "clusterrolebinding"]
    assert to_read_pools(ROOT / "controller/web/dashboard/templates/problem.html") == page
