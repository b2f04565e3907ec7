"""Both ways to read an answer say the same, and what only one of them takes goes to that one."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from controller.kube import wire

# An answer, and whether Python's own reader may take it.
ANSWERS = [
    (b'{"a": 1, "a": 2}', True),
    (b' {"a": "\\u003c\\t", "b": [true, false, null, {}]} \n', True),
    (b'{"a": -0, "b": 1E5, "c": 1e999, "d": 1e-400, "e": 0.1e1}', True),
    (b'{"a": 1.7976931348623157e308, "b": 5e-324, "c": 2.2250738585072011e-308}', True),
    (b'{"a": 123456789012345678, "b": 123456789012345678.5, "c": 100000000000000000000.0}', True),
    (b'{"a": ' + b"[" * 199 + b"]" * 199 + b"}", True),
    ('{"ä": "\x7f€😀"}'.encode(), True),
    (b'{"a": ' + b"[" * 200 + b"]" * 200 + b"}", False),
    (b'{"metadata": {}, "spec": ' + b"[" * 5000 + b"]" * 5000 + b"}", False),
    (b'{"a": 1234567890123456789}', False),
    (b'{"metadata": {}, "spec": {"a": ' + b"9" * 5000 + b"}}", False),
    (b'{"a": "\\ud83d\\ude00"}', False),
    (b'{"a": "\\ud800"}', False),
    (b'{"a": "\\uDC00"}', False),
    (b'{"a": NaN}', False),
    (b'{"a": -Infinity}', False),
    (b'{"a": "\xff"}', False),
    (b'\xef\xbb\xbf{"a": 1}', False),
    (b'{"a": "\t"}', False),
    (b'{"a": 01}', False),
    (b'{"a": 1.}', False),
    (b'{"a": 1,}', False),
    (b'{"a": 1} x', False),
    (b"[1]", False),
    (b"1", False),
    (b"", False),
    (b'{"a": "' + b"x" * wire.SMALL + b'"}', False),
]


@pytest.mark.parametrize(("data", "brief"), ANSWERS, ids=[repr(data[:30]) for data, _ in ANSWERS])
def test_an_answer_is_the_same_read_briefly(
    data: bytes, brief: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(decode: Any) -> Any:
        try:
            return repr(decode(data))  # which tells 1 from 1.0 and True
        except ValueError as error:
            return type(error)

    whole, long = wire.decode, []
    expected = read(whole)
    monkeypatch.delitem(sys.modules, "pydantic_core")
    monkeypatch.setattr(wire, "decode", lambda data: long.append(data) or expected)
    assert (read(wire.decode_briefly), bool(long)) == (repr(expected) if long else expected, not brief)


def test_a_process_that_has_pydantic_reads_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    wire.decode(b"{}")
    monkeypatch.setattr(wire, "decode", lambda data: {"by": "pydantic"})
    assert wire.decode_briefly(b"{}") == {"by": "pydantic"}
