"""Our `dataclass` behaves as that of `dataclasses`: the same classes, made by both, side by side."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
import re
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller import frozen

ROOT = Path(__file__).resolve().parents[1]
APART = {
    ROOT / "controller" / "frozen.py",
    ROOT / "sim" / "twin.py",
}  # who knows the truth knows nothing of us


def classes(decorated: Callable[[Any], Any]) -> dict[str, Any]:
    """Return classes that use what a dataclass may have."""

    @decorated
    class Plain:
        a: int
        b: float = 0.5
        c: tuple[int, ...] = ()

    @decorated
    class Rich:
        """With a factory, what is not compared, not shown, not an argument, and by keyword alone."""

        KINDS: ClassVar[int] = 3
        a: int
        made: list[int] = field(default_factory=list)
        silent: int = field(default=0, repr=False)
        aside: int = field(default=0, compare=False)
        fixed: int = field(default=7, init=False)
        grown: list[int] = field(default_factory=lambda: [1], init=False)
        named: int = field(default=1, kw_only=True)

        @property
        def twice(self) -> int:
            return 2 * self.a

    @decorated
    class Checked:
        a: int
        b: int = 0

        def __post_init__(self) -> None:
            if self.a < 0:
                raise ValueError(f"a: {self.a}")
            object.__setattr__(self, "b", self.a + 1)

    @decorated
    class Own:
        a: int
        b: int = 0

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Own) and self.a == other.a

        def __repr__(self) -> str:
            return f"own {self.a}"

        def __hash__(self) -> int:
            return 5

    @decorated
    class Base:
        a: int

    @decorated
    class Child(Base):
        a: int = 4
        b: int = 2

    @decorated
    class Empty:
        pass

    return {one.__name__: one for one in (Plain, Rich, Checked, Own, Base, Child, Empty)}


OURS = classes(frozen.dataclass(frozen=True, slots=True))
THEIRS = classes(dataclasses.dataclass(frozen=True, slots=True))

CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("Plain", (1,), {}),
    ("Plain", (1, 2.5, (3,)), {}),
    ("Plain", (), {"c": (1,), "a": 2}),
    ("Plain", (), {}),
    ("Plain", (1, 2, 3, 4), {}),
    ("Plain", (1,), {"a": 1}),
    ("Plain", (1,), {"z": 1}),
    ("Rich", (1,), {}),
    ("Rich", (1, [2], 3, 4), {"named": 5}),
    ("Rich", (1, [2], 3, 4, 5), {}),
    ("Rich", (1,), {"fixed": 3}),
    ("Checked", (3,), {}),
    ("Checked", (-1,), {}),
    ("Own", (1, 2), {}),
    ("Base", (1,), {}),
    ("Child", (), {}),
    ("Child", (1, 3), {}),
    ("Empty", (), {}),
    ("Empty", (1,), {}),
]


def outcome(made: dict[str, Any], name: str, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Return what comes of a call: the object's fields, text and the like; or its error."""
    try:
        one = made[name](*given, **named)
    except (TypeError, ValueError) as error:
        return type(error), str(error)
    again = made[name](*given, **named)
    other = [cls(1) for key, cls in made.items() if key not in (name, "Empty")]
    try:
        hashed: Any = hash(one) == hash(again)
    except TypeError as error:
        hashed = str(error)
    return (
        dataclasses.asdict(one),
        repr(one),
        one == again,
        one != again,
        [one == x for x in other],
        hashed,
        one.__match_args__,
        [f.name for f in dataclasses.fields(one)],
        hasattr(one, "__dict__"),
    )


@pytest.mark.parametrize(("name", "given", "named"), CALLS)
def test_calls_give_the_same_object_or_the_same_error(
    name: str, given: tuple[Any, ...], named: dict[str, Any]
) -> None:
    assert outcome(OURS, name, given, named) == outcome(THEIRS, name, given, named)


@pytest.mark.parametrize("made", [OURS, THEIRS], ids=["ours", "theirs"])
def test_nothing_can_be_set_or_deleted(made: dict[str, Any]) -> None:
    one = made["Plain"](1)
    # Of a name that is no field, a class of dataclasses with slots raises TypeError instead (super() in it).
    for name in ("a", "nothing") if made is OURS else ("a",):
        with pytest.raises(FrozenInstanceError, match=f"cannot assign to field '{name}'"):
            setattr(one, name, 2)
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'a'"):
        del one.a


@pytest.mark.parametrize("made", [OURS, THEIRS], ids=["ours", "theirs"])
def test_what_is_read_copied_and_replaced(made: dict[str, Any]) -> None:
    rich = made["Rich"](1, [5], aside=3)
    assert (rich.twice, rich.KINDS) == (2, 3)
    assert rich == made["Rich"](1, [5], aside=9)  # not compared
    with pytest.raises(ValueError, match="fixed"):
        dataclasses.replace(rich, fixed=1)
    assert dataclasses.replace(rich, a=4) == made["Rich"](4, [5])
    assert copy.copy(rich) == rich == copy.deepcopy(rich)
    match made["Plain"](1, 2.0, (3,)):
        case object(a=1, c=(three,)):
            assert three == 3
        case _:
            raise AssertionError
    # A factory is called for each object.
    assert made["Rich"](1).made is not made["Rich"](1).made


@given(*[st.floats() | st.just(math.nan)] * 2)
def test_objects_compare_as_tuples_of_their_fields_do(a: float, b: float) -> None:
    for made in (OURS, THEIRS):
        one, other = made["Plain"](1, a), made["Plain"](1, b)
        assert (one == other) == ((1, a, ()) == (1, b, ()))
        if one == other:
            assert hash(one) == hash(other)


@frozen.dataclass(frozen=True, slots=True)
class Sent:
    a: int
    b: tuple[int, ...] = ()


def test_pickle() -> None:
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(Sent(1, (2,)), protocol)) == Sent(1, (2,))


@pytest.mark.parametrize("asked", [(False, True), (True, False)])
def test_others_are_made_by_dataclasses(asked: tuple[bool, bool]) -> None:
    with pytest.raises(TypeError, match="must be True"):
        frozen.dataclass(frozen=asked[0], slots=asked[1])


def test_there_is_one_way_to_make_them() -> None:
    asked = re.compile(r"^\s*@(?:dataclasses\.)?dataclass\(frozen=True, slots=True\)", re.MULTILINE)
    for part in ("controller", "sim"):
        for file in (ROOT / part).rglob("*.py"):
            text = file.read_text()
            if asked.search(text) and file not in APART:
                assert "from controller.frozen import dataclass\n" in text, file
