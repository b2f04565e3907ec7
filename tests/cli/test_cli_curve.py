"""Curves in the terminal: what is drawn where, within the width given, in characters that can be shown."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from controller.cli.curve import Curve, Mark, draw
from controller.cli.terminal import Terminal, length

UNICODE, ASCII = Terminal(), Terminal(unicode=False)
PEAK = Mark(20, 3.0, "◆", "B", "green", "best, step 20")
RISE_AND_FALL = Curve("score", [(0, 1.0), (10, 2.0), (20, 3.0), (30, 2.0), (40, 1.0)], [PEAK])


def test_a_curve_as_it_looks() -> None:
    assert draw(RISE_AND_FALL, 24, 5, ASCII) == [
        "score",
        "3 |         .B.",
        "  |       ..   ..",
        "2 |    .*.       .*.",
        "  |  ..             ..",
        "1 |*.                 .*",
        "  +---------------------",
        "   0        20        40",
        "  B best, step 20",
    ]


def test_the_same_in_braille() -> None:
    lines = draw(RISE_AND_FALL, 24, 5, UNICODE)
    assert lines[1].index("◆") == 13
    assert lines[6] == "  └─────────────────────"
    dots = "".join(lines[1:6])
    assert {c for c in dots if 0x2800 <= ord(c) < 0x2900}, "drawn in braille"


def test_marks_outside_the_curve_are_named_but_not_drawn() -> None:
    far = Mark(99, 2.0, "✖", "X", "red", "stop, step 99")
    lines = draw(Curve("score", RISE_AND_FALL.points, [far]), 24, 5, ASCII)
    assert not any("X" in line for line in lines[1:6])
    assert lines[-1] == "  X stop, step 99"


def test_one_point_and_a_flat_line_and_nothing() -> None:
    assert any("*" in line for line in draw(Curve("s", [(5, 0.0)]), 30, 3, ASCII))
    assert any("*" in line for line in draw(Curve("s", [(0, 2.0), (9, 2.0)]), 30, 3, ASCII))
    assert draw(Curve("s", []), 30, 3, ASCII) == ["s"]


@given(
    scores=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=40),
    width=st.integers(40, 120),
    height=st.integers(2, 12),
    unicode=st.booleans(),
)
def test_whatever_the_scores_it_stays_in_its_frame(
    scores: list[float], width: int, height: int, unicode: bool
) -> None:
    points = [(float(10 * i), score) for i, score in enumerate(scores)]
    best = max(points, key=lambda p: p[1])
    mark = Mark(*best, "◆", "B", "green", "best")
    lines = draw(Curve("title", points, [mark]), width, height, Terminal(unicode=unicode))
    assert len(lines) == height + 4
    assert all(length(line) <= width for line in lines)
    assert sum(line.count("◆" if unicode else "B") for line in lines[1 : height + 1]) == 1
    assert unicode or all(line.isascii() for line in lines)
    if max(scores) > min(scores):
        assert ("◆" if unicode else "B") in lines[1], "the best is on the top line"
