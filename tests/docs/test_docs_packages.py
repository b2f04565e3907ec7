"""Each package says what it is, what it may import and which tests hold it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = sorted(
    str(path.parent.relative_to(ROOT))
    for top in ("controller", "deploy", "sim")
    for path in (ROOT / top).rglob("__init__.py")
)
CONTRACTS = re.findall(r'^name = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.M)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_says_what_it_may_import_and_what_holds_it(package: str) -> None:
    text = ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text()), clean=True) or ""
    parts = re.fullmatch(r"(.+)\nMay import: (.+)\.\nTests: (.+)\.", text, re.S)
    assert parts is not None, f"{package}: expected what it is, then 'May import: ….' and 'Tests: ….'"
    for contract in re.findall(r'contract\s+"([^"]+)"', parts[2]):
        named = " ".join(contract.split())
        assert any(known.startswith(named) for known in CONTRACTS), f"{package}: no contract {named!r}"
    for folder in re.findall(r"tests/\w*", parts[3]):
        assert (ROOT / folder).is_dir(), f"{package}: no folder {folder}"
