"""One declaration, three uses: what a field says makes its schema, its writing and its reading."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import pytest

from controller.api.codec import StatusError, decode, encode
from controller.api.schema import structural
from controller.policy.job.record import JobRecord
from controller.policy.stored import Absent, AtMost, Count, Form, Message, Name, Time, Word


class Shared(NamedTuple):
    statistic: Annotated[float, Absent(math.nan), "What was compared."]
    evaluator: Annotated[Word, Absent(""), "Who scored it."]
    floor: Annotated[float, Form.NOT_STORED] = 0.0


@dataclass(frozen=True, slots=True)
class Part:
    """A part.

    Of this the schema says nothing.
    """

    at: Annotated[Time, "When."]
    left_at: Annotated[Time | None, "When it was left."] = None


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole."""

    shared: Annotated[Shared, Form.INLINE]
    message: Annotated[Message, "Why."] = ""
    parts: Annotated[tuple[Part, ...], AtMost(2), "Its parts."] = ()
    lost: Annotated[float, Name("lostGPUSeconds"), "GPU-seconds."] = 0.0
    base: Annotated[tuple[object, ...], Form.PACKED] = ()
    state: Annotated[tuple[object, ...], Form.PACKED, AtMost(40), "JSON."] = ()
    tries: Annotated[Count, "How often."] = 0


def test_a_field_is_written_by_what_it_says() -> None:
    whole = Whole(Shared(math.nan, "", 5.0), "m" * 600, (Part(1.5, 2.0),), 0.5, (1,), ("a", 2.5))
    stored = encode(whole)
    assert stored == {
        "message": "m" * 512,
        "parts": [{"time": "1970-01-01T00:00:01.5Z", "leftTime": "1970-01-01T00:00:02Z"}],
        "lostGPUSeconds": "0.5",
        "state": '{"base":[1],"state":["a",2.5]}',
    }
    back = decode(Whole, stored)
    assert math.isnan(back.shared.statistic)
    assert (back.shared.evaluator, back.shared.floor) == ("", 0.0), "what is not stored has its default"
    assert (back.parts, back.lost, back.base, back.state) == (whole.parts, 0.5, (1,), ("a", 2.5))


def test_its_schema_comes_from_the_same() -> None:
    schema = structural(Whole)
    assert list(schema["properties"]) == [
        *("statistic", "evaluator", "message", "parts", "lostGPUSeconds", "state", "tries"),
    ]
    assert "required" not in schema, "each has a default, or a meaning where it is absent"
    assert schema["properties"]["state"] == {"description": "JSON.", "maxLength": 40, "type": "string"}
    items = schema["properties"]["parts"]["items"]
    assert (items["description"], items["required"]) == ("A part.", ["time"])


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        ({"parts": [{"time": "1970-01-01T00:00:01Z"}, {}]}, r"status.parts\[1\].time is missing"),
        ({"statistic": "x"}, "status.statistic: could not convert string to float: 'x'"),
        ({"tries": True}, "status.tries: True is not of type int"),
        ({"state": "{"}, "status: .*"),
        (5, "status: .*"),
    ],
)
def test_what_does_not_read_is_named_by_its_path(stored: object, said: str) -> None:
    with pytest.raises(StatusError, match=f"^{said}$"):
        decode(Whole, stored)  # type: ignore[arg-type]


def test_a_state_beyond_its_bound_and_a_field_without_one_are_refused() -> None:
    @dataclass(frozen=True)
    class Endless:
        text: Annotated[str, "Any."]

    with pytest.raises(ValueError, match="characters of JSON, a status holds 40"):
        encode(Whole(Shared(1.0, ""), state=tuple(range(40))))
    with pytest.raises(TypeError, match=r"is stored, and needs AtMost"):
        structural(Endless)


class _Watched(dict[str, object]):
    """An element that says whether anybody looked at it."""

    read = False

    def __getitem__(self, key: str) -> object:
        self.read = True
        return super().__getitem__(key)


def test_a_list_is_read_up_to_its_first_fault() -> None:
    """A tenant can write hundreds of thousands of elements: an error of each would take a pass seconds."""
    wrong, after = _Watched(type=5), _Watched(type=5)
    with pytest.raises(StatusError, match=r"^status\.conditions\[0\]"):
        decode(JobRecord, {"conditions": [wrong, after]})
    assert (wrong.read, after.read) == (True, False)
