"""The rules of texts find what they are for, and leave alone what is right."""

from __future__ import annotations

import pytest

from tests.sweep.words import digits, faults

WRONG = {
    "best None at step 3, step=None": "Python",
    "None": "Python",
    "mode <Mode.SHADOW: 'Shadow'>": "Python",
    "ValueError('x')": "Python",
    "newest nan": "not a number",
    "to -inf": "not a number",
    "1 GPUs": "plural of one",
    "waits for 1 evals": "plural of one",
    "4 GPU free": "no plural",
    "0 stop today": "no plural",
    "sha256:" + "5a" * 32: "digest",
    "2026-11-26 03:12:45": "time zone",
    "0.74213": "too many digits",
    "12.345 %": "too many digits",
    "about 38.2 GPU-hours": "estimate",
    "about 123 GPU-hours": "estimate",
    "0.07421 GPU-hours saved, about": "estimate",
    "-0.0": "minus",
    "0,5": "comma",
}
RIGHT = (
    "None yet: no run was stopped.",
    "None of your namespaces",
    "1 s later",
    "1 process, 1 GPU, 2 GPUs, 1.1 GPU-hours, 0.1 evals",
    "at step 20 runs on",
    "3 GPU-hours",
    "4 \u00d7 1 GPU",
    "2 x 8 GPUs",
    "version 0.1.0",
    "http://127.0.0.1:40123/",
    "2026-11-26 03:12:45 UTC and 2026-11-26 03:12:45Z",
    "2026-11-26T03:12:45+00:00",
    "0.7421, 1234, 12,345, 1e+308, 0.1",
    "about 1200 GPU-hours; about 0.073",
    "1,025 GPUs",
    "info, nanny, step 1 of 2",
    "+1.2s",
)


@pytest.mark.parametrize(("text", "what"), WRONG.items(), ids=range(len(WRONG)))
def test_what_is_wrong_is_found(text: str, what: str) -> None:
    assert any(what in fault for fault in faults(text)), faults(text)


@pytest.mark.parametrize("text", RIGHT)
def test_what_is_right_is_left_alone(text: str) -> None:
    assert faults(text) == []


@pytest.mark.parametrize(
    ("number", "count"), [("0.0731", 3), ("1200", 2), ("12.0", 3), ("0", 0), ("1,025", 4)]
)
def test_significant_digits(number: str, count: int) -> None:
    assert digits(number) == count
